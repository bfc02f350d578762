//! The page map of one process, or of memory that processes share, while CRIU tells of its pages.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::area::PAGE;
use super::copier::{From, Job, Jobs, Pieces, Source};
use super::server::{Placed, Served};
use super::writers::Writers;
use crate::proto::Encoder;

/// The first words of every image, and of a page map.
const COMMON_MAGIC: u32 = 0x5456_4319;
const PAGEMAP_MAGIC: u32 = 0x5608_4025;

pub struct Map {
    pub id: u64,
    pub image: PathBuf,
    /// None for memory that is shared: its pages are taken as they come.
    pub source: Option<Arc<Source>>,
    pub number: u32,
    pub pages: Arc<File>,
    pub end: u64,
    /// Addresses, counts and flags, in the order of the contents.
    pub entries: Vec<(u64, u64, u32)>,
    pub writers: Option<Writers>,
    /// In the order of their addresses, none over another.
    pub placed: Vec<(Placed, Arc<File>)>,
}

impl Map {
    /// Has the placed areas copied.
    pub fn copy_placed(&self, source: &Arc<Source>, jobs: &Jobs) {
        for (placed, file) in &self.placed {
            jobs.add(Job {
                from: From::Process(source.clone(), placed.span.start),
                bytes: placed.span.end - placed.span.start,
                file: file.clone(),
                offset: placed.offset,
            });
        }
    }

    /// Has memory copied that is in no placed area.
    pub fn add(&mut self, source: &Arc<Source>, memory: Range<u64>, flags: u32, jobs: &Jobs) {
        let mut from = memory.start;
        while from < memory.end {
            let at = self.placed.partition_point(|(placed, _)| placed.span.end <= from);
            let next = self.placed.get(at);
            let area = next.filter(|(placed, _)| placed.span.start <= from);
            let to = match (area, next) {
                (Some((placed, _)), _) => placed.span.end,
                (None, Some((placed, _))) => placed.span.start,
                (None, None) => u64::MAX,
            };
            let piece = from..to.min(memory.end);
            from = piece.end;
            let bytes = piece.end - piece.start;
            if area.is_some() {
                continue;
            }
            let from = From::Process(source.clone(), piece.start);
            jobs.add(Job { from, bytes, file: self.pages.clone(), offset: self.end });
            self.entries.push((piece.start, bytes / PAGE, flags));
            self.end += bytes;
        }
    }

    /// Writes the image of the map and gives all files their lengths.
    pub fn finish(self, pieces: &Pieces, served: &mut Served) -> io::Result<()> {
        self.pages.set_len(self.end)?;
        let mut out = [COMMON_MAGIC.to_le_bytes(), PAGEMAP_MAGIC.to_le_bytes()].concat();
        let mut entry = |message: &Encoder| {
            out.extend_from_slice(&(message.0.len() as u32).to_le_bytes());
            out.extend_from_slice(&message.0);
        };
        let mut head = Encoder::default();
        head.number(1, self.number.into());
        entry(&head);
        for (address, pages, flags) in &self.entries {
            let mut one = Encoder::default();
            one.number(1, *address).number(2, *pages).number(4, (*flags).into()).number(5, *pages);
            entry(&one);
        }
        fs::write(&self.image, out)?;
        served.contents.push((format!("pages-{}.img", self.number), pieces.of(&self.pages)));
        if let Some(writers) = self.writers {
            served.files.extend(writers.finish(pieces)?);
        }
        served.placed.extend(self.placed.into_iter().map(|(placed, _)| placed));
        Ok(())
    }
}
