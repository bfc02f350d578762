//! What a forked child has of the real driver and of us: nothing that it could use, and files that CRIU could not dump, or bring
//! back.
//!
//! The driver's mappings of device files become memory without contents, its descriptors of them become `/dev/null`:
//! what the driver may still do with them at the child's end finds something harmless in their places. A file of the run
//! directory is open for a moment, in any thread; a child that is forked then would have it for ever, and be in an image with a
//! file that no other run directory has.

use std::ffi::{CStr, c_int, c_void};

use crate::withheld;

/// The driver's device files, as `/proc` shows them.
const DEVICES: &[u8] = b"/dev/nvidia";

/// Lets go of the real driver's device files, and of what another thread had open of ours. For a process that was just forked:
/// allocates nothing.
pub fn let_go(run_directory: &[u8]) {
    each_line(c"/proc/self/maps", |line| {
        if let Some((start, end)) = device_mapping(line) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: replaces a mapping of the real driver, which does not work in a forked process.
            unsafe { libc::mmap(start as *mut c_void, end - start, protection, flags, -1, 0) };
        }
    });
    // SAFETY: a constant path.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    each_descriptor(|descriptor| match is_of(descriptor, run_directory) {
        // SAFETY: the descriptor is the real driver's, which does not work in a forked process. Without `null` it stays.
        Some(Whose::Driver) => drop(unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) }),
        // SAFETY: the descriptor is one of a thread that there is not here.
        Some(Whose::Ours) => drop(unsafe { libc::close(descriptor) }),
        None => {}
    });
    if null >= 0 {
        // SAFETY: opened above.
        unsafe { libc::close(null) };
    }
}

