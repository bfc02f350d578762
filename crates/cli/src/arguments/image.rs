//! Images that others start from.

use std::path::PathBuf;

use clap::Subcommand;

use super::time::seconds;

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Take an image of a program that is ready for any app: `run --from` starts apps from it.
    ///
    /// Without COMMAND the program is Python with torch and numpy imported, if they are there, and GPU operators run once.
    Framework {
        /// Name of the new image.
        image: String,
        /// The GPU: emulated[:SETTINGS] or nvidia[:INDEX].
        #[arg(long, value_name = "GPU")]
        gpu: Option<String>,
        /// The interpreter; python3 if none is given.
        #[arg(long, value_name = "PYTHON", conflicts_with = "command")]
        python: Option<String>,
        /// A module to import, in place of torch and numpy; may be given again.
        #[arg(long = "import", value_name = "MODULE", conflicts_with = "command")]
        imports: Vec<String>,
        /// A script to run after the imports, which uses what apps will use.
        #[arg(long, value_name = "FILE", conflicts_with = "command")]
        warm: Option<PathBuf>,
        /// Import, and leave the GPU alone: apps from the image may share GPU contexts.
        #[arg(long, conflicts_with_all = ["command", "warm"])]
        no_gpu: bool,
        /// How long the program may take to be ready, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
        limit: f64,
        /// A program of your own that says when it is ready and waits for its app.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::arguments::Arguments;

    #[test]
    fn a_framework_image_is_of_python_or_of_a_command() {
        let parse = |rest: &[&str]| {
            Arguments::try_parse_from(["rekindle", "image", "framework", "f"].iter().chain(rest)).is_ok()
        };
        assert!(parse(&[]) && parse(&["--import", "a", "--import", "b", "--warm", "w.py", "--python", "p"]));
        assert!(parse(&["--gpu", "emulated", "--", "./program", "--import"]));
        assert!(!parse(&["--import", "a", "--", "./program"]));
        assert!(parse(&["--no-gpu", "--import", "a"]) && !parse(&["--no-gpu", "--warm", "w.py"]));
        let run = |mode: &[&str]| {
            let words = ["rekindle", "run", "--from", "f"].iter().chain(mode).chain(&["--", "a.py"]);
            Arguments::try_parse_from(words).is_ok()
        };
        assert!(run(&[]) && !run(&["--mode", "driver"]));
    }
}
