//! What a sandbox's program has printed: where that begins, and showing it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use rekindle_sandbox::log;
use rekindle_sandbox::log_index::{self, Indexed, Reader, Stream};

use crate::error::{Error, Result};
use crate::host::clock;
use crate::reply::Reply;
use crate::sandboxes::Sandbox;
use crate::sandboxes::log_lines::{self, Lines};

/// How often a log that is followed is looked at.
const EVERY: Duration = Duration::from_millis(20);
const PIECE: usize = 64 << 10;

/// Makes a sandbox's log. One that is brought back under its old name goes on with the log of the ended one that had it,
/// which keeps it too until nothing can go wrong any more.
pub fn begin(sandbox: &Sandbox, former: Option<&Sandbox>) -> Result<()> {
    let failed = |source| Error::io("make the log", &sandbox.log, source);
    let goes_on = former.is_some_and(|former| fs::hard_link(&former.log, &sandbox.log).is_ok());
    let index = log_index::beside(&sandbox.log);
    if let Some(former) = former.filter(|_| goes_on) {
        // Of a log without times the new lines have some.
        let _ = fs::hard_link(log_index::beside(&former.log), &index);
    }
    let open = |path| OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
    let file = open(&sandbox.log).map_err(failed)?;
    let index = open(&index).ok();
    if goes_on {
        let what = sandbox.record().image.map(|image| format!("restored from the image {image:?}"));
        let what = what.unwrap_or_else(|| "started anew".to_string());
        let marker = format!("\n--- rekindle: {what} at {} ---\n", clock::now());
        Indexed::new(sandbox.log_max()).append(&file, index.as_ref(), Stream::Rekindle, marker.as_bytes());
        let start = file.metadata().map_err(failed)?.len();
        sandbox.update(|record| record.log_start = start)?;
    }
    Ok(())
}

/// What is wanted of a log.
pub struct LogRequest {
    pub follow: bool,
    /// Only what this run of the program has printed.
    pub own: bool,
    /// Only what was printed then or later: microseconds since 1970.
    pub since_us: Option<u64>,
    /// Only so many lines, the last ones.
    pub tail: Option<u64>,
    /// As lines, each with its time and its stream.
    pub lines: bool,
}

/// Sends the log; with `follow` until the sandbox has ended or the user is gone. One that is brought back meanwhile is followed
/// on.
pub fn show(sandbox: &Arc<Sandbox>, request: &LogRequest, reply: &Reply<'_>) -> Result<()> {
    let failed = |source| Error::io("read the log", &sandbox.log, source);
    sandbox.flush_log();
    let file = File::open(&sandbox.log).map_err(failed)?;
    // One of an earlier version has none.
    let mut index = File::open(log_index::beside(&sandbox.log)).ok().map(Reader::new);
    let mut from = begin_of(sandbox, request, &file, index.as_mut()).map_err(failed)?;
    let mut sandbox = sandbox.clone();
    let mut lines = request.lines.then(|| Lines::new(index));
    loop {
        // Asked before reading: what was printed before the end is then read before it is acted on.
        let goes_on = request.follow && (sandbox.is_live() || sandbox.record().goes_on());
        match &mut lines {
            None => {
                // A program may print faster than this is shown.
                let size = file.metadata().map_err(failed)?.len();
                send_bytes(&file, &mut from, size, |_, bytes| Ok(reply.output(bytes.to_vec())?))?;
            }
            Some(lines) => send_lines(&sandbox, &file, &mut from, lines, reply)?,
        }
        if !goes_on || reply.is_gone() {
            break;
        }
        // The log of one that is brought back is the same file.
        match sandbox.successor() {
            Some(successor) => sandbox = successor,
            None if sandbox.is_live() => drop(sandbox.wait_end(Some(EVERY))),
            None => std::thread::sleep(EVERY),
        }
    }
    match lines {
        Some(mut lines) => {
            lines.end();
            Ok(reply.lines(lines.take())?)
        }
        None => Ok(()),
    }
}

/// Where that begins which is to be shown.
fn begin_of(
    sandbox: &Sandbox,
    request: &LogRequest,
    file: &File,
    index: Option<&mut Reader>,
) -> io::Result<u64> {
    let mut from = if request.own { sandbox.record().log_start } else { 0 };
    if let (Some(since_us), Some(index)) = (request.since_us, index) {
        index.read_on()?;
        from = from.max(log_lines::since(file, index, since_us)?);
    }
    if let Some(tail) = request.tail {
        from = from.max(log_lines::tail(file, file.metadata()?.len(), from, tail)?);
    }
    Ok(from)
}

/// Sends what has come, as far as it is in the index by now if it is the program's.
fn send_lines(
    sandbox: &Sandbox,
    file: &File,
    from: &mut u64,
    lines: &mut Lines,
    reply: &Reply<'_>,
) -> Result<()> {
    let failed = |source| Error::io("read the log", &sandbox.log, source);
    let size = file.metadata().map_err(failed)?.len();
    if size == *from {
        return Ok(());
    }
    // Whoever has written that has made its entry before it answers.
    sandbox.flush_log();
    lines.read_index().map_err(failed)?;
    send_bytes(file, from, size, |offset, bytes| {
        lines.add(offset, bytes);
        reply.output(bytes.to_vec())?;
        Ok(reply.lines(lines.take())?)
    })
}

/// Gives on what stands in the log from an offset to another one, with where it stands.
fn send_bytes(
    file: &File,
    from: &mut u64,
    until: u64,
    mut send: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let most = until.saturating_sub(*from).min(PIECE as u64) as usize;
        let got = log::read(file, from, &mut piece[..most])
            .map_err(|source| Error::system("read the log", source))?;
        if got == 0 {
            return Ok(());
        }
        send(*from - got as u64, &piece[..got])?;
    }
}
