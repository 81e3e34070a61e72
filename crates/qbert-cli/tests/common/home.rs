//! A directory with a tiny checkpoint, in which commands see nothing of the machine around them but its CPU.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use qbert_model::{Config, Head, ParameterLayout, Parameters, TokenizerFiles, write_checkpoint};

const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ngood\nbad\nfilm\n";

/// The directory.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    /// A home with a classifier of this configuration in `model`, whose weights `fill` gives.
    pub(crate) fn new(config: &str, fill: impl FnOnce(&mut [f32])) -> Self {
        let home = Self { directory: tempfile::tempdir().unwrap() };
        let config = Config::parse(config.as_bytes(), Path::new("config.json")).unwrap();
        let layout = ParameterLayout::new(&config, Head::SequenceClassification, 2, false);
        let mut parameters = Parameters::zeros(layout.into());
        fill(parameters.values_mut());
        home.write("tokenizer/vocab.txt", VOCABULARY);
        let tokenizer = TokenizerFiles::read(&home.path("tokenizer")).unwrap();
        write_checkpoint(&home.path("model"), &config, &parameters, &config.labels, &tokenizer).unwrap();
        home
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Runs the command in the home directory; arguments are split at spaces.
    pub(crate) fn command(&self, arguments: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_qbert"))
            .args(arguments.split_whitespace())
            .current_dir(self.directory.path())
            .env_clear()
            .env("QBERT_CACHE", self.path("cache"))
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env("HF_HOME", self.path("hub"))
            .env("QBERT_PYTHON", "no-such-python")
            .output()
            .unwrap()
    }

    /// The same; writes down everything it says, without the kernels and the name of this CPU.
    pub(crate) fn run(&self, arguments: &str) -> String {
        let output = self.command(arguments);
        let mut text = format!("$ qbert {arguments}\n");
        for line in String::from_utf8_lossy(&output.stdout).split_inclusive('\n') {
            let own = ["  kernels     ", "  CPU         "].into_iter().find(|start| line.starts_with(start));
            text += &own.map_or_else(|| line.to_owned(), |start| format!("{start}…\n"));
        }
        write!(text, "{}", String::from_utf8_lossy(&output.stderr)).unwrap();
        writeln!(text, "[exit {}]\n", output.status.code().unwrap()).unwrap();
        text
    }
}
