//! What CPU this is: its name, and the features that decide how fast integer inference can be.
//!
//! A figure belongs to its machine, so benchmarks and reports name it. This is for people and records: which kernels run
//! is decided by [`Kernels`](crate::Kernels), never by this list.

use std::fmt;

/// A feature by its name in `/proc/cpuinfo`, and whether the standard library finds it.
type Feature = (&'static str, fn() -> bool);

/// The features that matter here, weakest first.
#[cfg(target_arch = "x86_64")]
const FEATURES: &[Feature] = &[
    ("avx2", || is_x86_feature_detected!("avx2")),
    ("fma", || is_x86_feature_detected!("fma")),
    ("avx_vnni", || is_x86_feature_detected!("avxvnni")),
    ("avx512f", || is_x86_feature_detected!("avx512f")),
    ("avx512_vnni", || is_x86_feature_detected!("avx512vnni")),
    ("avx512_bf16", || is_x86_feature_detected!("avx512bf16")),
    // The standard library does not look for these two on stable Rust. Linux lists them if programs may use them.
    ("amx_bf16", || false),
    ("amx_int8", || false),
];
#[cfg(target_arch = "aarch64")]
const FEATURES: &[Feature] = &[
    ("asimd", || std::arch::is_aarch64_feature_detected!("neon")),
    ("asimddp", || std::arch::is_aarch64_feature_detected!("dotprod")),
    ("i8mm", || std::arch::is_aarch64_feature_detected!("i8mm")),
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const FEATURES: &[Feature] = &[];

/// The CPU: its model name and the features that matter for speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    name: String,
    features: Vec<&'static str>,
}

impl Machine {
    /// The machine that this program runs on.
    pub fn here() -> Self {
        let listed = std::fs::read_to_string("/proc/cpuinfo").map(|text| Listed::parse(&text)).unwrap_or_default();
        let name = listed.name.clone().or_else(system_name).unwrap_or_else(|| "unknown CPU".to_owned());
        let has = |feature: &&Feature| feature.1() || listed.features.iter().any(|own| own == feature.0);
        Self { name, features: FEATURES.iter().filter(has).map(|feature| feature.0).collect() }
    }

    /// The CPU's name as the system gives it, such as `AMD EPYC (family 25, model 1)`. Virtual machines may hide the real
    /// name, but not the family and the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Those of the features that matter which the CPU has, by their names in `/proc/cpuinfo`, weakest first: `avx2`,
    /// `fma`, `avx_vnni`, `avx512f`, `avx512_vnni`, `avx512_bf16`, `amx_bf16`, `amx_int8`; on ARM `asimd`, `asimddp`,
    /// `i8mm`.
    pub fn features(&self) -> &[&'static str] {
        &self.features
    }
}

/// `AMD EPYC (family 25, model 1): avx2, fma`
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.features.is_empty() { Ok(()) } else { write!(f, ": {}", self.features.join(", ")) }
    }
}

/// What `/proc/cpuinfo` says of the first CPU.
#[derive(Debug, Default)]
struct Listed {
    name: Option<String>,
    features: Vec<String>,
}

impl Listed {
    fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let mut fields = text.lines().filter_map(|line| line.split_once(':'));
            let found = fields.find(|(own, value)| own.trim() == key && !value.trim().is_empty());
            found.map(|(_, value)| on_one_line(value))
        };
        // ARM kernels give numbers instead of a name; boards such as the Raspberry Pi name themselves.
        let numbers = || Some(format!("ARM implementer {} part {}", value("CPU implementer")?, value("CPU part")?));
        let name = value("model name").or_else(|| value("Model")).or_else(numbers);
        let version = || Some(format!(" (family {}, model {})", value("cpu family")?, value("model")?));
        let flags = value("flags").or_else(|| value("Features")).unwrap_or_default();
        Self {
            name: name.map(|name| name + &version().unwrap_or_default()),
            features: flags.split_whitespace().map(str::to_owned).collect(),
        }
    }
}

/// The name where there is no `/proc/cpuinfo`.
fn system_name() -> Option<String> {
    let name = if cfg!(target_os = "macos") {
        let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "machdep.cpu.brand_string"]).output();
        String::from_utf8_lossy(&output.ok()?.stdout).into_owned()
    } else {
        // Windows sets it.
        std::env::var("PROCESSOR_IDENTIFIER").ok()?
    };
    Some(on_one_line(&name)).filter(|name| !name.is_empty())
}

/// Names are padded with spaces.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpuinfo_gives_the_name_and_the_features() {
        let listed = Listed::parse(
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t:  Some  Xeon @ 2.1GHz\n\
             flags\t\t: fpu avx2 amx_int8\n\nprocessor\t: 1\nmodel name\t: another\nflags\t\t: none\n",
        );
        assert_eq!(listed.name.as_deref(), Some("Some Xeon @ 2.1GHz (family 6, model 207)"));
        assert_eq!(listed.features, ["fpu", "avx2", "amx_int8"]);

        let arm = "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(Listed::parse(arm).name.as_deref(), Some("ARM implementer 0x41 part 0xd0c"));
        assert_eq!(Listed::parse(arm).features, ["fp", "asimd", "asimddp"]);
        let board = format!("{arm}\nHardware\t: BCM\nModel\t\t: Raspberry Pi 4 Model B\n");
        assert_eq!(Listed::parse(&board).name.as_deref(), Some("Raspberry Pi 4 Model B"));

        assert_eq!(Listed::parse("processor : 0\nmodel name :\n").name, None);
        assert_eq!(Listed::parse("").name, None);
    }

    /// What the kernels rely on is among the features that are shown.
    #[test]
    fn this_machine_has_what_its_kernels_need() {
        let machine = Machine::here();
        println!("{machine}");
        assert!(!machine.name().is_empty());
        let needs: &[&str] = match crate::Kernels::best().name() {
            "avx512" => &["avx2", "fma", "avx512f"],
            "avx2" => &["avx2", "fma"],
            "neon" => &["asimd"],
            _ => &[],
        };
        assert!(needs.iter().all(|feature| machine.features().contains(feature)), "{machine}");
        assert!(machine.to_string().starts_with(machine.name()));
    }
}
