//! What a program has printed moves with it: the log and its index, at their places, since their beginnings may have been
//! given back.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rekindle_sandbox::log::begin;
use rekindle_sandbox::log_index;

use crate::error::{Error, Result};
use crate::peers::{Link, MESSAGE_LIMIT};
use crate::sandboxes::Sandbox;

use super::message::{Answer, Ask};

/// How much is sent, or copied, at a time.
const PIECE: u64 = 1 << 20;

/// How far the two files were sent.
#[derive(Default)]
pub struct Sent([u64; 2]);

impl Sent {
    /// Sends what has come since.
    pub fn send_more(&mut self, sandbox: &Sandbox, link: &mut Link) -> Result<u64> {
        let paths = [sandbox.log.clone(), log_index::beside(&sandbox.log)];
        let mut bytes = 0;
        for (number, (path, sent)) in paths.iter().zip(&mut self.0).enumerate() {
            let failed = |source| Error::io("read the log", path, source);
            let Ok(file) = File::open(path) else { continue };
            let end = file.metadata().map_err(failed)?.len();
            *sent = (*sent).max(begin(&file, 0).map_err(failed)?.unwrap_or(end));
            while *sent < end {
                let length = PIECE.min(end - *sent);
                let mut piece = vec![0; length as usize];
                file.read_exact_at(&mut piece, *sent).map_err(failed)?;
                link.send(&Ask::Log { index: number == 1, at: *sent, bytes: length })?;
                let written = { link.stream()?.write_all(&piece) };
                written.map_err(|source| Error::system("send what the program has printed", source))?;
                *sent += length;
                bytes += length;
                match link.receive(MESSAGE_LIMIT)? {
                    Answer::Done => {}
                    other => return Err(super::refused(link, other)),
                }
            }
        }
        Ok(bytes)
    }
}

/// What has come of the two files, until the program has its own. Dropped, it is gone.
pub struct Received {
    directory: PathBuf,
}

impl Received {
    pub fn make(directory: PathBuf) -> Result<Received> {
        crate::host::paths::private_directory(&directory, true)?;
        Ok(Received { directory })
    }

    fn path(&self, index: bool) -> PathBuf {
        self.directory.join(if index { "index" } else { "log" })
    }

    pub fn take(&self, index: bool, at: u64, bytes: &[u8]) -> Result<()> {
        let path = self.path(index);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let written = file.and_then(|file| file.write_all_at(bytes, at));
        written.map_err(|source| Error::io("write what the program has printed to", &path, source))
    }

    /// Puts all of it into a sandbox's own, which are empty.
    pub fn put_into(&self, sandbox: &Sandbox) -> Result<()> {
        for (index, to) in [(false, sandbox.log.clone()), (true, log_index::beside(&sandbox.log))] {
            let copied = copy(&self.path(index), &to);
            copied.map_err(|source| Error::io("write the log", &to, source))?;
        }
        Ok(())
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            log::warn!("{} stays: {error}", self.directory.display());
        }
    }
}

/// Copies what a file has, and leaves the hole at its beginning one.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(from) = File::open(from) else { return Ok(()) };
    let to = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(to)?;
    let end = from.metadata()?.len();
    let mut at = begin(&from, 0)?.unwrap_or(end);
    to.set_len(end)?;
    while at < end {
        let mut piece = vec![0; PIECE.min(end - at) as usize];
        from.read_exact_at(&mut piece, at)?;
        to.write_all_at(&piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}
