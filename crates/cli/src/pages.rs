//! Man pages, made from the definition of the command line.

use std::path::Path;

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::error::{Error, Result};

/// Writes `rekindle.1` and a page for each of its commands.
pub fn man(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory))
        .map_err(|source| Error::File {
            action: "write man pages into",
            path: directory.to_path_buf(),
            source,
        })
}
