//! How the multiprocessors of a device can be divided.

use serde::{Deserialize, Serialize};

/// So many units of so many multiprocessors each, and what makes no unit. A set of them is a number with a bit for each unit,
/// and one behind those for the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Units {
    /// At most [`Units::MOST`].
    pub count: u32,
    pub multiprocessors: u32,
    /// Multiprocessors that make no unit.
    pub rest: u32,
}

impl Units {
    /// As many as a set has bits for, beside that of the rest.
    pub const MOST: u32 = 63;

    /// The set of all units.
    pub fn all(&self) -> u64 {
        (1 << self.count.min(Units::MOST)) - 1
    }

    /// The set of what makes no unit.
    pub fn rest(&self) -> u64 {
        if self.rest == 0 { 0 } else { 1 << self.count.min(Units::MOST) }
    }

    /// The set of everything.
    pub fn whole(&self) -> u64 {
        self.all() | self.rest()
    }

    /// How many multiprocessors a set has.
    pub fn multiprocessors_of(&self, set: u64) -> u32 {
        let rest = if set & self.rest() == 0 { 0 } else { self.rest };
        (set & self.all()).count_ones() * self.multiprocessors + rest
    }

    /// Divides a set into at most `most` groups of as many units each, as few as have `least` multiprocessors; and what is
    /// left. One that takes all there are has the rest too.
    pub fn split(&self, set: u64, least: u32, most: usize) -> (Vec<u64>, u64) {
        let each = least.div_ceil(self.multiprocessors.max(1)).max(1) as usize;
        let units: Vec<u64> = (0..self.count).map(|bit| 1 << bit).filter(|unit| set & unit != 0).collect();
        let group = |units: &[u64]| units.iter().fold(0, |group, unit| group | unit);
        let mut groups: Vec<u64> = units.chunks_exact(each).take(most).map(group).collect();
        if groups.is_empty() && most > 0 && set != 0 && self.multiprocessors_of(set) >= least {
            groups.push(set);
        }
        let left = set & !group(&groups);
        (groups, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Units = Units { count: 15, multiprocessors: 8, rest: 12 };

    #[test]
    fn groups_are_alike_and_what_is_left_has_the_rest() {
        assert_eq!(H200.multiprocessors_of(H200.whole()), 132);
        let (groups, left) = H200.split(H200.whole(), 16, 99);
        assert_eq!(groups.iter().map(|group| H200.multiprocessors_of(*group)).collect::<Vec<_>>(), [16; 7]);
        assert_eq!(H200.multiprocessors_of(left), 20);
        let (two, left) = H200.split(H200.whole(), 9, 2);
        assert_eq!((two, left), (vec![0b11, 0b1100], H200.whole() & !0b1111));
    }

    #[test]
    fn one_group_may_have_everything() {
        assert_eq!(H200.split(H200.whole(), 130, 1), (vec![H200.whole()], 0));
        assert_eq!(H200.split(0b11, 17, 1), (vec![], 0b11));
        assert_eq!(H200.split(0b110, 0, 9), (vec![0b10, 0b100], 0));
    }
}
