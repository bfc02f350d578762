//! What the kernel says of this process's memory: one area at a time, by a question about its address (Linux 6.11), or
//! else by reading `/proc/self/maps` through.

use std::ffi::CStr;
use std::ops::Range;

use super::direct::call;

/// Page files of anonymous memory, as `/proc/self/maps` names them.
const ANONYMOUS: &[u8] = b"/run/rekindle/pages/anon-";
/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const QUERY: usize = 3 << 30 | size_of::<Query>() << 16 | 0x66 << 8 | 17;
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
/// The longest line of `/proc/self/maps`: a path, every byte of it escaped, and some numbers.
const LONGEST_LINE: usize = 20 << 10;

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    area_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// One area of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    pub span: Range<usize>,
    pub protection: i32,
    /// A private mapping of a page file, in place of anonymous memory.
    pub is_converted: bool,
}

/// The kernel's list of areas, while it is open.
pub struct Areas {
    descriptor: i32,
    can_query: bool,
}

impl Areas {
    /// None where there is no `/proc` or no descriptor left.
    pub fn open() -> Option<Areas> {
        Self::read(c"/proc/self/maps")
    }

    fn read(path: &CStr) -> Option<Areas> {
        let path = path.as_ptr() as usize;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        // SAFETY: the path ends with a zero byte.
        let opened = unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) };
        (opened >= 0).then_some(Areas { descriptor: opened as i32, can_query: true })
    }

    /// The area at `address`, or the first one above it. `Err` where the kernel does not say.
    pub fn at_or_after(&mut self, address: usize) -> Result<Option<Area>, ()> {
        if self.can_query {
            let mut name = [0u8; 64];
            let mut query = Query {
                size: size_of::<Query>() as u64,
                flags: COVERING_OR_NEXT,
                address: address as u64,
                name_size: name.len() as u32,
                name: name.as_mut_ptr() as u64,
                ..Query::default()
            };
            let at = &raw mut query as usize;
            // SAFETY: the structure and the buffer that it names live until the call returns.
            let mut result = unsafe { call(libc::SYS_ioctl, [self.descriptor as usize, QUERY, at, 0, 0, 0]) };
            if result == -(libc::ENAMETOOLONG as isize) {
                // No page file has so long a name.
                query.size = size_of::<Query>() as u64;
                (query.flags, query.address) = (COVERING_OR_NEXT, address as u64);
                (query.name_size, query.name) = (0, 0);
                name.fill(0);
                // SAFETY: as above.
                result = unsafe { call(libc::SYS_ioctl, [self.descriptor as usize, QUERY, at, 0, 0, 0]) };
            }
            match -result as i32 {
                0 => return Ok(Some(answer(&query, &name))),
                libc::ENOENT => return Ok(None),
                _ => self.can_query = false,
            }
        }
        self.read_through(address)
    }

    fn read_through(&mut self, address: usize) -> Result<Option<Area>, ()> {
        self.find_line(|line| {
            let area = parse(line).ok_or(())?;
            Ok((area.span.end > address).then_some(area))
        })
    }

    /// The first line of which `found` makes something, from the beginning.
    fn find_line<T>(&self, mut found: impl FnMut(&[u8]) -> Result<Option<T>, ()>) -> Result<Option<T>, ()> {
        let mut buffer = [0u8; LONGEST_LINE];
        let (mut filled, mut offset) = (0, 0usize);
        loop {
            let room = [self.descriptor as usize, buffer[filled..].as_mut_ptr() as usize];
            // SAFETY: reads into the part of the buffer that is not filled.
            let got =
                unsafe { call(libc::SYS_pread64, [room[0], room[1], LONGEST_LINE - filled, offset, 0, 0]) };
            match got {
                0 => return Ok(None),
                got if got < 0 => return Err(()),
                got => (filled, offset) = (filled + got as usize, offset + got as usize),
            }
            let mut start = 0;
            while let Some(length) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
                if let Some(made) = found(&buffer[start..start + length])? {
                    return Ok(Some(made));
                }
                start += length + 1;
            }
            if start == 0 && filled == LONGEST_LINE {
                return Err(());
            }
            buffer.copy_within(start..filled, 0);
            filled -= start;
        }
    }
}

