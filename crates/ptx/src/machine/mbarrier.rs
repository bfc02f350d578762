//! `mbarrier` objects: 64 bits in shared memory.
//!
//! ```text
//!  63      62..42             41..21          20..0
//!  phase   bytes outstanding  pending count   expected count
//! ```
//! Counts are below 2^20, as documented; outstanding bytes are signed.

use super::step::{Exec, StepError, Stop};
use super::warp::{Path, lanes};
use crate::alu::LANES;
use crate::program::Mbarrier;
use crate::types::Space;

const FIELD: u64 = (1 << 21) - 1;

#[derive(Clone, Copy)]
struct State {
    phase: bool,
    bytes: i64,
    pending: u64,
    expected: u64,
}

impl State {
    fn unpack(bits: u64) -> Self {
        Self {
            phase: bits >> 63 == 1,
            bytes: (bits << 1) as i64 >> 43,
            pending: bits >> 21 & FIELD,
            expected: bits & FIELD,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.phase) << 63
            | (self.bytes as u64 & FIELD) << 42
            | (self.pending & FIELD) << 21
            | self.expected & FIELD
    }

    /// Ends the phase if nothing is outstanding.
    fn settled(mut self) -> Self {
        if self.pending == 0 && self.bytes == 0 {
            self.phase = !self.phase;
            self.pending = self.expected;
        }
        self
    }

    fn arrive(mut self, count: u64) -> Self {
        self.pending = self.pending.saturating_sub(count);
        self.settled()
    }
}

impl Exec<'_> {
    #[allow(clippy::too_many_arguments, reason = "the operands of one instruction")]
    pub fn mbarrier(
        &mut self,
        path: &Path,
        kind: Mbarrier,
        space: Space,
        offset: i64,
        result: u32,
        sources: &[u32],
        mask: u32,
    ) -> Result<(), Stop> {
        let addresses = *self.row(path, sources[0]);
        if kind == Mbarrier::PendingCount {
            let counts = addresses.map(|state| State::unpack(state).pending);
            self.set(path, result, &counts, mask);
            return Ok(());
        }
        let values = *self.row(path, sources[1]);
        let mut out = [0; LANES];
        for lane in lanes(mask) {
            let address = addresses[lane].wrapping_add_signed(offset);
            out[lane] = self
                .mbarrier_lane(lane, kind, space, address, values[lane])
                .map_err(|trouble| trouble.at(lane))?;
        }
        self.set(path, result, &out, mask);
        Ok(())
    }

    fn mbarrier_lane(
        &mut self,
        lane: usize,
        kind: Mbarrier,
        space: Space,
        address: u64,
        value: u64,
    ) -> Result<u64, StepError> {
        let before = self.read(lane, space, address, 8)?;
        let mut state = State::unpack(before);
        let mut result = before;
        match kind {
            Mbarrier::Init => {
                let count = value & 0xf_ffff;
                state = State { phase: false, bytes: 0, pending: count, expected: count };
            }
            Mbarrier::Arrive { drop } => {
                let count = value as u32 as u64;
                if drop {
                    state.expected = state.expected.saturating_sub(count);
                }
                state = state.arrive(count);
            }
            Mbarrier::ArriveExpect => {
                state.bytes += value as u32 as i64;
                state = state.arrive(1);
            }
            Mbarrier::Expect => state.bytes += value as u32 as i64,
            Mbarrier::Complete => {
                state.bytes -= value as u32 as i64;
                state = state.settled();
            }
            Mbarrier::Test => result = u64::from(state.phase != State::unpack(value).phase),
            Mbarrier::TestParity => result = u64::from(u64::from(state.phase) != value & 1),
            Mbarrier::Invalidate | Mbarrier::PendingCount => {}
        }
        let after = state.pack();
        if after != before || kind == Mbarrier::Init {
            self.write(lane, space, address, 8, after)?;
        }
        Ok(result)
    }

    /// Bytes of a copy have arrived.
    pub fn complete_bytes(&mut self, lane: usize, address: u64, bytes: u64) -> Result<(), StepError> {
        self.mbarrier_lane(lane, Mbarrier::Complete, Space::Shared, address, bytes).map(|_| ())
    }
}
