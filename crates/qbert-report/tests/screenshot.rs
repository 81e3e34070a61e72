//! The page in a real browser: the script runs under its own policy, surfaces turn, nothing is wider than a phone, and
//! screenshots in light, dark and at phone width are left in the target directory to be looked at.
//!
//! Skipped, with a message, where no Chromium is found; `QBERT_CHROMIUM` names one.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

const PHONE: usize = 390;

fn browser() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("QBERT_CHROMIUM") {
        return Some(named.into());
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

struct Chromium<'a> {
    program: PathBuf,
    profile: &'a Path,
}

impl Chromium<'_> {
    fn run(&self, flags: &[&str], page: &Path) -> String {
        let output = Command::new(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
            .arg(format!("--user-data-dir={}", self.profile.display()))
            .arg("--virtual-time-budget=4000")
            .args(flags)
            .arg(format!("file://{}", page.display()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A page that shows the report in a frame of the given width, uses it a little, and writes down what it saw.
fn framed(html: &str, width: usize, height: usize) -> String {
    let source = serde_json::to_string(html).unwrap().replace('<', "\\u003c");
    format!(
        r#"<!doctype html><title>waiting</title><body style="margin:0"><iframe id="f" style="border:0;width:{width}px;height:{height}px"></iframe>
<script>
var f = document.getElementById("f");
f.addEventListener("load", function () {{
  var d = f.contentDocument, w = f.contentWindow, root = d.documentElement;
  if (!root.classList.contains("script")) {{ document.title = "no script"; return; }}
  var c = d.querySelector("canvas"), turn = d.querySelector("[data-what=turn]");
  var pixels = function () {{ return c.toDataURL(); }};
  // Frames come when a busy machine finds the time for them; timers follow the browser's virtual clock.
  w.requestAnimationFrame = function (draw) {{ return w.setTimeout(draw, 0); }};
  var first = pixels(), before = turn.value;
  c.dispatchEvent(new w.KeyboardEvent("keydown", {{ key: "ArrowRight", bubbles: true, cancelable: true }}));
  d.getElementById("theme").click();
  setTimeout(function () {{
    var turned = pixels() !== first;
    var theme = root.getAttribute("data-theme");
    var after = turn.value;
    c.dispatchEvent(new w.KeyboardEvent("keydown", {{ key: "Home", bubbles: true, cancelable: true }}));
    d.getElementById("theme").click(); d.getElementById("theme").click();
    document.title = [root.scrollWidth, root.scrollHeight, before, after, turned, theme].join(" ");
  }}, 500);
}});
f.srcdoc = {source};
</script>"#
    )
}

/// Width and height from the header of a PNG.
fn size(path: &Path) -> (usize, usize) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[1..4], b"PNG");
    assert!(bytes.len() > 30_000, "{}: {} bytes are a blank picture", path.display(), bytes.len());
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    (number(16), number(20))
}

#[test]
fn the_page_works_and_fits_in_a_browser() {
    let Some(program) = browser() else {
        eprintln!("skipped: no Chromium found (install one, or name it in QBERT_CHROMIUM)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let chromium = Chromium { program, profile: &folder.path().join("profile") };
    let html = common::full(12, 12).render().html;
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));

    let frame = folder.path().join("phone.html");
    std::fs::write(&frame, framed(&html, PHONE, 900)).unwrap();
    let dom = chromium.run(&["--dump-dom", "--window-size=600,900"], &frame);
    let seen = dom.split("<title>").nth(1).unwrap().split("</title>").next().unwrap().to_owned();
    let seen: Vec<&str> = seen.split(' ').collect();
    let [width, height, before, after, turned, theme] = seen[..] else { panic!("the script did not run: {seen:?}") };
    assert_eq!((before, after), ("35", "41"), "an arrow key turns the surface");
    assert_eq!((turned, theme), ("true", "light"));
    assert!(width.parse::<usize>().unwrap() <= PHONE, "{width} pixels are wider than a phone");
    let height: usize = height.parse().unwrap();
    assert!((3000..20000).contains(&height), "{height}");

    std::fs::write(&frame, framed(&html, PHONE, height)).unwrap();
    let page = folder.path().join("report.html");
    std::fs::write(&page, &html).unwrap();
    for (name, page, size_of, more) in [
        ("light", &page, (1100, 6000), "--blink-settings=preferredColorScheme=1"),
        ("dark", &page, (1100, 6000), "--blink-settings=preferredColorScheme=0"),
        ("phone", &frame, (600, height), "--blink-settings=preferredColorScheme=1"),
    ] {
        let picture = place.join(format!("report-{name}.png"));
        let (shot, window) =
            (format!("--screenshot={}", picture.display()), format!("--window-size={},{}", size_of.0, size_of.1));
        chromium.run(&[&shot, &window, more], page);
        assert_eq!(size(&picture), size_of, "{name}");
        eprintln!("look at {}", picture.display());
    }
    let (light, dark) = (place.join("report-light.png"), place.join("report-dark.png"));
    assert_ne!(std::fs::read(light).unwrap(), std::fs::read(dark).unwrap(), "dark follows the system's setting");
}
