//! Starting this program again in the same process: what it held of a GPU goes, some descriptors are passed on.
//!
//! A process that has used a GPU gives all of it back only when its program ends, and one whose context has failed can
//! make no other. Who watches the process, and who holds the other ends of its sockets, sees no end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};
use rekindle_protocol::spawn::Spawned;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// This program.
const OWN: &str = "/proc/self/exe";

/// Starts again with this argument, the descriptors of these numbers, and what is to be known. Returns only if that does
/// not work, with the reason.
pub(crate) fn start_again(argument: &str, known: &impl Serialize, descriptors: &[RawFd]) -> Error {
    let text = match encoded(known) {
        Ok(text) => text,
        Err(error) => return error,
    };
    for number in descriptors.iter().copied().chain([text.as_raw_fd()]) {
        // SAFETY: sets a flag of an open descriptor of ours.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    }
    let [name, words @ ..] = command(argument, &text);
    Command::new(OWN).arg0(name).args(words).exec()
}

/// As [`start_again`], in a process of its own, which is a child of this one.
pub(crate) fn start_beside(
    argument: &str,
    known: &impl Serialize,
    descriptors: &[RawFd],
) -> std::io::Result<Spawned> {
    let text = encoded(known)?;
    let passed = [descriptors, &[text.as_raw_fd()]].concat();
    Spawned::start_at(OWN.as_ref(), &command(argument, &text), &passed)
}

fn command(argument: &str, text: &File) -> [OsString; 4] {
    let name = std::env::args_os().next().unwrap_or_default();
    [name, "worker".into(), argument.into(), text.as_raw_fd().to_string().into()]
}

fn encoded(known: &impl Serialize) -> std::io::Result<File> {
    memory_file(&[&serde_json::to_vec(known)?])
}

/// A file in memory with these contents, to be read from its start.
pub(crate) fn memory_file(contents: &[&[u8]]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create(c"rekindle-successor", MFdFlags::MFD_CLOEXEC)?);
    contents.iter().try_for_each(|bytes| file.write_all(bytes))?;
    file.rewind()?;
    Ok(file)
}

/// What was passed on with the descriptor of this number.
pub(crate) fn known<T: DeserializeOwned>(number: &OsStr) -> std::io::Result<T> {
    let number = number.to_str().and_then(|text| text.parse::<RawFd>().ok());
    let number = number.ok_or_else(|| Error::other("the descriptor's number is none"))?;
    let mut text = Vec::new();
    // SAFETY: the program that this process ran before has left this descriptor open for nothing else.
    let mut file = unsafe { File::from_raw_fd(number) };
    file.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Closes all descriptors but these: one of the driver's that came along would hold the GPU.
pub(crate) fn close_others(kept: &[RawFd]) {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2 && !kept.contains(number)) {
        // SAFETY: nothing in this process knows the descriptor; that of the directory is closed already.
        unsafe { libc::close(number) };
    }
}
