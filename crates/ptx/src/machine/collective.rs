//! Instructions that read other lanes of the warp.

use super::step::{Exec, Operands};
use super::warp::{Path, PathState, lanes};
use crate::alu::{LANES, Lanes};
use crate::program::{Shuffle, Vote};

impl Exec<'_> {
    /// Whether all lanes that the instruction's masks (its last source) name are on this path. If not, the path
    /// takes in those that wait at the same place; if that does not do, it waits.
    pub fn gathered(
        &mut self,
        path: &mut Path,
        others: &mut Vec<Path>,
        operands: Operands<'_>,
        mask: u32,
    ) -> bool {
        if path.released {
            path.released = false;
            return true;
        }
        let named = *self.row(path, operands.sources[operands.sources.len() - 1]);
        let required = lanes(mask).fold(0, |all, lane| all | named[lane] as u32) & self.warp.live;
        let (mut index, mut taken_in) = (0, false);
        while required & !path.mask != 0 && index < others.len() {
            let same = matches!(others[index].state, PathState::Ready | PathState::Converge(_));
            if same && others[index].same_place(path) {
                path.mask |= others.swap_remove(index).mask;
                taken_in = true;
            } else {
                index += 1;
            }
        }
        if required & !path.mask == 0 {
            // With lanes taken in, the instruction starts again: their guards and masks count too.
            return !taken_in;
        }
        path.state = PathState::Converge(required);
        false
    }

    pub fn vote(&mut self, path: &Path, kind: Vote, sync: bool, operands: Operands<'_>, mask: u32) {
        let holds = self.predicate(path, operands.sources[0]) & mask;
        let named = *self.row(path, operands.sources[1]);
        let mut values = [0; LANES];
        for lane in lanes(mask) {
            let group = if sync { named[lane] as u32 & mask } else { mask };
            let yes = holds & group;
            values[lane] = match kind {
                Vote::All => u64::from(yes == group),
                Vote::Any => u64::from(yes != 0),
                Vote::Uniform => u64::from(yes == group || yes == 0),
                Vote::Ballot => u64::from(yes),
            };
        }
        self.set(path, operands.results[0], &values, mask);
    }

    pub fn matching(&mut self, path: &Path, all: bool, operands: Operands<'_>, mask: u32) {
        let a = *self.row(path, operands.sources[0]);
        let named = *self.row(path, operands.sources[1]);
        let (mut values, mut predicates) = ([0; LANES], [0; LANES]);
        for lane in lanes(mask) {
            let group = named[lane] as u32 & mask;
            let equal =
                lanes(group).filter(|other| a[*other] == a[lane]).fold(0u32, |set, other| set | 1 << other);
            let full = equal == group;
            values[lane] = if all && !full { 0 } else { u64::from(equal) };
            predicates[lane] = u64::from(full);
        }
        self.set(path, operands.results[0], &values, mask);
        self.set(path, operands.results[1], &predicates, mask);
    }

    pub fn shuffle(&mut self, path: &Path, mode: Shuffle, operands: Operands<'_>, mask: u32) {
        let [a, b, c] = [0, 1, 2].map(|index| *self.row(path, operands.sources[index]));
        let (mut values, mut predicates) = ([0; LANES], [0; LANES]);
        for lane in lanes(mask) {
            let (from, valid) = shuffle_source(mode, lane as u32, b[lane] as u32, c[lane] as u32);
            values[lane] = a[from as usize];
            predicates[lane] = u64::from(valid);
        }
        self.set(path, operands.results[0], &values, mask);
        self.set(path, operands.results[1], &predicates, mask);
    }

    pub fn reduce(&mut self, path: &Path, fold: fn(u64, u64) -> u64, operands: Operands<'_>, mask: u32) {
        let a = *self.row(path, operands.sources[0]);
        let named = *self.row(path, operands.sources[1]);
        let mut values: Lanes = [0; LANES];
        for lane in lanes(mask) {
            let group = named[lane] as u32 & mask;
            values[lane] = lanes(group).map(|other| a[other]).reduce(fold).unwrap_or(a[lane]);
        }
        self.set(path, operands.results[0], &values, mask);
    }

    pub fn elect(&mut self, path: &Path, operands: Operands<'_>, mask: u32) {
        let named = *self.row(path, operands.sources[0]);
        let (mut values, mut predicates) = ([0; LANES], [0; LANES]);
        for lane in lanes(mask) {
            let leader = (named[lane] as u32 & mask).trailing_zeros();
            values[lane] = u64::from(leader);
            predicates[lane] = u64::from(leader as usize == lane);
        }
        self.set(path, operands.results[0], &values, mask);
        self.set(path, operands.results[1], &predicates, mask);
    }
}

/// The lane that is read, and whether it is in range; out of range a lane reads itself.
fn shuffle_source(mode: Shuffle, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let b = b & 31;
    let clamp = c & 31;
    let segment = c >> 8 & 31;
    let most = lane & segment | clamp & !segment;
    let least = lane & segment;
    let (from, valid) = match mode {
        Shuffle::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= most as i32),
        Shuffle::Down => (lane + b, lane + b <= most),
        Shuffle::Butterfly => (lane ^ b, lane ^ b <= most),
        Shuffle::Index => (least | b & !segment, least | b & !segment <= most),
    };
    (if valid { from & 31 } else { lane }, valid)
}
