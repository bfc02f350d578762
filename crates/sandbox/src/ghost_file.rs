//! Files that an image keeps whole, in CRIU's format for those that are deleted.
//!
//! ```text
//!  ghost-file-N.img   two words, entry (owner, mode, times, size), then for each stretch that is not a hole:
//!                     entry (length, offset), bytes
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::devshm::{copy, extents};
use crate::pages::image;
use crate::proto::Encoder;

/// The largest file that CRIU keeps so.
pub const GHOST_LIMIT: u64 = u32::MAX as u64;
const MAGIC: u32 = 0x5258_3605;

/// Writes the contents of `file` into the directory `images`; the number by which CRIU finds them.
pub fn write(images: &Path, file: &File) -> io::Result<u64> {
    let (number, to) = create(images)?;
    let meta = file.metadata()?;
    let time = |seconds: i64, nanoseconds: i64| {
        let mut time = Encoder::default();
        time.number(1, seconds.cast_unsigned()).number(2, (nanoseconds / 1000).cast_unsigned());
        time.0
    };
    let mut entry = Encoder::default();
    entry.number(1, meta.uid().into()).number(2, meta.gid().into()).number(3, meta.mode().into());
    entry.bytes(7, &time(meta.atime(), meta.atime_nsec())).bytes(8, &time(meta.mtime(), meta.mtime_nsec()));
    entry.number(9, 1).number(10, meta.len());
    let (mut from, mut out) = (file, BufWriter::new(to));
    out.write_all(&image::head(MAGIC))?;
    put(&mut out, &entry)?;
    for (at, bytes) in extents(&mut from)? {
        let mut stretch = Encoder::default();
        stretch.number(1, bytes).number(2, at);
        put(&mut out, &stretch)?;
        from.seek(SeekFrom::Start(at))?;
        copy(&mut from, &mut out, bytes)?;
    }
    out.flush()?;
    Ok(number)
}

fn put(out: &mut impl Write, entry: &Encoder) -> io::Result<()> {
    out.write_all(&image::with_length(&entry.0))
}

/// A number that no other file has.
fn create(images: &Path) -> io::Result<(u64, File)> {
    let mut number = 1;
    loop {
        let path = images.join(format!("ghost-file-{number:x}.img"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            other => return other.map(|file| (number, file)),
        }
    }
}
