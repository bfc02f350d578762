//! The notes that ptxas leaves beside code (`.nv.info` and `.nv.info.KERNEL`).
//!
//! ```text
//!  note  format u8 · attribute u8 · value u16                       formats 1 to 3: none, a byte, a half word
//!        format u8 = 4 · attribute u8 · bytes u16 · value           format 4
//! ```

use crate::cubin::{Cubin, word16, word32};
use crate::error::{Error, Result};

pub const MAX_THREADS: u8 = 0x05;
pub const REQUIRED_THREADS: u8 = 0x10;
pub const FRAME_SIZE: u8 = 0x11;
pub const MIN_STACK_SIZE: u8 = 0x12;
pub const PARAMETER: u8 = 0x17;
pub const DEVICE_LAUNCH_WRAPPER: u8 = 0x1f;
pub const DEVICE_LAUNCH_PATCH: u8 = 0x20;
pub const MAX_STACK_SIZE: u8 = 0x23;
pub const REGISTERS: u8 = 0x2f;
pub const CLUSTER: u8 = 0x3d;
pub const PARAMETER_LARGE: u8 = 0x45;

const SIZED: u8 = 4;

#[derive(Clone, Copy, Debug)]
pub struct Note<'a> {
    pub attribute: u8,
    /// The note as it stands, its head included.
    pub bytes: &'a [u8],
    /// Empty where the value stands in the head.
    pub value: &'a [u8],
}

impl Note<'_> {
    pub fn word(&self, index: usize) -> Option<u32> {
        (self.value.len() >= index * 4 + 4).then(|| word32(self.value, index * 4))
    }

    /// The symbol that a note of the module is about.
    pub fn symbol(&self) -> Option<u32> {
        let about = matches!(self.attribute, REGISTERS | FRAME_SIZE | MIN_STACK_SIZE | MAX_STACK_SIZE);
        if about { self.word(0) } else { None }
    }
}

/// The notes of a section, in order.
pub fn notes<'a>(cubin: &Cubin<'a>, section: usize) -> Result<Vec<Note<'a>>> {
    let section = &cubin.sections[section];
    let data = section.data;
    let mut all = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let wrong = || Error::Note { section: section.name.to_owned(), at };
        let head = data.get(at..at + 4).ok_or_else(wrong)?;
        let size = if head[0] == SIZED { word16(head, 2) as usize } else { 0 };
        let bytes = data.get(at..at + 4 + size).ok_or_else(wrong)?;
        all.push(Note { attribute: head[1], bytes, value: &bytes[4..] });
        at += 4 + size;
    }
    Ok(all)
}
