//! Asynchronous copies, complete when they are issued.

use super::step::{Exec, StepError, Stop};
use super::warp::{Path, lanes};
use crate::alu::Lanes;
use crate::types::Space;

impl Exec<'_> {
    /// `cp.async`
    pub fn copy(
        &mut self,
        path: &Path,
        bytes: u32,
        offsets: [i64; 2],
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        let [to, from, present] = [0, 1, 2].map(|index| *self.row(path, sources[index]));
        for lane in lanes(mask) {
            let (to, from) =
                (to[lane].wrapping_add_signed(offsets[0]), from[lane].wrapping_add_signed(offsets[1]));
            for at in (0..u64::from(bytes)).step_by(4) {
                // A source size that is not whole words is copied bytewise at its end.
                let left = (present[lane] as u32 as u64).saturating_sub(at).min(4);
                let mut word = 0;
                for byte in 0..left {
                    let value = self
                        .read(lane, Space::Generic, from + at + byte, 1)
                        .map_err(|trouble| trouble.at(lane))?;
                    word |= value << (8 * byte);
                }
                self.write(lane, Space::Shared, to + at, 4, word).map_err(|trouble| trouble.at(lane))?;
            }
        }
        Ok(())
    }

    /// `cp.async.bulk`
    pub fn bulk_copy(
        &mut self,
        path: &Path,
        to: Space,
        from: Space,
        signal: bool,
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        let rows: Vec<Lanes> = sources.iter().map(|source| *self.row(path, *source)).collect();
        for lane in lanes(mask) {
            let size = rows[2][lane] as u32 as u64;
            if !size.is_multiple_of(16) {
                return Err(StepError::Misaligned { address: size, align: 16 }.at(lane));
            }
            for at in (0..size).step_by(8) {
                let word = self
                    .read(lane, from, rows[1][lane].wrapping_add(at), 8)
                    .map_err(|trouble| trouble.at(lane))?;
                self.write(lane, to, rows[0][lane].wrapping_add(at), 8, word)
                    .map_err(|trouble| trouble.at(lane))?;
            }
            if signal {
                self.complete_bytes(lane, rows[3][lane], size).map_err(|trouble| trouble.at(lane))?;
            }
        }
        Ok(())
    }
}
