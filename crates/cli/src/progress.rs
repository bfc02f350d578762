//! Progress on the terminal, where standard error is one.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

pub struct Progress {
    bar: Option<ProgressBar>,
    terminal: bool,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { bar: None, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows how far a phase is; `total` is 0 where it is not known.
    pub fn show(&mut self, phase: &str, done: u64, total: u64) {
        if !self.terminal {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| ProgressBar::new(0));
        let template = if total > 0 {
            "{spinner} {msg:16} {bar:32} {bytes} of {total_bytes}, {bytes_per_sec}"
        } else {
            "{spinner} {msg}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_length(total.max(1));
        bar.set_position(done);
        bar.set_message(phase.to_string());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
