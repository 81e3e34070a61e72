//! The `qbert` command.

fn main() -> std::process::ExitCode {
    qbert_cli::main()
}
