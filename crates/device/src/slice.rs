//! Address slices: programs whose slices differ can share a context.

use std::ops::Range;

use crate::{DEVICE_RANGE, PINNED_RANGE};

/// What a program may use of the addresses that workers choose, if it is to share contexts with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Slice(u32);

impl Slice {
    pub const FIRST: Slice = Slice(0);
    /// How many there are.
    pub const COUNT: u32 = 16;

    /// The one of this number, which is below [`Slice::COUNT`].
    pub fn new(number: u32) -> Option<Slice> {
        (number < Slice::COUNT).then_some(Slice(number))
    }

    pub fn all() -> impl Iterator<Item = Slice> {
        (0..Slice::COUNT).map(Slice)
    }

    pub fn number(self) -> u32 {
        self.0
    }

    /// Of device memory (512 GiB).
    pub fn device(self) -> Range<u64> {
        self.of(PROGRAM_RANGE)
    }

    /// Of pinned memory (256 GiB).
    pub fn pinned(self) -> Range<u64> {
        self.of(PINNED_RANGE)
    }

    fn of(self, whole: Range<u64>) -> Range<u64> {
        let bytes = (whole.end - whole.start) / u64::from(Slice::COUNT);
        let start = whole.start + u64::from(self.0) * bytes;
        start..start + bytes
    }
}

/// The lower half of the device range: devices are free to put module globals into the upper half.
pub const PROGRAM_RANGE: Range<u64> = DEVICE_RANGE.start..DEVICE_RANGE.start + (8 << 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_fill_their_ranges_side_by_side() {
        let (mut device, mut pinned) = (PROGRAM_RANGE.start, PINNED_RANGE.start);
        for slice in Slice::all() {
            assert_eq!((slice.device().start, slice.pinned().start), (device, pinned));
            (device, pinned) = (slice.device().end, slice.pinned().end);
        }
        assert_eq!((device, pinned), (PROGRAM_RANGE.end, PINNED_RANGE.end));
        assert_eq!(Slice::new(Slice::COUNT), None);
    }
}
