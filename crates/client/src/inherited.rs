//! What a forked child has of the real driver: nothing that it could use, and device files that CRIU could not dump.
//!
//! The driver's mappings of device files become memory without contents, its descriptors of them become `/dev/null`:
//! what the driver may still do with them at the child's end finds something harmless in their places.

use std::ffi::{CStr, c_int, c_void};

/// The driver's device files, as `/proc` shows them.
const DEVICES: &[u8] = b"/dev/nvidia";

/// Lets go of the real driver's device files. For a process that was just forked: allocates nothing.
pub fn let_go() {
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
    if null >= 0 {
        each_descriptor(|descriptor| {
            if is_device(descriptor) {
                // SAFETY: the descriptor is the real driver's, which does not work in a forked process.
                unsafe { libc::dup3(null, descriptor, libc::O_CLOEXEC) };
            }
        });
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

/// Whether a descriptor is one of a device file of the driver.
fn is_device(descriptor: c_int) -> bool {
    // SAFETY: the structure is plain data, filled by the call.
    let status = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::fstat(descriptor, &mut status) != 0 {
            return false;
        }
        status
    };
    if status.st_mode & libc::S_IFMT != libc::S_IFCHR {
        return false;
    }
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let (mut number, mut digits) = (descriptor.max(0) as u32, [0u8; 10]);
    let mut count = 0;
    while count == 0 || number > 0 {
        digits[count] = b'0' + (number % 10) as u8;
        number /= 10;
        count += 1;
    }
    for (at, digit) in digits[..count].iter().rev().enumerate() {
        path[14 + at] = *digit;
    }
    let mut target = [0u8; 64];
    // SAFETY: the path ends in NUL; writes no more than the buffer takes.
    let length = unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    usize::try_from(length).is_ok_and(|length| target[..length].starts_with(DEVICES))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

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
    fn every_descriptor_and_every_line_is_seen() {
        let file = std::fs::File::open("/dev/zero").unwrap();
        let mut seen = Vec::new();
        each_descriptor(|descriptor| seen.push(descriptor));
        assert!(seen.contains(&file.as_raw_fd()), "{seen:?}");
        assert!(!is_device(file.as_raw_fd()));
        let mut lines = 0;
        each_line(c"/proc/self/maps", |line| lines += usize::from(line.contains(&b'-')));
        assert!(lines > 10);
        each_line(c"/nowhere", |_| panic!("there is no such file"));
    }
}