/// The addresses of a line of `/proc/self/maps`, if a device file of the driver is mapped there.
fn device_mapping(line: &[u8]) -> Option<(usize, usize)> {
    let path = line.iter().position(|byte| *byte == b'/')?;
    if !line[path..].starts_with(DEVICES) {
        return None;
    }
    let dash = line.iter().position(|byte| *byte == b'-')?;
    let space = line.iter().position(|byte| *byte == b' ')?;
    Some((hexadecimal(&line[..dash])?, hexadecimal(line.get(dash + 1..space)?)?))
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Calls `act` with each line of a file; what does not fit into a page of a longer one is left out.
fn each_line(path: &CStr, mut act: impl FnMut(&[u8])) {
    // SAFETY: a path that ends in NUL.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return;
    }
    let mut buffer = [0u8; 8192];
    let mut filled = 0;
    loop {
        let room = &mut buffer[filled..];
        // SAFETY: reads no more than there is room for.
        let read = unsafe { libc::read(file, room.as_mut_ptr().cast(), room.len()) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
        filled += read;
        let mut begin = 0;
        while let Some(length) = buffer[begin..filled].iter().position(|byte| *byte == b'\n') {
            act(&buffer[begin..begin + length]);
            begin += length + 1;
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
        if filled == buffer.len() {
            filled = 0;
        }
    }
    // SAFETY: opened above.
    unsafe { libc::close(file) };
}

/// Calls `act` with every open descriptor but those used for looking.
fn each_descriptor(mut act: impl FnMut(c_int)) {
    /// Before its name, an entry has its number, the next one's place, its length and its kind.
    const HEAD: usize = 19;
    // SAFETY: a constant path.
    let directory = unsafe { libc::open(c"/proc/self/fd".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY) };
    if directory < 0 {
        return;
    }
    let mut buffer = [0u8; 4096];
    loop {
        // SAFETY: writes no more than the buffer takes.
        let filled =
            unsafe { libc::syscall(libc::SYS_getdents64, directory, buffer.as_mut_ptr(), buffer.len()) };
        let Some(filled) = usize::try_from(filled).ok().filter(|filled| *filled > 0) else { break };
        let mut entry = &buffer[..filled];
        while entry.len() > HEAD {
            let length = usize::from(u16::from_ne_bytes([entry[16], entry[17]])).clamp(HEAD, entry.len());
            let name = entry[HEAD..length].split(|byte| *byte == 0).next().unwrap_or_default();
            let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            if let Some(number) = number.filter(|number| *number != directory) {
                act(number);
            }
            entry = &entry[length..];
        }
    }
    // SAFETY: opened above.
    unsafe { libc::close(directory) };
}

#[derive(Debug, PartialEq, Eq)]
enum Whose {
    Driver,
    Ours,
}

/// Whether a descriptor is one of a device file of the driver, of a file of the run directory, or of a connection that is withheld.
fn is_of(descriptor: c_int, run_directory: &[u8]) -> Option<Whose> {
    // SAFETY: the structure is plain data, filled by the call.
    let status = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::fstat(descriptor, &mut status) != 0 {
            return None;
        }
        status
    };
    let mut target = [0u8; libc::PATH_MAX as usize];
    match status.st_mode & libc::S_IFMT {
        libc::S_IFCHR => path(descriptor, &mut target)?.starts_with(DEVICES).then_some(Whose::Driver),
        libc::S_IFREG => {
            let within = path(descriptor, &mut target)?.strip_prefix(run_directory)?;
            within.starts_with(b"/").then_some(Whose::Ours)
        }
        libc::S_IFSOCK => withheld::is_withheld(status.st_ino).then_some(Whose::Ours),
        _ => None,
    }
}

/// What a descriptor is of.
fn path(descriptor: c_int, target: &mut [u8]) -> Option<&[u8]> {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let (mut number, mut digits) = (descriptor.max(0) as u32, [0u8; 10]);
    let mut count = 0;
    while count == 0 || number > 0 {
        digits[count] = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
    }
    for (at, digit) in digits[..count].iter().rev().enumerate() {
        link[14 + at] = *digit;
    }
    // SAFETY: the path ends in NUL; writes no more than the buffer takes.
    let length = unsafe { libc::readlink(link.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    target.get(..usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn device_mappings_are_told_from_others() {
        let line = b"7ffff0edb000-7ffff0eeb000 rw-s 00000000 00:06 123                        /dev/nvidiactl";
        assert_eq!(device_mapping(line), Some((0x7fff_f0ed_b000, 0x7fff_f0ee_b000)));
        assert_eq!(device_mapping(b"7ffff0edb000-7ffff0eeb000 rw-p 00000000 00:00 0 [heap]"), None);
        assert_eq!(device_mapping(b"7ff-800 r-xp 0 0:6 1 /usr/lib/dev/nvidia.so"), None);
        assert_eq!(device_mapping(b"xyz-800 r-xp 0 0:6 1 /dev/nvidia0"), None);
        assert_eq!(device_mapping(b"/dev/nvidia0"), None);
    }

    #[test]
    fn files_of_the_run_directory_are_told_from_others() {
        let directory = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(directory.path().join("first-pages")).unwrap();
        let own = directory.path().as_os_str().as_bytes();
        assert_eq!(is_of(file.as_raw_fd(), own), Some(Whose::Ours));
        assert_eq!(is_of(file.as_raw_fd(), &own[..own.len() - 1]), None, "it is another one's");
        std::fs::remove_file(directory.path().join("first-pages")).unwrap();
        assert_eq!(is_of(file.as_raw_fd(), own), Some(Whose::Ours));
    }

    #[test]
    fn every_descriptor_and_every_line_is_seen() {
        let file = std::fs::File::open("/dev/zero").unwrap();
        let mut seen = Vec::new();
        each_descriptor(|descriptor| seen.push(descriptor));
        assert!(seen.contains(&file.as_raw_fd()), "{seen:?}");
        assert_eq!(is_of(file.as_raw_fd(), b"/dev"), None, "it is no regular file");
        let mut lines = 0;
        each_line(c"/proc/self/maps", |line| lines += usize::from(line.contains(&b'-')));
        assert!(lines > 10);
        each_line(c"/nowhere", |_| panic!("there is no such file"));
    }
}
