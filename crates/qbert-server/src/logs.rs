//! Logs on standard error: lines for people or JSON for programs.

use tracing::level_filters::LevelFilter;

/// What a line of the log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Sends logs of this process to standard error. A second call changes nothing.
pub fn start_logging(format: LogFormat, level: LevelFilter) {
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
