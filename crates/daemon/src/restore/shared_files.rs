//! The files that a program shares with its worker: board, ring and pinned memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rekindle_protocol::client::Quiesced;
use rekindle_store::PartKind;

use super::Attempt;
use crate::error::{Error, Result};

/// Pinned memory is loaded in pieces of this size.
const PIECE: u64 = 8 << 20;

impl Attempt<'_> {
    /// Makes the board, ring and pinned files that the program had mapped, all zero.
    pub fn make_files(&self, client: &Quiesced) -> Result<()> {
        for (name, bytes) in &client.files {
            let path = self.held.run_directory.join(name);
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .and_then(|file| file.set_len(*bytes))
                .map_err(|source| Error::io("make", &path, source))?;
        }
        Ok(())
    }

    pub fn load_pinned(&self, client: &Quiesced) -> Result<()> {
        for part in self.image.parts(PartKind::Pinned) {
            if !client.files.iter().any(|(name, bytes)| *name == part.name && *bytes >= part.bytes) {
                return Err(self.refused("it has pinned memory that no file of the program is for"));
            }
            let path = self.held.run_directory.join(&part.name);
            let failed = |source| Error::io("write", &path, source);
            let file: File = OpenOptions::new().write(true).open(&path).map_err(failed)?;
            let mut piece = Vec::new();
            for at in (0..part.bytes).step_by(PIECE as usize) {
                piece.resize(PIECE.min(part.bytes - at) as usize, 0);
                self.image.read_part(part, at, &mut piece)?;
                file.write_all_at(&piece, at).map_err(failed)?;
            }
        }
        Ok(())
    }
}
