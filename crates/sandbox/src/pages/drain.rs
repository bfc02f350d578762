//! Pages that come on a socket: dropped without being copied, or taken as they come.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

/// How much is on the way at once.
const PIPE: i32 = 1 << 20;

/// Drops what comes on a socket without looking at it.
pub struct Drain {
    read: io::PipeReader,
    write: io::PipeWriter,
    nowhere: File,
}

impl Drain {
    pub fn new() -> io::Result<Drain> {
        let (read, write) = io::pipe()?;
        // SAFETY: changes the size of a pipe that this process holds; a smaller one works too.
        unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE) };
        Ok(Drain { read, write, nowhere: OpenOptions::new().write(true).open("/dev/null")? })
    }

    pub fn drop_bytes(&self, socket: &UnixStream, mut bytes: u64) -> io::Result<()> {
        while bytes > 0 {
            let mut inside = splice(socket.as_raw_fd(), self.write.as_raw_fd(), bytes.min(PIPE as u64))?;
            bytes -= inside;
            while inside > 0 {
                inside -= splice(self.read.as_raw_fd(), self.nowhere.as_raw_fd(), inside)?;
            }
        }
        Ok(())
    }
}

fn splice(from: i32, to: i32, bytes: u64) -> io::Result<u64> {
    loop {
        let none = std::ptr::null_mut();
        // SAFETY: moves bytes between two descriptors that this process holds; no offsets are given.
        let moved = unsafe { libc::splice(from, none, to, none, bytes as usize, libc::SPLICE_F_MOVE) };
        match moved {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => return Ok(moved as u64),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Takes bytes as they come.
pub fn take(mut socket: &UnixStream, file: &File, mut at: u64, mut bytes: u64) -> io::Result<()> {
    let mut block = vec![0; bytes.min(PIPE as u64) as usize];
    while bytes > 0 {
        let block = &mut block[..bytes.min(PIPE as u64) as usize];
        socket.read_exact(block)?;
        file.write_all_at(block, at)?;
        at += block.len() as u64;
        bytes -= block.len() as u64;
    }
    Ok(())
}