/// Whether children do not get the area at `address` (`MADV_DONTFORK`). This reads what the kernel says of all pages below
/// it, so it is asked only where that advice was given.
pub fn is_kept_from_children(address: usize) -> bool {
    let Some(areas) = Areas::read(c"/proc/self/smaps") else { return false };
    let mut is_it = false;
    let flags = areas.find_line(|line| {
        if let Some(area) = parse(line) {
            is_it = area.span.contains(&address);
        }
        let flags = line.strip_prefix(b"VmFlags:").filter(|_| is_it);
        Ok(flags.map(|flags| flags.windows(3).any(|flag| flag == b" dc")))
    });
    flags == Ok(Some(true))
}

impl Drop for Areas {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours alone.
        unsafe { call(libc::SYS_close, [self.descriptor as usize, 0, 0, 0, 0, 0]) };
    }
}

fn answer(query: &Query, name: &[u8]) -> Area {
    let bit = |flag, protection| if query.area_flags & flag != 0 { protection } else { 0 };
    Area {
        span: query.start as usize..query.end as usize,
        protection: bit(READABLE, libc::PROT_READ)
            | bit(WRITABLE, libc::PROT_WRITE)
            | bit(EXECUTABLE, libc::PROT_EXEC),
        is_converted: query.area_flags & SHARED == 0 && name.starts_with(ANONYMOUS),
    }
}

/// One line: `start-end rwxp offset major:minor inode   path`.
fn parse(line: &[u8]) -> Option<Area> {
    let dash = line.iter().position(|&byte| byte == b'-')?;
    let space = line.iter().position(|&byte| byte == b' ')?;
    let span = hexadecimal(&line[..dash])?..hexadecimal(line.get(dash + 1..space)?)?;
    let flags = line.get(space + 1..space + 5)?;
    let bit = |at: usize, letter, protection| if flags[at] == letter { protection } else { 0 };
    let protection =
        bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC);
    let path = line.iter().position(|&byte| byte == b'/').map_or(&[][..], |at| &line[at..]);
    Some(Area { span, protection, is_converted: flags[3] == b'p' && path.starts_with(ANONYMOUS) })
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    let mut value = 0usize;
    for digit in digits {
        value = value.checked_mul(16)?.checked_add((*digit as char).to_digit(16)? as usize)?;
    }
    (!digits.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_tell_the_same() {
        let local = 0u8;
        let static_place = QUERY_TEXT.as_ptr() as usize;
        for address in [&raw const local as usize, static_place, 0, 0x1000] {
            let mut asked = Areas::open().unwrap();
            let first = asked.at_or_after(address).unwrap().unwrap();
            let mut read = Areas::open().unwrap();
            read.can_query = false;
            assert_eq!(read.at_or_after(address).unwrap().unwrap(), first);
            assert!(first.span.end > address && !first.is_converted);
        }
        assert_eq!(Areas::open().unwrap().at_or_after(usize::MAX >> 1).unwrap_or(None), None);
    }

    static QUERY_TEXT: [u8; 4] = *b"text";

    #[test]
    fn what_children_do_not_get_is_told_by_its_area() {
        let (how, protection) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ);
        // SAFETY: new memory, where nothing is.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 3 * 4096, protection, how, -1, 0) } as usize;
        // SAFETY: advice about a page of this test's own.
        assert_eq!(unsafe { libc::madvise((at + 4096) as *mut _, 4096, libc::MADV_DONTFORK) }, 0);
        let told = [at, at + 4096, at + 8191, at + 8192].map(is_kept_from_children);
        assert_eq!(told, [false, true, true, false]);
    }

    #[test]
    fn lines_are_understood() {
        let line = b"7f00000-7f02000 rw-p 00000000 fe:00 12   /run/rekindle/pages/anon-1000";
        let area = parse(line).unwrap();
        assert_eq!(area.span, 0x7f0_0000..0x7f0_2000);
        assert_eq!(area.protection, libc::PROT_READ | libc::PROT_WRITE);
        assert!(area.is_converted);
        assert!(
            !parse(b"7f00000-7f02000 rw-s 00000000 fe:00 12 /run/rekindle/pages/anon-1")
                .unwrap()
                .is_converted
        );
        assert!(!parse(b"7f00000-7f02000 ---p 00000000 00:00 0").unwrap().is_converted);
        for bad in [&b""[..], b"x", b"7f-", b"7f-80 rw", b"zz-80 rwxp 0"] {
            assert!(parse(bad).is_none());
        }
    }
}
