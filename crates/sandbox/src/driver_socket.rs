//! The socket under whose name the NVIDIA driver would give other processes its memory.
//!
//! The driver makes it in the program's process when that asks for its tables. Its abstract name has the pid and the pid
//! namespace of that process, so it means nothing to a restored one, and no two processes of a machine can have it: with
//! it, a second restore of an image beside the first would be refused. In a sandbox nobody asks that half of the driver
//! for memory. But a thread of the driver's waits there, also while the program's half of it is detached.

use std::io;
use std::path::Path;

use crate::descriptors::{Described, FILES, Unix};
use crate::pages::image::Entries;

/// How the name begins; an abstract one has a zero byte first.
const NAME: &[u8] = b"\0cuda-uvmfd-";

/// Takes the name of that socket out of the dump in `images`, and has nothing come to it.
pub fn silence(images: &Path) -> io::Result<()> {
    let path = images.join(FILES);
    if !path.exists() {
        return Ok(());
    }
    let mut files = Entries::read(&path).map_err(io::Error::other)?;
    let mut changed = false;
    for file in &mut files.entries {
        let Some(mut socket) = Unix::of(file).filter(|socket| socket.name().starts_with(NAME)) else {
            continue;
        };
        socket.silence();
        socket.put(file);
        changed = true;
    }
    if changed { files.write(&path) } else { Ok(()) }
}
