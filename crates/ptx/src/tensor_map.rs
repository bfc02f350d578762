//! A tensor map of the emulated GPU: what a bulk copy of a tile has to know of a tensor, in the 128 bytes that programs hand on.
//!
//! ```text
//!   0  rank - 1 · element type · interleave · swizzle · fill · swizzle atomicity · L2 promotion · 0    u8 each
//!   8  address u64
//!  16  "RKTM"
//!  20  dimensions 5 × u32 (0: 2^32)
//!  40  strides 4 × u64 (bytes, of dimensions 1 and up)
//!  72  sides of a tile 5 × u32 · steps 5 × u32
//! 112  0
//! ```
//!
//! `tensormap.replace` writes one of these fields, by its number in PTX; [`TensorMap::decode`] finds what makes no sense.

pub const TENSOR_MAP_BYTES: usize = 128;
const MAGIC: &[u8; 4] = b"RKTM";
const SIDES: usize = 72;
const STEPS: usize = 92;
/// The largest tile, along each dimension.
const LARGEST_SIDE: u32 = 256;
const LARGEST_STEP: u32 = 8;

/// Bytes of an element, by its number in PTX: u8, u16, u32, s32, u64, s64, f16, f32, f32.ftz, f64, bf16, tf32, tf32.ftz.
const ELEMENTS: [u8; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4];
/// Those whose subnormal numbers become zero.
const FLUSHED: [u8; 2] = [8, 12];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorMap {
    /// A number of PTX.
    pub element: u8,
    /// 0 none; patterns of 32, 64 and 128 bytes.
    pub swizzle: u8,
    pub address: u64,
    /// As many as the tensor has dimensions.
    pub dimensions: Vec<u64>,
    /// Of dimension 1 and up.
    pub strides: Vec<u64>,
    pub sides: Vec<u32>,
    pub steps: Vec<u32>,
}

/// A field that `tensormap.replace` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// In the map.
    pub offset: u32,
    pub bytes: u8,
    /// How many there are of it, and how far apart.
    pub count: u32,
    pub apart: u32,
}

/// The field of that name.
pub(crate) fn field(name: &str) -> Option<Field> {
    let one = |offset, bytes| Some(Field { offset, bytes, count: 1, apart: 0 });
    let many = |offset, bytes: u8, count| Some(Field { offset, bytes, count, apart: bytes.into() });
    match name {
        "rank" => one(0, 1),
        "elemtype" => one(1, 1),
        "interleave_layout" => one(2, 1),
        "swizzle_mode" => one(3, 1),
        "fill_mode" => one(4, 1),
        "swizzle_atomicity" => one(5, 1),
        "global_address" => one(8, 8),
        "global_dim" => many(20, 4, 5),
        "global_stride" => many(40, 8, 4),
        "box_dim" => many(SIDES as u32, 4, 5),
        "element_stride" => many(STEPS as u32, 4, 5),
        _ => None,
    }
}

impl TensorMap {
    /// Bytes of an element; none for what is no type here.
    pub fn element_bytes(&self) -> Option<u64> {
        ELEMENTS.get(usize::from(self.element)).map(|bytes| u64::from(*bytes))
    }

    pub(crate) fn flushes(&self) -> bool {
        FLUSHED.contains(&self.element)
    }

    /// How many elements of each dimension a tile has.
    pub(crate) fn counts(&self) -> Vec<u64> {
        let steps = self.steps.iter().enumerate().map(|(at, step)| if at == 0 { 1 } else { *step });
        self.sides.iter().zip(steps).map(|(side, step)| u64::from(side.div_ceil(step.max(1)))).collect()
    }

