//! CUDA arrays: memory whose layout is the device's own, and copies from and to them.
//!
//! The types are generic over what stands for an array: the client's number for it, or the device's [`Array`](crate::Array).

use serde::{Deserialize, Serialize};

/// `CUDA_ARRAY3D_LAYERED`: the depth counts layers.
pub const ARRAY_LAYERED: u32 = 1;
/// `CUDA_ARRAY3D_SURFACE_LDST`.
pub const ARRAY_SURFACE: u32 = 2;
/// `CUDA_ARRAY3D_CUBEMAP`: the depth counts faces.
pub const ARRAY_CUBEMAP: u32 = 4;

/// `CUarray_format`, as far as arrays of it can be kept: formats with one scalar a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ArrayFormat {
    U8,
    U16,
    U32,
    I8,
    I16,
    I32,
    F16,
    F32,
}

impl ArrayFormat {
    const ALL: [(ArrayFormat, u32); 8] = [
        (ArrayFormat::U8, 0x01),
        (ArrayFormat::U16, 0x02),
        (ArrayFormat::U32, 0x03),
        (ArrayFormat::I8, 0x08),
        (ArrayFormat::I16, 0x09),
        (ArrayFormat::I32, 0x0a),
        (ArrayFormat::F16, 0x10),
        (ArrayFormat::F32, 0x20),
    ];

    /// By its number in the header; none for another.
    pub fn new(number: u32) -> Option<ArrayFormat> {
        ArrayFormat::ALL.into_iter().find(|(_, known)| *known == number).map(|(format, _)| format)
    }

    pub fn number(self) -> u32 {
        ArrayFormat::ALL.into_iter().find(|(format, _)| *format == self).map_or(0, |(_, number)| number)
    }

    /// Bytes of a channel.
    pub fn bytes(self) -> u64 {
        match self {
            ArrayFormat::U8 | ArrayFormat::I8 => 1,
            ArrayFormat::U16 | ArrayFormat::I16 | ArrayFormat::F16 => 2,
            ArrayFormat::U32 | ArrayFormat::I32 | ArrayFormat::F32 => 4,
        }
    }
}

/// An array as `CUDA_ARRAY3D_DESCRIPTOR` describes it, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayDescription {
    pub width: u64,
    /// 0 for an array of one dimension.
    pub height: u64,
    /// 0 for one of at most two, unless it has layers.
    pub depth: u64,
    pub format: ArrayFormat,
    pub channels: u32,
    pub flags: u32,
    /// None for an array without mipmaps.
    pub levels: Option<u32>,
}

impl ArrayDescription {
    pub fn element_bytes(&self) -> u64 {
        self.format.bytes() * u64::from(self.channels)
    }

    pub fn is_layered(&self) -> bool {
        self.flags & (ARRAY_LAYERED | ARRAY_CUBEMAP) != 0
    }

    /// Bytes of a row, rows and slices (or layers) of a level.
    pub fn extent(&self, level: u32) -> [u64; 3] {
        let half = |size: u64| size.checked_shr(level).unwrap_or(0).max(1);
        let depth = if self.is_layered() { self.depth.max(1) } else { half(self.depth) };
        [half(self.width).saturating_mul(self.element_bytes()), half(self.height), depth]
    }

    /// Bytes of a level whose rows lie one behind the other.
    pub fn level_bytes(&self, level: u32) -> u64 {
        self.extent(level).into_iter().fold(1, u64::saturating_mul)
    }

    /// The levels, each by its number: one for an array without mipmaps.
    pub fn all_levels(&self) -> std::ops::Range<u32> {
        0..self.levels.unwrap_or(1)
    }

    /// Bytes of all levels. A device may take more for them.
    pub fn bytes(&self) -> u64 {
        self.all_levels().map(|level| self.level_bytes(level)).fold(0, u64::saturating_add)
    }
}

/// A level of an array with mipmaps, or an array without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArrayLevel<A> {
    pub array: A,
    pub level: Option<u32>,
}

impl<A> ArrayLevel<A> {
    pub fn try_map<B, E>(self, map: impl FnOnce(A) -> Result<B, E>) -> Result<ArrayLevel<B>, E> {
        Ok(ArrayLevel { array: map(self.array)?, level: self.level })
    }
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyEnd<A> {
    /// Device memory or registered host memory.
    Linear { address: u64, pitch: u64, slice: u64 },
    /// `x` in bytes; `z` is a slice or a layer.
    Array { at: ArrayLevel<A>, x: u64, y: u64, z: u64 },
}

impl<A> CopyEnd<A> {
    pub fn array(&self) -> Option<&ArrayLevel<A>> {
        match self {
            CopyEnd::Linear { .. } => None,
            CopyEnd::Array { at, .. } => Some(at),
        }
    }

    fn try_map<B, E>(self, map: impl FnOnce(A) -> Result<B, E>) -> Result<CopyEnd<B>, E> {
        Ok(match self {
            CopyEnd::Linear { address, pitch, slice } => CopyEnd::Linear { address, pitch, slice },
            CopyEnd::Array { at, x, y, z } => CopyEnd::Array { at: at.try_map(map)?, x, y, z },
        })
    }
}

/// A copy of `width` × `height` × `depth` (bytes × rows × slices) of which at least one side is an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayCopy<A> {
    pub to: CopyEnd<A>,
    pub from: CopyEnd<A>,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl<A> ArrayCopy<A> {
    pub fn try_map<B, E>(self, mut map: impl FnMut(A) -> Result<B, E>) -> Result<ArrayCopy<B>, E> {
        let ArrayCopy { to, from, width, height, depth } = self;
        let (to, from) = (to.try_map(&mut map)?, from.try_map(&mut map)?);
        Ok(ArrayCopy { to, from, width, height, depth })
    }

    pub fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: ArrayDescription = ArrayDescription {
        width: 7,
        height: 5,
        depth: 3,
        format: ArrayFormat::F32,
        channels: 2,
        flags: 0,
        levels: None,
    };

    #[test]
    fn formats_have_the_numbers_of_the_header() {
        for (format, number) in ArrayFormat::ALL {
            assert_eq!((ArrayFormat::new(number), format.number()), (Some(format), number));
        }
        assert_eq!(ArrayFormat::new(0xb0), None);
    }

    #[test]
    fn levels_halve_and_layers_stay() {
        let mipmapped = ArrayDescription { levels: Some(3), ..PLAIN };
        assert_eq!(
            (0..3).map(|level| mipmapped.extent(level)).collect::<Vec<_>>(),
            [[56, 5, 3], [24, 2, 1], [8, 1, 1]]
        );
        assert_eq!(mipmapped.bytes(), 56 * 15 + 48 + 8);
        let layered = ArrayDescription { flags: ARRAY_LAYERED, height: 0, levels: Some(2), ..PLAIN };
        assert_eq!(layered.extent(1), [24, 1, 3]);
        assert_eq!(PLAIN.bytes(), 56 * 15);
    }
}
