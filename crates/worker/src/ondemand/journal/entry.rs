//! One request in the journal.

use rekindle_protocol::operation::{
    Asynchronous, EventCreate, EventDestroy, EventRecord, FunctionCache, FunctionGet, FunctionSet,
    MemoryAllocate, MemoryAllocateAsync, MemoryFree, MemoryFreeAsync, PoolTrim, StreamCreate, StreamDestroy,
    Synchronous, Upload,
};

/// Bytes of an entry before its body.
pub(super) const HEAD: usize = 32;
/// The request had no effect.
pub(super) const FAILED: u32 = 1;
/// It was taken from its ring and is not done yet.
pub(super) const ASIDE: u32 = 2;
/// The bytes that it brought to the host are there, and their hash is here.
pub(super) const TOLD: u32 = 4;
/// It may be answered later.
pub(super) const WAIT: u32 = 8;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ondemand) struct Entry<'l> {
    pub ring: usize,
    pub opcode: u32,
    pub body: &'l [u8],
    pub trailer: &'l [u8],
    /// What an upload has brought along, and where that lies among the entries.
    pub staged: &'l [u8],
    pub staged_at: usize,
    pub ticket: u64,
    pub flags: Flags,
}

/// Operations that make something which later ones name.
pub(super) const MAKING: [u32; 12] = [
    FunctionGet::OPCODE,
    FunctionSet::OPCODE,
    FunctionCache::OPCODE,
    StreamCreate::OPCODE,
    StreamDestroy::OPCODE,
    EventCreate::OPCODE,
    EventDestroy::OPCODE,
    MemoryAllocate::OPCODE,
    MemoryAllocateAsync::OPCODE,
    MemoryFree::OPCODE,
    MemoryFreeAsync::OPCODE,
    PoolTrim::OPCODE,
];

/// What of a request lasts when all has ended: of those with the same, the last one counts.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Lasting {
    /// An event was recorded.
    Record(u32),
    /// So much of a ring's staging area was used.
    Staged(usize),
}

pub(super) fn lasting(entry: &Entry<'_>) -> Option<Lasting> {
    match entry.opcode {
        EventRecord::OPCODE => {
            let record = postcard::from_bytes::<EventRecord>(entry.body).ok()?;
            Some(Lasting::Record(record.event))
        }
        Upload::OPCODE => Some(Lasting::Staged(entry.ring)),
        _ => None,
    }
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::ondemand) struct Flags(pub(super) u32);

impl Flags {
    pub(in crate::ondemand) const ASIDE: Flags = Flags(ASIDE);

    pub(in crate::ondemand) const WAIT: Flags = Flags(WAIT);

    pub(in crate::ondemand) fn is_told(self) -> bool {
        self.0 & TOLD != 0
    }

    pub(in crate::ondemand) fn waits(self) -> bool {
        self.0 & WAIT != 0
    }

    pub(in crate::ondemand) fn has_failed(self) -> bool {
        self.0 & FAILED != 0
    }

    pub(in crate::ondemand) fn is_aside(self) -> bool {
        self.0 & ASIDE != 0
    }
}

/// The entry at a place, and where the next one is.
pub(super) fn read(bytes: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let (head, rest) = bytes.get(at..)?.split_at_checked(HEAD)?;
    let number = |n: usize| {
        let word = head.get(n * 4..n * 4 + 4)?;
        Some(u32::from_le_bytes(word.try_into().ok()?) as usize)
    };
    let (body, rest) = rest.split_at_checked(number(2)?)?;
    let (trailer, rest) = rest.split_at_checked(number(3)?)?;
    let (staged, _) = rest.split_at_checked(number(4)?)?;
    let staged_at = at + HEAD + body.len() + trailer.len();
    let ticket = u64::from_le_bytes(head.get(24..32)?.try_into().ok()?);
    let (ring, opcode, flags) = (number(0)?, number(1)? as u32, Flags(number(5)? as u32));
    let entry = Entry { ring, opcode, body, trailer, staged, staged_at, ticket, flags };
    Some((entry, staged_at + staged.len()))
}