    /// What is wrong with it, if something is.
    fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("a tensor map {what}"));
        let rank = self.dimensions.len();
        let Some(bytes) = self.element_bytes() else {
            return wrong(format!(
                "has elements of type {}, which is none of the emulated GPU's",
                self.element
            ));
        };
        if !(1..=5).contains(&rank)
            || self.sides.len() != rank
            || self.steps.len() != rank
            || self.strides.len() + 1 != rank
        {
            return wrong(format!("has {rank} dimensions, where 1 to 5 can be"));
        }
        if !self.address.is_multiple_of(16) {
            return wrong(format!("begins at {:#x}, which is not a multiple of 16", self.address));
        }
        if let Some(stride) =
            self.strides.iter().find(|stride| !stride.is_multiple_of(16) || **stride >> 40 != 0)
        {
            return wrong(format!(
                "has a stride of {stride} bytes, which is not a multiple of 16 below 2^40"
            ));
        }
        if let Some(side) = self.sides.iter().find(|side| !(1..=LARGEST_SIDE).contains(*side)) {
            return wrong(format!("has a tile with a side of {side}, where 1 to {LARGEST_SIDE} can be"));
        }
        if let Some(step) = self.steps.iter().find(|step| !(1..=LARGEST_STEP).contains(*step)) {
            return wrong(format!("has a step of {step}, where 1 to {LARGEST_STEP} can be"));
        }
        if self.dimensions.iter().any(|dimension| *dimension == 0 || *dimension > 1 << 32) {
            return wrong("has a dimension that is empty or longer than 2^32".to_string());
        }
        let row = u64::from(self.sides[0]) * bytes;
        let span = 16 << self.swizzle.min(3);
        if !row.is_multiple_of(16) || self.swizzle > 3 || self.swizzle > 0 && row > span {
            return wrong(format!("has rows of {row} bytes in a tile, which fit no swizzle of {span} bytes"));
        }
        Ok(())
    }

    /// The bytes that a program hands on.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], String> {
        self.check()?;
        let mut bytes = [0; TENSOR_MAP_BYTES];
        bytes[0] = self.dimensions.len() as u8 - 1;
        bytes[1] = self.element;
        bytes[3] = self.swizzle;
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..20].copy_from_slice(MAGIC);
        let words = |at: usize, values: Vec<u32>, bytes: &mut [u8]| {
            for (number, value) in values.iter().enumerate() {
                bytes[at + 4 * number..][..4].copy_from_slice(&value.to_le_bytes());
            }
        };
        words(20, self.dimensions.iter().map(|dimension| *dimension as u32).collect(), &mut bytes);
        for (number, stride) in self.strides.iter().enumerate() {
            bytes[40 + 8 * number..][..8].copy_from_slice(&stride.to_le_bytes());
        }
        words(SIDES, self.sides.clone(), &mut bytes);
        words(STEPS, self.steps.clone(), &mut bytes);
        Ok(bytes)
    }

    /// What is in the bytes; a sentence if they describe nothing that can be copied.
    pub fn decode(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<TensorMap, String> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if &bytes[16..20] != MAGIC {
            return Err("what was given as a tensor map is none".to_string());
        }
        if bytes[2] != 0 || bytes[4] != 0 || bytes[5] != 0 {
            return Err(
                "a tensor map has an interleaved layout, a fill or a swizzle that the emulated GPU lacks"
                    .to_string(),
            );
        }
        let rank = usize::from(bytes[0]).min(5) + 1;
        let map = TensorMap {
            element: bytes[1],
            swizzle: bytes[3],
            address: long(8),
            dimensions: (0..rank.min(5))
                .map(|at| {
                    Some(u64::from(word(20 + 4 * at))).filter(|dimension| *dimension > 0).unwrap_or(1 << 32)
                })
                .collect(),
            strides: (0..rank.min(5) - 1).map(|at| long(40 + 8 * at)).collect(),
            sides: (0..rank).map(|at| word(SIDES + 4 * at)).collect(),
            steps: (0..rank.min(5)).map(|at| word(STEPS + 4 * at)).collect(),
        };
        map.check()?;
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> TensorMap {
        TensorMap {
            element: 7,
            swizzle: 3,
            address: 0x6000_0000_0000,
            dimensions: vec![100, 1 << 32, 7],
            strides: vec![400, 1 << 39],
            sides: vec![32, 4, 2],
            steps: vec![1, 1, 2],
        }
    }

    #[test]
    fn a_map_reads_back_and_fields_are_where_they_are_written() {
        let mut bytes = sample().encode().unwrap();
        assert_eq!(TensorMap::decode(&bytes).unwrap(), sample());
        let dimension = field("global_dim").unwrap();
        let at = (dimension.offset + 2 * dimension.apart) as usize;
        bytes[at..at + 4].copy_from_slice(&9u32.to_le_bytes());
        bytes[field("swizzle_mode").unwrap().offset as usize] = 0;
        assert_eq!(
            TensorMap::decode(&bytes).unwrap(),
            TensorMap { dimensions: vec![100, 1 << 32, 9], swizzle: 0, ..sample() }
        );
        assert_eq!(sample().counts(), [32, 4, 1]);
    }

    #[test]
    fn what_cannot_be_copied_is_told() {
        assert!(TensorMap::decode(&[0; TENSOR_MAP_BYTES]).unwrap_err().contains("is none"));
        let wrong = |change: fn(&mut TensorMap)| {
            let mut map = sample();
            change(&mut map);
            map.encode().unwrap_err()
        };
        assert!(wrong(|map| map.address += 8).contains("multiple of 16"));
        assert!(wrong(|map| map.strides[0] = 8).contains("stride of 8"));
        assert!(wrong(|map| map.sides[1] = 257).contains("side of 257"));
        assert!(wrong(|map| map.steps[1] = 9).contains("step of 9"));
        assert!(wrong(|map| map.sides[0] = 64).contains("256 bytes"));
        assert!(wrong(|map| map.element = 13).contains("type 13"));
        let mut bytes = sample().encode().unwrap();
        bytes[0] = 200;
        assert!(TensorMap::decode(&bytes).unwrap_err().contains("dimensions"));
    }
}
