//! What CRIU says to a page server before each lot of pages.

pub const ADD: u32 = 6;
pub const OPEN: u32 = 4;
pub const PARENT: u32 = 5;
pub const CLOSE: u32 = 0x1023;
pub const FORCE_CLOSE: u32 = 0x1024;
/// Of the flags: the pages come after the word.
pub const PRESENT: u32 = 1 << 2;

/// What CRIU says before pages: a command with flags, how many, where, and whose.
pub struct Word {
    pub command: u32,
    pub flags: u32,
    pub pages: u64,
    pub address: u64,
    pub id: u64,
}

impl Word {
    pub fn read(bytes: &[u8]) -> Word {
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(eight)
        };
        let first = number(0);
        let (word, count) = (first as u32, bytes.len() == 32);
        let pages = if count { number(8) } else { first >> 32 };
        let rest = bytes.len() - 16;
        Word {
            command: word & 0xffff,
            flags: word >> 16,
            // More than an address space has is a mistake that the copying tells of.
            pages: pages.min(1 << 40),
            address: number(rest),
            id: number(rest + 8),
        }
    }
}
