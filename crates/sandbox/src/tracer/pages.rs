//! CRIU's look for a process's pages, without those that were copied before the process stood still.
//!
//! CRIU asks the kernel which pages it is to dump. The kernel is asked in its place, also for what has been written since
//! pages were protected, and CRIU is told of the rest. What it does not hear of it does not send.

use std::io;
use std::os::fd::OwnedFd;

use super::calls::Memory;
use crate::page_scan::{PROTECTABLE, Region, Scan, WRITTEN};
use crate::pages::PAGE;

/// So many stretches are told of at once; CRIU asks for what is behind them.
const MOST: u64 = 2048;

/// Answers the request that lies at `at` in CRIU's memory; none if that asks for something else.
pub fn scan(pagemap: &OwnedFd, criu: Memory, at: u64) -> io::Result<Option<i64>> {
    let asked = Scan::from_bytes(&criu.read(at, size_of::<Scan>())?);
    if !asked.asks_for_pages() {
        return Ok(None);
    }
    let pages = asked.end.saturating_sub(asked.start).div_ceil(PAGE);
    let mut room = vec![Region::default(); asked.vec_len.min(MOST).min(pages) as usize];
    let mut ours = Scan { return_mask: asked.return_mask | PROTECTABLE | WRITTEN, ..asked };
    let found = ours.ask(pagemap, &mut room)?;
    let mut told = Vec::new();
    for region in room[..found].iter().filter(|region| !region.is_unwritten()) {
        told.push(Region { categories: region.categories & asked.return_mask, ..*region });
    }
    criu.write(asked.vec, &Region::to_bytes(&told))?;
    let answer = Scan { walk_end: ours.walk_end, ..asked };
    criu.write(at, &answer.to_bytes())?;
    Ok(Some(told.len() as i64))
}
