//! The files that a program shares with its worker: board, ring and pinned memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rekindle_protocol::client::{FIRST_PAGES, Quiesced, TouchedRange};
use rekindle_store::{FirstPages, Image, PartKind};

use super::Attempt;
use crate::error::{Error, Result};

/// Pinned memory is loaded in pieces of this size.
const PIECE: u64 = 8 << 20;
const PAGE: u64 = 4096;

impl Attempt<'_> {
    /// Makes the board, ring and pinned files that the program had mapped, all zero.
    pub fn make_files(&self, client: &Quiesced) -> Result<()> {
        for (name, bytes) in &client.files {
            let path = self.sandbox.run_directory.join(name);
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

    /// Tells the client which pages to have in place. That is advice, and a restore goes on without it.
    fn tell_first_pages(&self) {
        let known = self.image.first_pages().unwrap_or_else(|error| {
            log::warn!("memory comes as it is touched: {error}");
            FirstPages::default()
        });
        if known.runs.is_empty() {
            return;
        }
        let run = |run: &rekindle_store::PageRun| {
            let bytes = run.pages.saturating_mul(PAGE);
            TouchedRange { start: run.start, bytes, written: run.written }.encode()
        };
        let bytes: Vec<u8> = known.runs.iter().flat_map(run).collect();
        if let Err(error) = std::fs::write(self.sandbox.run_directory.join(FIRST_PAGES), bytes) {
            log::warn!("memory comes as it is touched, for {FIRST_PAGES} could not be written: {error}");
        }
    }

    /// Fills pinned memory, and says which pages are touched first. The program does not run yet.
    pub fn load_pinned(&self, half: &Image, client: &Quiesced) -> Result<()> {
        self.tell_first_pages();
        for part in half.parts(PartKind::Pinned) {
            if !client.files.iter().any(|(name, bytes)| *name == part.name && *bytes >= part.bytes) {
                return Err(self.refused("it has pinned memory that no file of the program is for"));
            }
            let path = self.sandbox.run_directory.join(&part.name);
            let failed = |source| Error::io("write", &path, source);
            let file: File = OpenOptions::new().write(true).open(&path).map_err(failed)?;
            let mut piece = Vec::new();
            for at in (0..part.bytes).step_by(PIECE as usize) {
                piece.resize(PIECE.min(part.bytes - at) as usize, 0);
                half.read_part(part, at, &mut piece)?;
                file.write_all_at(&piece, at).map_err(failed)?;
            }
        }
        Ok(())
    }
}
