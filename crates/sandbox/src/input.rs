//! A program's standard input where it is a pipe that somebody outside of its tree writes to.
//!
//! A restore brings back what was in the pipe, and nobody who writes to it: the program reads that, and then the end.
//! Where there is somebody, CRIU is given another pipe in its place, with what was in the old one put into it first.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};

use crate::outputs::Pipes;
use crate::pages::image::{HEAD, take_entry};
use crate::proto::Message;

/// CRIU's image with what was in pipes: two words, then for each pipe a length, an entry, and the bytes.
const IMAGE: &str = "pipes-data.img";

/// CRIU's name for the pipe that the first of the processes `pids` has for its standard input, if none of them writes
/// to it; `pipes` are all theirs.
pub fn of(pids: &[i32], pipes: &Pipes) -> Option<String> {
    let link = fs::read_link(format!("/proc/{}/fd/0", pids.first()?)).ok()?;
    let key = link.to_str().filter(|link| link.starts_with("pipe:["))?;
    pipes.is_only_read(key).then(|| key.to_owned())
}

/// Puts into the pipe that `to` reads what was in the pipe `key`.
pub fn refill(images: &Path, key: &str, to: &OwnedFd) -> io::Result<()> {
    let text = match fs::read(images.join(IMAGE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let odd = || {
        io::Error::new(io::ErrorKind::InvalidData, format!("{IMAGE} is not in the format of CRIU's images"))
    };
    let number = key
        .strip_prefix("pipe:[")
        .and_then(|key| key.strip_suffix(']')?.parse::<u64>().ok())
        .ok_or_else(odd)?;
    let Some(found) = find(&text, number).ok_or_else(odd)? else { return Ok(()) };
    let path = format!("/proc/self/fd/{}", to.as_raw_fd());
    let pipe: File = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if let Some(size) = found.size {
        fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(size))?;
    }
    // There is room: as much was in the old one.
    (&pipe).write_all(found.bytes)
}

#[derive(Debug, PartialEq, Eq)]
struct Found<'a> {
    bytes: &'a [u8],
    /// How much the pipe can hold.
    size: Option<i32>,
}

/// What an image says of a pipe; none inside if it says nothing of it.
fn find(text: &[u8], number: u64) -> Option<Option<Found<'_>>> {
    let mut rest = text.get(HEAD..)?;
    while !rest.is_empty() {
        let entry = Message::read(take_entry(&mut rest)?)?;
        let (bytes, after) = rest.split_at_checked(usize::try_from(entry.number(2)?).ok()?)?;
        if entry.number(1) == Some(number) {
            let size = entry.number(3).and_then(|size| i32::try_from(size).ok());
            return Some(Some(Found { bytes, size }));
        }
        rest = after;
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::image::with_length;
    use crate::proto::Encoder;
    use proptest::prelude::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    fn image() -> Vec<u8> {
        let mut image = b"headhead".to_vec();
        for (number, bytes) in [(7, "one"), (8, "two, longer")] {
            let mut entry = Encoder::default();
            entry.number(1, number).number(2, bytes.len() as u64).number(3, 1 << 17);
            image.extend(with_length(&entry.0));
            image.extend(bytes.as_bytes());
        }
        image
    }

    #[test]
    fn what_was_in_a_pipe_is_put_into_another() {
        let dir = tempfile::tempdir().unwrap();
        let (mut read, write) = io::pipe().unwrap();
        let ours = OwnedFd::from(read.try_clone().unwrap());
        refill(dir.path(), "pipe:[8]", &ours).unwrap();
        fs::write(dir.path().join(IMAGE), image()).unwrap();
        refill(dir.path(), "pipe:[9]", &ours).unwrap();
        refill(dir.path(), "pipe:[8]", &ours).unwrap();
        drop(write);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "two, longer");
        fs::write(dir.path().join(IMAGE), &image()[..20]).unwrap();
        assert!(refill(dir.path(), "pipe:[8]", &ours).is_err());
    }

    #[test]
    fn a_pipe_from_outside_is_the_input() {
        let start = |input: Stdio| Command::new("sleep").arg("60").stdin(input).spawn().unwrap();
        let (mut piped, mut other) = (start(Stdio::piped()), start(Stdio::null()));
        let pids = [piped.id() as i32, other.id() as i32];
        let link = fs::read_link(format!("/proc/{}/fd/0", pids[0])).unwrap();
        assert_eq!(of(&pids, &Pipes::of(&pids)).as_deref(), link.to_str());
        assert_eq!(of(&[pids[1]], &Pipes::of(&[pids[1]])), None);
        let with_writer = [pids[0], std::process::id() as i32];
        assert_eq!(of(&with_writer, &Pipes::of(&with_writer)), None, "its writer is in the tree");
        for child in [&mut piped, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    proptest! {
        #[test]
        fn no_image_makes_it_panic(bytes: Vec<u8>) {
            find(&bytes, 1);
        }
    }
}
