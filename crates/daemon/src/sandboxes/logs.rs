//! What a sandbox's program has printed: where that begins, and showing it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use rekindle_sandbox::log::{self, Log};

use crate::error::{Error, Result};
use crate::host::clock;
use crate::recovery;
use crate::reply::Reply;
use crate::sandboxes::Sandbox;

/// How often a log that is followed is looked at.
const EVERY: Duration = Duration::from_millis(20);
const PIECE: usize = 64 << 10;

/// Makes a sandbox's log. One that is brought back under its old name goes on with the log of the ended one that had it,
/// which keeps it too until nothing can go wrong any more.
pub fn begin(sandbox: &Sandbox, former: Option<&Sandbox>) -> Result<()> {
    let failed = |source| Error::io("make the log", &sandbox.log, source);
    let goes_on = former.is_some_and(|former| fs::hard_link(&former.log, &sandbox.log).is_ok());
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&sandbox.log);
    let file = file.map_err(failed)?;
    if goes_on {
        let what = sandbox.record().image.map(|image| format!("restored from the image {image:?}"));
        let what = what.unwrap_or_else(|| "started anew".to_string());
        let marker = format!("\n--- rekindle: {what} at {} ---\n", clock::now());
        Log::new(sandbox.log_max()).append(&file, marker.as_bytes());
        let start = file.metadata().map_err(failed)?.len();
        sandbox.update(|record| record.log_start = start)?;
    }
    Ok(())
}

/// Sends the log, from where this run of the program began if `own`; with `follow` until the sandbox has ended or the user
/// is gone. One that is brought back meanwhile is followed on.
pub fn show(sandbox: &Arc<Sandbox>, follow: bool, own: bool, reply: &Reply<'_>) -> Result<()> {
    let failed = |source| Error::io("read the log", &sandbox.log, source);
    sandbox.flush_log();
    let file = File::open(&sandbox.log).map_err(failed)?;
    let mut sandbox = sandbox.clone();
    let mut from = if own { sandbox.record().log_start } else { 0 };
    loop {
        // Asked before reading: what was printed before the end is then read before it is acted on.
        let goes_on = follow && (sandbox.is_live() || recovery::goes_on(&sandbox.record()));
        let mut piece = vec![0; PIECE];
        loop {
            let bytes = log::read(&file, &mut from, &mut piece).map_err(failed)?;
            if bytes == 0 {
                break;
            }
            reply.output(piece[..bytes].to_vec())?;
        }
        if !goes_on || reply.is_gone() {
            return Ok(());
        }
        // The log of one that is brought back is the same file.
        match sandbox.successor() {
            Some(successor) => sandbox = successor,
            None if sandbox.is_live() => drop(sandbox.wait_end(Some(EVERY))),
            None => std::thread::sleep(EVERY),
        }
    }
}
