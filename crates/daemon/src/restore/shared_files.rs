//! The files that a program shares with its worker: board, ring and pinned memory.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rekindle_protocol::client::{FIRST_PAGES, Quiesced, TouchedRange};
use rekindle_store::{Encoding, FirstPages, Image, PartKind};

use super::Attempt;
use crate::error::{Error, Result};

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
        let mut pieces = Vec::new();
        for part in half.parts(PartKind::Pinned) {
            if !client.files.iter().any(|(name, bytes)| *name == part.name && *bytes >= part.bytes) {
                return Err(self.refused("it has pinned memory that no file of the program is for"));
            }
            // The file is zeros.
            let chunks = part.chunks.iter().enumerate().filter(|(_, chunk)| chunk.encoding != Encoding::Zero);
            pieces
                .extend(chunks.map(|(number, chunk)| (part, number as u64 * part.chunk_bytes, chunk.bytes)));
        }
        let load = |bytes: &mut Vec<u8>, number: usize| {
            let (part, at, length) = pieces[number];
            bytes.resize(length as usize, 0);
            half.read_part(part, at, bytes)?;
            let path = self.sandbox.run_directory.join(&part.name);
            let written =
                OpenOptions::new().write(true).open(&path).and_then(|file| file.write_all_at(bytes, at));
            written.map_err(|source| Error::io("write", &path, source))
        };
        rekindle_parallel::map(rekindle_parallel::threads(), pieces.len(), Vec::new, load).map(drop)
    }
}
