//! Reads a checkpoint and writes it again: `cargo run -p qbert-model --example rewrite -- IN OUT`.
//!
//! `reference/check_rewrite.py` loads both with `transformers` and compares every tensor.

use std::path::Path;

use qbert_model::{Checkpoint, Result, write_checkpoint};

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output] = arguments.as_slice() else {
        #[expect(clippy::print_stderr, reason = "an example is a program")]
        {
            eprintln!("usage: rewrite IN OUT");
        }
        return std::process::ExitCode::from(2);
    };
    match rewrite(Path::new(input), Path::new(output)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "an example is a program")]
            {
                eprintln!("error: {error}");
            }
            std::process::ExitCode::from(2)
        }
    }
}

fn rewrite(input: &Path, output: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(input)?;
    let parameters = checkpoint.load()?;
    write_checkpoint(output, checkpoint.config(), &parameters, &checkpoint.labels(), checkpoint.tokenizer_files())
}
