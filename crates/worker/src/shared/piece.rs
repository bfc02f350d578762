//! Copies between host and GPU, piece by piece.

use rekindle_device::{Copy3D, DEVICE_RANGE, Device, Result, Stream};

/// Which way bytes go over the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToGpu,
    ToHost,
}

impl Direction {
    pub const ALL: [Direction; 2] = [Direction::ToGpu, Direction::ToHost];

    /// None for what stays on the GPU, or in the host's memory.
    pub fn of(to: u64, from: u64) -> Option<Direction> {
        match (DEVICE_RANGE.contains(&to), DEVICE_RANGE.contains(&from)) {
            (true, false) => Some(Direction::ToGpu),
            (false, true) => Some(Direction::ToHost),
            _ => None,
        }
    }
}

/// What is left of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemainingCopy {
    copy: Copy3D,
    /// Where it goes on: slice, row and byte.
    at: (u64, u64, u64),
}

/// A part of a copy that is issued at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Bytes { to: u64, from: u64, bytes: u64 },
    Rows(Copy3D),
}

impl RemainingCopy {
    pub fn bytes(to: u64, from: u64, bytes: u64) -> RemainingCopy {
        let (to_pitch, to_slice, from_pitch, from_slice) = (bytes, bytes, bytes, bytes);
        let (width, height, depth) = (bytes, 1, 1);
        let copy = Copy3D { to, to_pitch, to_slice, from, from_pitch, from_slice, width, height, depth };
        RemainingCopy { copy, at: (0, 0, 0) }
    }

    pub fn rows(copy: &Copy3D) -> RemainingCopy {
        RemainingCopy { copy: *copy, at: (0, 0, 0) }
    }

    pub fn way(&self) -> Option<Direction> {
        Direction::of(self.copy.to, self.copy.from)
    }

    /// Target, source and length of one that is whole and has one row.
    pub fn line(&self) -> Option<(u64, u64, u64)> {
        let Copy3D { to, from, width, height, depth, .. } = self.copy;
        (self.at == (0, 0, 0) && height * depth == 1).then_some((to, from, width))
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        let Copy3D { width, height, depth, .. } = self.copy;
        let (slice, row, byte) = self.at;
        let all = width.saturating_mul(height).saturating_mul(depth);
        all.saturating_sub((slice * height + row) * width + byte)
    }

    /// Takes the next piece, of at most so many bytes, of which there is one.
    pub fn take(&mut self, most: u64) -> Piece {
        let Copy3D { width, height, depth, .. } = self.copy;
        let (slice, row, byte) = self.at;
        let most = most.max(1);
        if byte > 0 || width > most || height * depth == 1 {
            let bytes = (width - byte).min(most);
            let [to, from] = self.here();
            self.go_to(slice, row, byte + bytes);
            return Piece::Bytes { to: to + byte, from: from + byte, bytes };
        }
        let [to, from] = self.here();
        let slices = (most / (width * height)).min(depth - slice);
        if row == 0 && slices > 0 {
            self.go_to(slice + slices, 0, 0);
            return Piece::Rows(Copy3D { to, from, depth: slices, ..self.copy });
        }
        let rows = (most / width).min(height - row);
        self.go_to(slice, row + rows, 0);
        Piece::Rows(Copy3D { to, from, height: rows, depth: 1, ..self.copy })
    }

    /// Where the row begins on both sides.
    fn here(&self) -> [u64; 2] {
        let (slice, row, _) = self.at;
        let Copy3D { to, to_slice, to_pitch, from, from_slice, from_pitch, .. } = self.copy;
        [to + slice * to_slice + row * to_pitch, from + slice * from_slice + row * from_pitch]
    }

    fn go_to(&mut self, mut slice: u64, mut row: u64, mut byte: u64) {
        if byte == self.copy.width {
            (row, byte) = (row + 1, 0);
        }
        if row == self.copy.height {
            (slice, row) = (slice + 1, 0);
        }
        self.at = (slice, row, byte);
    }
}

impl Piece {
    pub fn bytes(&self) -> u64 {
        match self {
            Piece::Bytes { bytes, .. } => *bytes,
            Piece::Rows(copy) => copy.width * copy.height * copy.depth,
        }
    }

    pub fn issue(&self, device: &dyn Device, stream: Stream) -> Result<()> {
        match self {
            Piece::Bytes { to, from, bytes } => device.copy(*to, *from, *bytes, stream),
            Piece::Rows(copy) => device.copy_3d(copy, stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Where each byte of a copy goes to.
    fn bytes_of(copy: &Copy3D, into: &mut BTreeMap<u64, u64>) {
        for z in 0..copy.depth {
            for y in 0..copy.height {
                for x in 0..copy.width {
                    let to = copy.to + z * copy.to_slice + y * copy.to_pitch + x;
                    let from = copy.from + z * copy.from_slice + y * copy.from_pitch + x;
                    assert_eq!(into.insert(to, from), None, "{to} is written twice");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_copy_are_all_of_it(
            (width, height, depth) in (1u64..40, 1u64..6, 1u64..4),
            gaps in prop::array::uniform4(0u64..5),
            most in 1u64..200,
        ) {
            let (to_pitch, from_pitch) = (width + gaps[0], width + gaps[1]);
            let (to_slice, from_slice) = (to_pitch * height + gaps[2], from_pitch * height + gaps[3]);
            let copy = Copy3D { to: 1 << 20, to_pitch, to_slice, from: 7, from_pitch, from_slice, width, height, depth };
            let (mut expected, mut found) = (BTreeMap::new(), BTreeMap::new());
            bytes_of(&copy, &mut expected);
            let mut rest = RemainingCopy::rows(&copy);
            while rest.left() > 0 {
                let left = rest.left();
                let piece = rest.take(most);
                prop_assert!(piece.bytes() > 0 && piece.bytes() <= most);
                prop_assert_eq!(rest.left(), left - piece.bytes());
                match piece {
                    Piece::Rows(rows) => bytes_of(&rows, &mut found),
                    Piece::Bytes { to, from, bytes } => (0..bytes).for_each(|n| {
                        found.insert(to + n, from + n);
                    }),
                }
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_fits_is_one_piece() {
        let mut rest = RemainingCopy::bytes(100, 200, 50);
        assert_eq!(rest.take(50), Piece::Bytes { to: 100, from: 200, bytes: 50 });
        assert_eq!(rest.left(), 0);
        let device = DEVICE_RANGE.start;
        assert_eq!(Direction::of(device, 7), Some(Direction::ToGpu));
        assert_eq!(Direction::of(7, device), Some(Direction::ToHost));
        assert_eq!((Direction::of(device, device), Direction::of(7, 7)), (None, None));
    }
}
