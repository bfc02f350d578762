//! Showing what a sandbox's program has printed, and what it prints on.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::held::Held;
use crate::reply::Reply;

/// How often a log that is followed is looked at.
const EVERY: Duration = Duration::from_millis(20);
const PIECE: usize = 64 << 10;

/// Sends the log; with `follow` until the sandbox has ended or the user is gone.
pub fn show(held: &Held, follow: bool, reply: &Reply<'_>) -> Result<()> {
    let failed = |source| Error::io("read the log", &held.log, source);
    let mut log = File::open(&held.log).map_err(failed)?;
    loop {
        // Asked before reading: what was printed before the end is then read before it is acted on.
        let goes_on = follow && held.is_live();
        let mut piece = vec![0; PIECE];
        loop {
            let bytes = log.read(&mut piece).map_err(failed)?;
            if bytes == 0 {
                break;
            }
            reply.output(piece[..bytes].to_vec())?;
        }
        if !goes_on || reply.is_gone() {
            return Ok(());
        }
        held.wait_end(Some(EVERY));
    }
}
