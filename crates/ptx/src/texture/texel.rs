//! One element, and its channels as instructions get them.

use super::{Image, Unreadable};
use crate::alu::minifloat::{self, F16};
use crate::machine::access;

/// What a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TexelFormat {
    U8,
    U16,
    U32,
    I8,
    I16,
    I32,
    F16,
    F32,
}

impl TexelFormat {
    pub fn bytes(self) -> u64 {
        match self {
            TexelFormat::U8 | TexelFormat::I8 => 1,
            TexelFormat::U16 | TexelFormat::I16 | TexelFormat::F16 => 2,
            TexelFormat::U32 | TexelFormat::I32 | TexelFormat::F32 => 4,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, TexelFormat::F16 | TexelFormat::F32)
    }

    /// Whether channels can be read as fractions of their range.
    pub fn is_fraction(self) -> bool {
        matches!(self, TexelFormat::U8 | TexelFormat::U16 | TexelFormat::I8 | TexelFormat::I16)
    }

    /// The bits of an integer in 32.
    pub(super) fn integer(self, bits: u64) -> u32 {
        match self {
            TexelFormat::I8 => bits as u8 as i8 as u32,
            TexelFormat::I16 => bits as u16 as i16 as u32,
            _ => bits as u32,
        }
    }

    /// The channel as a number; integers are fractions of their range.
    pub(super) fn number(self, bits: u64) -> f32 {
        match self {
            TexelFormat::U8 => bits as u8 as f32 / 255.0,
            TexelFormat::U16 => bits as u16 as f32 / 65535.0,
            TexelFormat::I8 => (f32::from(bits as u8 as i8) / 127.0).max(-1.0),
            TexelFormat::I16 => (f32::from(bits as u16 as i16) / 32767.0).max(-1.0),
            TexelFormat::F16 => minifloat::decode(&F16, bits & 0xffff) as f32,
            TexelFormat::F32 => f32::from_bits(bits as u32),
            TexelFormat::U32 => bits as u32 as f32,
            TexelFormat::I32 => bits as u32 as i32 as f32,
        }
    }
}

/// The bits of an element's channels; those that it lacks are none. `at` lies inside.
pub(super) fn read(image: &Image, at: [u32; 3]) -> Result<[Option<u64>; 4], Unreadable> {
    let [x, y, z] = at.map(u64::from);
    let bytes = image.format.bytes();
    let element = image.address + z * image.slice + y * image.pitch + x * image.element_bytes();
    let mut channels = [None; 4];
    for (number, channel) in channels.iter_mut().take(usize::from(image.channels)).enumerate() {
        let address = element + number as u64 * bytes;
        *channel = Some(access::load(address, bytes as u8).map_err(|_| Unreadable(address))?);
    }
    Ok(channels)
}

/// Linear light of what was written as sRGB.
pub(super) fn from_srgb(value: f32) -> f32 {
    if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
}
