//! The arguments of `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`, as bytes.
//!
//! The layout is fixed and little-endian, whatever the rank; rows past the rank are zero:
//!
//! ```text
//!   0  data type u32 · rank u32 · address u64
//!  16  dimensions 5 × u64 · strides 4 × u64 (bytes, of dimensions 1 and up)
//!  88  element strides 5 × u32 · interleave u32 · swizzle u32 · L2 promotion u32 · out of bounds fill u32
//! 124  tiled: box 5 × u32 · zero 3 × u32
//!      im2col: lower corner 3 × i32 · upper corner 3 × i32 · channels u32 · pixels u32
//! 156
//! ```

/// Bytes of the packed form.
pub const TENSOR_MAP_ARGUMENTS: usize = 156;

/// What both encodings take; enums as their header values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapArguments {
    pub data_type: u32,
    pub rank: u32,
    pub address: u64,
    pub dimensions: [u64; 5],
    pub strides: [u64; 4],
    pub element_strides: [u32; 5],
    pub interleave: u32,
    pub swizzle: u32,
    pub l2_promotion: u32,
    pub out_of_bounds_fill: u32,
    pub window: TensorMapWindow,
}

/// The part of the tensor that one copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorMapWindow {
    Tiled { sides: [u32; 5] },
    Im2col { lower: [i32; 3], upper: [i32; 3], channels: u32, pixels: u32 },
}

impl TensorMapArguments {
    /// The `kind` of [`crate::Device::tensor_map`].
    pub fn kind(&self) -> u32 {
        match self.window {
            TensorMapWindow::Tiled { .. } => 0,
            TensorMapWindow::Im2col { .. } => 1,
        }
    }

    pub fn to_bytes(&self) -> [u8; TENSOR_MAP_ARGUMENTS] {
        let mut bytes = Vec::with_capacity(TENSOR_MAP_ARGUMENTS);
        let mut word = |value: u32| bytes.extend_from_slice(&value.to_le_bytes());
        word(self.data_type);
        word(self.rank);
        for value in std::iter::once(&self.address).chain(&self.dimensions).chain(&self.strides) {
            word(*value as u32);
            word((*value >> 32) as u32);
        }
        self.element_strides.into_iter().for_each(&mut word);
        [self.interleave, self.swizzle, self.l2_promotion, self.out_of_bounds_fill]
            .into_iter()
            .for_each(&mut word);
        match self.window {
            TensorMapWindow::Tiled { sides } => sides.into_iter().chain([0; 3]).for_each(&mut word),
            TensorMapWindow::Im2col { lower, upper, channels, pixels } => {
                lower.into_iter().chain(upper).for_each(|corner| word(corner as u32));
                word(channels);
                word(pixels);
            }
        }
        let mut packed = [0; TENSOR_MAP_ARGUMENTS];
        packed.copy_from_slice(&bytes);
        packed
    }

    /// `None` for an unknown kind, another length, or a rank that is not 1 to 5.
    pub fn from_bytes(kind: u32, bytes: &[u8]) -> Option<TensorMapArguments> {
        let bytes: &[u8; TENSOR_MAP_ARGUMENTS] = bytes.try_into().ok()?;
        let word = |index: usize| {
            let at = 4 * index;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |index: usize| u64::from(word(index)) | u64::from(word(index + 1)) << 32;
        let corner = |first: usize| std::array::from_fn(|i| word(first + i) as i32);
        let rank = word(1);
        if !(1..=5).contains(&rank) {
            return None;
        }
        Some(TensorMapArguments {
            data_type: word(0),
            rank,
            address: long(2),
            dimensions: std::array::from_fn(|i| long(4 + 2 * i)),
            strides: std::array::from_fn(|i| long(14 + 2 * i)),
            element_strides: std::array::from_fn(|i| word(22 + i)),
            interleave: word(27),
            swizzle: word(28),
            l2_promotion: word(29),
            out_of_bounds_fill: word(30),
            window: match kind {
                0 => TensorMapWindow::Tiled { sides: std::array::from_fn(|i| word(31 + i)) },
                1 => TensorMapWindow::Im2col {
                    lower: corner(31),
                    upper: corner(34),
                    channels: word(37),
                    pixels: word(38),
                },
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(window: TensorMapWindow) -> TensorMapArguments {
        TensorMapArguments {
            data_type: 7,
            rank: 3,
            address: 0x6000_1234_5678,
            dimensions: [1 << 33, 2, 3, 4, 5],
            strides: [16, 1 << 34, 48, 64],
            element_strides: [1, 2, 3, 4, 5],
            interleave: 0,
            swizzle: 3,
            l2_promotion: 2,
            out_of_bounds_fill: 1,
            window,
        }
    }

    #[test]
    fn both_kinds_come_back() {
        for window in [
            TensorMapWindow::Tiled { sides: [64, 32, 16, 8, 4] },
            TensorMapWindow::Im2col { lower: [-1, -2, -3], upper: [1, 2, 3], channels: 64, pixels: 128 },
        ] {
            let arguments = sample(window);
            assert_eq!(
                TensorMapArguments::from_bytes(arguments.kind(), &arguments.to_bytes()),
                Some(arguments)
            );
        }
    }

    #[test]
    fn the_layout_is_as_documented() {
        let bytes = sample(TensorMapWindow::Tiled { sides: [64, 32, 16, 8, 4] }).to_bytes();
        assert_eq!(bytes[8..16], 0x6000_1234_5678u64.to_le_bytes());
        assert_eq!(bytes[64..72], (1u64 << 34).to_le_bytes());
        assert_eq!(bytes[88], 1);
        assert_eq!(bytes[124], 64);
    }

    #[test]
    fn anything_else_is_refused() {
        let bytes = sample(TensorMapWindow::Tiled { sides: [1; 5] }).to_bytes();
        assert_eq!(TensorMapArguments::from_bytes(2, &bytes), None);
        assert_eq!(TensorMapArguments::from_bytes(0, &bytes[1..]), None);
        let mut ranked = bytes;
        ranked[4] = 6;
        assert_eq!(TensorMapArguments::from_bytes(0, &ranked), None);
    }
}
