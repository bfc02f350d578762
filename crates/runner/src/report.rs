//! Tells whoever waits for the runner that it is ready, with which functions, or why not.

use std::io;
use std::path::Path;

use rekindle_function::message;
use serde_json::json;

use crate::Error;

/// Whoever waits for the file finds it whole.
pub fn tell(file: Option<&Path>, functions: Result<&[&str], &Error>) {
    let Some(file) = file else { return };
    let said = match functions {
        Ok(names) => json!({"ready": true, "functions": names, "message": message::VERSION}),
        Err(error) => json!({"error": error.to_string(), "traceback": ""}),
    };
    if let Err(error) = write(file, &said.to_string()) {
        eprintln!("rekindle-runner: {} cannot be written: {error}", file.display());
    }
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let part = file.with_extension("part");
    std::fs::write(&part, text)?;
    std::fs::rename(part, file)
}
