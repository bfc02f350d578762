//! The socket under whose name the NVIDIA driver would give other processes its memory.
//!
//! The driver makes it in the program's process when that asks for its tables. Its abstract name has the pid and the pid
//! namespace of that process, so it means nothing to a restored one, and no two processes of a machine can have it: with
//! it, a second restore of an image beside the first would be refused. In a sandbox nobody asks that half of the driver
//! for memory.

use std::io;
use std::path::Path;

use crate::pages::image::Entries;
use crate::proto::Message;

/// How the name begins; an abstract one has a zero byte first.
const NAME: &[u8] = b"\0cuda-uvmfd-";
/// All open files, in CRIU's `fdinfo.proto`.
pub(crate) const FILES: &str = "files.img";
pub(crate) const UNIX: u64 = 16;
/// The fields of a Unix socket there, in `sk-unix.proto`.
const STATE: u64 = 4;
pub(crate) const SOCKET_NAME: u64 = 11;
/// Of a socket that listens, and of one that does nothing: numbers of TCP's states.
const LISTEN: u64 = 10;
const CLOSE: u64 = 7;

/// Takes the name of that socket out of the dump in `images`.
pub fn unname(images: &Path) -> io::Result<()> {
    let path = images.join(FILES);
    if !path.exists() {
        return Ok(());
    }
    let mut files = Entries::read(&path).map_err(io::Error::other)?;
    let mut changed = false;
    for file in &mut files.entries {
        let Some(mut socket) = file.all_bytes(UNIX).next().and_then(Message::read) else { continue };
        if !socket.all_bytes(SOCKET_NAME).any(|name| name.starts_with(NAME)) {
            continue;
        }
        socket.set_bytes(SOCKET_NAME, Vec::new());
        if socket.number(STATE) == Some(LISTEN) {
            socket.set(STATE, CLOSE);
        }
        file.set_bytes(UNIX, socket.write());
        changed = true;
    }
    if changed { files.write(&path) } else { Ok(()) }
}
