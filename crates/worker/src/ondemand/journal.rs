//! Requests that were done before all memory was there, kept so that they can be done once more.
//!
//! ```text
//!   entry:  ring, opcode, body, trailer, staged (u32 each: number or length)   body   trailer   staged bytes
//! ```

use rekindle_protocol::operation::{Asynchronous, Upload};

/// More bytes than this are not kept: what would come then waits until all memory is there.
const MOST_BYTES: usize = 64 << 20;
const HEAD: usize = 20;

#[derive(Default)]
pub(super) struct Log {
    bytes: Vec<u8>,
    /// Where the last entry begins.
    last: usize,
    /// For each ring, up to where its staging area was used; and what that was before the last entry.
    staged: Vec<u64>,
    staged_before: Vec<u64>,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entry<'l> {
    pub ring: usize,
    pub opcode: u32,
    pub body: &'l [u8],
    pub trailer: &'l [u8],
    /// What an upload has brought along, and where that lies in the log.
    pub staged: &'l [u8],
    pub staged_at: usize,
}

impl Log {
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.bytes.len() + HEAD + more <= MOST_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn push(&mut self, ring: usize, opcode: u32, body: &[u8], trailer: &[u8], staged: &[u8]) {
        self.last = self.bytes.len();
        self.staged_before.clone_from(&self.staged);
        for number in [ring, opcode as usize, body.len(), trailer.len(), staged.len()] {
            self.bytes.extend_from_slice(&(number as u32).to_le_bytes());
        }
        for part in [body, trailer, staged] {
            self.bytes.extend_from_slice(part);
        }
        if opcode == Upload::OPCODE
            && let Ok(upload) = postcard::from_bytes::<Upload>(body)
        {
            self.staged.resize(self.staged.len().max(ring + 1), 0);
            self.staged[ring] = self.staged[ring].max(upload.end);
        }
    }

    /// Forgets the last entry: it had no effect. What it brought along was taken from the staging area all the same.
    pub(super) fn pop(&mut self) {
        self.bytes.truncate(self.last);
    }

    /// Forgets the last entry: its request is still to be taken from its ring.
    pub(super) fn put_back(&mut self) {
        self.pop();
        self.staged.clone_from(&self.staged_before);
    }

    /// Up to where each ring's staging area was used.
    pub(super) fn staged(&self) -> &[u64] {
        &self.staged
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The entries of a log's bytes, in their order; `None` after one that is cut short.
pub(super) fn entries(bytes: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (head, rest) = bytes.get(at..)?.split_at_checked(HEAD)?;
        let number = |n: usize| {
            let word = head.get(n * 4..n * 4 + 4)?;
            Some(u32::from_le_bytes(word.try_into().ok()?) as usize)
        };
        let (body, rest) = rest.split_at_checked(number(2)?)?;
        let (trailer, rest) = rest.split_at_checked(number(3)?)?;
        let (staged, _) = rest.split_at_checked(number(4)?)?;
        let staged_at = at + HEAD + body.len() + trailer.len();
        at = staged_at + staged.len();
        Some(Entry { ring: number(0)?, opcode: number(1)? as u32, body, trailer, staged, staged_at })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_back_in_order_and_the_last_can_be_taken_back() {
        let mut log = Log::default();
        log.push(0, 7, b"body", b"", b"");
        log.push(3, 9, b"", b"trailer", b"staged");
        log.push(1, 8, b"gone", b"gone", b"gone");
        log.pop();
        let read: Vec<_> = entries(log.bytes()).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].ring, read[0].opcode, read[0].body), (0, 7, &b"body"[..]));
        assert_eq!((read[1].ring, read[1].opcode, read[1].trailer), (3, 9, &b"trailer"[..]));
        assert_eq!(read[1].staged, b"staged");
        let at = read[1].staged_at;
        assert_eq!(&log.bytes()[at..at + 6], b"staged");
        assert!(log.has_room(1) && !log.has_room(MOST_BYTES));
    }
}
