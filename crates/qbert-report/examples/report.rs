//! Makes a report from a run's directory, or from a `report.json`: `cargo run -p qbert-report --example report -- IN OUT`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(input), Some(out)) = (arguments.next(), arguments.next()) else {
        return Err("give a run's directory or a report.json, and an output directory".into());
    };
    let report = if input.is_dir() {
        qbert_report::read::directory(&input)?
    } else {
        qbert_report::read::report(&std::fs::read_to_string(&input)?, &input.display().to_string())?
    };
    for (name, text) in report.render().files() {
        let path = out.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)?;
    }
    Ok(())
}
