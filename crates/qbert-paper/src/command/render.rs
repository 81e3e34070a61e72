//! `--render`: the results page, its figures, and the table in a README.

use std::path::Path;

use qbert_model::atomic;
use qbert_pipeline::Result;

/// Renders the results in a directory to a page and, if one is given, into a README; returns the files that were written.
pub(super) fn run(directory: &Path, page: &Path, readme: Option<&Path>) -> Result<String> {
    atomic::check_file(page)?;
    let readme_flag = readme.map(|file| format!(" --readme {}", file.display())).unwrap_or_default();
    let (from, to) = (directory.display(), page.display());
    let command = format!("qbert-paper reproduce --render {from} --out {to}{readme_flag}");
    let rendered = qbert_paper::render(directory, &command)?;
    rendered.write(page, readme)?;
    let written = std::iter::once(page.to_owned()).chain(rendered.figure_paths(page)).chain(readme.map(Path::to_owned));
    Ok(written.map(|path| format!("{}\n", path.display())).collect())
}
