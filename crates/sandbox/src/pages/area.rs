//! One area of a process's memory, as `mm-PID.img` describes it.
//!
//! Field numbers and bits are those of CRIU's published `vma.proto` and of the kernel's `mman.h`.

use std::ops::Range;

use crate::proto::Message;

pub const PAGE: u64 = 4096;

const START: u64 = 1;
const END: u64 = 2;
const OFFSET: u64 = 3;
const FILE: u64 = 4;
const PROTECTION: u64 = 5;
const FLAGS: u64 = 6;
const STATUS: u64 = 7;
const ADVICE: u64 = 9;
const OPEN_FLAGS: u64 = 10;

const MAP_PRIVATE: u64 = 0x2;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_HUGETLB: u64 = 0x40000;
const PROT_EXEC: u64 = 0x4;
/// Advice for children that a mapping cannot have (`MADV_WIPEONFORK`), or would lose with what is given back
/// (`MADV_DONTFORK`).
const FOR_CHILDREN: u64 = 1 << 18 | 1 << 10;

const REGULAR: u64 = 1 << 0;
const HEAP: u64 = 1 << 5;
const FILE_PRIVATE: u64 = 1 << 6;
const ANON_PRIVATE: u64 = 1 << 9;
const GUARD: u64 = 1 << 16;

/// How page files are opened.
pub const READ_LARGE: u64 = 0o100_000;

#[derive(Debug, Clone)]
pub struct Area {
    pub message: Message,
    pub span: Range<u64>,
    pub offset: u64,
    /// The id of its file, for areas that have one.
    pub file: u64,
    flags: u64,
    status: u64,
}

impl Area {
    pub fn read(bytes: &[u8]) -> Option<Area> {
        let message = Message::read(bytes)?;
        let number = |field| message.number(field);
        let span = number(START)?..number(END)?;
        let aligned = span.start.is_multiple_of(PAGE) && span.end.is_multiple_of(PAGE);
        if span.is_empty() || !aligned {
            return None;
        }
        Some(Area {
            offset: number(OFFSET)?,
            file: number(FILE)?,
            flags: number(FLAGS)?,
            status: number(STATUS)?,
            span,
            message,
        })
    }

    /// A stand-in for a guard within another area, not an area.
    pub fn is_guard(&self) -> bool {
        self.status & GUARD != 0
    }

    pub fn is_private_mapping(&self) -> bool {
        self.status & !HEAP == REGULAR | FILE_PRIVATE && self.is_plain() && self.flags & MAP_ANONYMOUS == 0
    }

    /// Plain private anonymous memory, which a private mapping can stand for.
    pub fn is_anonymous(&self) -> bool {
        self.status & !HEAP == REGULAR | ANON_PRIVATE
            && self.is_plain()
            && self.flags & MAP_ANONYMOUS != 0
            && self.message.number(ADVICE).unwrap_or(0) & FOR_CHILDREN == 0
    }

    fn is_plain(&self) -> bool {
        self.flags & MAP_PRIVATE != 0 && self.flags & (MAP_GROWSDOWN | MAP_HUGETLB) == 0
    }

    /// Code may not be mapped from every file system.
    pub fn is_executable(&self) -> bool {
        self.message.number(PROTECTION).unwrap_or(0) & PROT_EXEC != 0
    }

    /// Whether nothing but its place in memory and in a file tells it from another.
    pub fn is_like(&self, other: &Area) -> bool {
        let anywhere = |area: &Area| {
            let mut message = area.message.clone();
            message.set(START, 0).set(END, 0).set(OFFSET, 0).set(FILE, 0);
            message
        };
        anywhere(self) == anywhere(other)
    }

    /// A part of it, which is to be mapped: its place in a file is still that of the whole.
    pub fn part(&self, span: Range<u64>) -> Area {
        let mut part = self.clone();
        part.message.set(START, span.start).set(END, span.end);
        part.span = span;
        part
    }

    /// Makes it a private mapping of that file from there on.
    pub fn map(&mut self, file: u64, offset: u64) {
        (self.offset, self.file) = (offset, file);
        self.flags &= !MAP_ANONYMOUS;
        self.status = self.status & !ANON_PRIVATE | FILE_PRIVATE;
        self.describe().set(OPEN_FLAGS, READ_LARGE);
    }

    /// Makes it anonymous memory.
    pub fn unmap(&mut self) {
        (self.offset, self.file) = (0, 0);
        self.flags |= MAP_ANONYMOUS;
        self.status = self.status & !FILE_PRIVATE | ANON_PRIVATE;
        self.describe().remove(OPEN_FLAGS);
    }

    fn describe(&mut self) -> &mut Message {
        self.message
            .set(OFFSET, self.offset)
            .set(FILE, self.file)
            .set(FLAGS, self.flags)
            .set(STATUS, self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Encoder;

    fn area(flags: u64, status: u64) -> Area {
        let mut out = Encoder::default();
        out.number(1, 0x1000).number(2, 0x3000).number(3, 0).number(4, 0).number(5, 3);
        out.number(6, flags).number(7, status).number(8, 1).number(77, 5);
        Area::read(&out.0).unwrap()
    }

    #[test]
    fn an_area_goes_to_a_mapping_and_back() {
        let mut area = area(MAP_PRIVATE | MAP_ANONYMOUS, REGULAR | ANON_PRIVATE | HEAP);
        assert!(area.is_anonymous() && !area.is_private_mapping());
        let before = area.message.clone();
        area.map(9, 0x7000);
        let written = Area::read(&area.message.write()).unwrap();
        for mapped in [&area, &written] {
            assert!(mapped.is_private_mapping() && !mapped.is_anonymous());
            assert_eq!((mapped.file, mapped.offset), (9, 0x7000));
        }
        area.unmap();
        assert_eq!(area.message, before);
        assert!(area.is_anonymous() && !area.is_private_mapping());
    }

    #[test]
    fn a_part_is_an_area_like_the_whole() {
        let whole = area(MAP_PRIVATE | MAP_ANONYMOUS, REGULAR | ANON_PRIVATE);
        let part = Area::read(&whole.part(0x2000..0x3000).message.write()).unwrap();
        assert!(part.is_anonymous());
        assert_eq!(part.span, 0x2000..0x3000);
    }

    #[test]
    fn areas_that_differ_in_their_place_alone_are_alike() {
        let whole = area(MAP_PRIVATE, REGULAR | FILE_PRIVATE);
        let mut part = whole.part(0x2000..0x3000);
        part.map(9, 0x7000);
        let mut first = whole.part(0x1000..0x2000);
        first.map(8, 0);
        assert!(part.is_like(&first));
        first.message.set(PROTECTION, 1);
        assert!(!part.is_like(&first));
    }

    #[test]
    fn special_areas_are_left_alone() {
        for (flags, status) in [
            (MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, REGULAR | ANON_PRIVATE),
            (MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, REGULAR | ANON_PRIVATE),
            (MAP_PRIVATE | MAP_ANONYMOUS, REGULAR | ANON_PRIVATE | 1 << 3),
            (MAP_PRIVATE | MAP_ANONYMOUS, REGULAR | ANON_PRIVATE | 1 << 15),
            (0x1 | MAP_ANONYMOUS, REGULAR | 1 << 8),
        ] {
            let area = area(flags, status);
            assert!(!area.is_anonymous() && !area.is_private_mapping(), "{flags:x} {status:x}");
        }
    }
}
