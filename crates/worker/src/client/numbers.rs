//! Textures and surfaces made again under the numbers that they had.
//!
//! A device hands numbers out as it likes: most likely the lowest one that is free. So what is wanted is made, lowest
//! number first; what comes out under a number that nobody wants is held until all are there, so that the next one is
//! another; what comes out under the number of another that is wanted gives way to that one.

use std::collections::BTreeMap;

use rekindle_device::Result;

/// More objects than this are not held to get a number; nor more than there are lower numbers, and some for others.
const MOST_HELD: u64 = 1 << 16;
const OTHERS: u64 = 256;

/// Why not all could be had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed<V> {
    /// This number did not come out.
    Number(u64, V),
    /// It could not be made at all.
    Failed(u64, V, rekindle_cuda::CuResult),
}

/// What makes objects, and destroys them.
pub(crate) trait Maker<V> {
    fn make(&mut self, view: &V) -> Result<u64>;
    fn destroy(&mut self, view: &V, number: u64);
}

/// Makes each of these under its number, or none. Two may have the same number only if they are of different kinds.
pub(crate) fn renumber<V: Copy>(
    wanted: &[(u64, V)],
    maker: &mut impl Maker<V>,
) -> std::result::Result<(), Missed<V>> {
    let mut ascending = wanted.to_vec();
    ascending.sort_by_key(|(number, _)| *number);
    match attempt(ascending, maker) {
        // A device may have more than one thing that it numbers by the order of making.
        Err(Missed::Number(..)) if wanted.len() > 1 => attempt(wanted.to_vec(), maker),
        other => other,
    }
}

fn attempt<V: Copy>(order: Vec<(u64, V)>, maker: &mut impl Maker<V>) -> std::result::Result<(), Missed<V>> {
    // By their place in the order.
    let mut pending: BTreeMap<usize, (u64, V)> = order.into_iter().enumerate().collect();
    let mut kept: Vec<(u64, V)> = Vec::new();
    let mut held: Vec<(u64, V)> = Vec::new();
    let highest = pending.values().map(|(number, _)| *number).max().unwrap_or(0);
    let most = highest.saturating_add(OTHERS).min(MOST_HELD);
    let mut missed = None;
    while let Some((&at, &(number, view))) = pending.first_key_value() {
        if held.len() as u64 >= most {
            missed = Some(Missed::Number(number, view));
            break;
        }
        let got = match maker.make(&view) {
            Ok(got) => got,
            // Numbers have run out.
            Err(_) if !held.is_empty() => {
                missed = Some(Missed::Number(number, view));
                break;
            }
            Err(code) => {
                missed = Some(Missed::Failed(number, view, code));
                break;
            }
        };
        if got == number {
            kept.extend(pending.remove(&at));
            continue;
        }
        let other = pending.iter().find(|(_, (wanted, _))| *wanted == got).map(|(at, row)| (*at, *row));
        let Some((at, (number, other))) = other else {
            held.push((got, view));
            continue;
        };
        maker.destroy(&view, got);
        match maker.make(&other) {
            Ok(got) if got == number => kept.extend(pending.remove(&at)),
            Ok(got) => held.push((got, other)),
            Err(code) => {
                missed = Some(Missed::Failed(number, other, code));
                break;
            }
        }
    }
    for (number, view) in held {
        maker.destroy(&view, number);
    }
    let Some(missed) = missed else { return Ok(()) };
    for (number, view) in kept {
        maker.destroy(&view, number);
    }
    Err(missed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};

    use super::*;

    /// How numbers are handed out.
    #[derive(Clone, Copy, Debug)]
    enum NumberOrder {
        Lowest,
        /// The one that was given back last, else the next new one.
        Last,
        /// None twice.
        Onward,
    }

    struct Numbers {
        way: NumberOrder,
        most: u64,
        next: u64,
        free: Vec<u64>,
        live: BTreeMap<u64, char>,
    }

    impl Numbers {
        fn new(way: NumberOrder) -> Numbers {
            Numbers { way, most: 1 << 20, next: 1, free: Vec::new(), live: BTreeMap::new() }
        }
    }

    impl Maker<char> for Numbers {
        fn make(&mut self, view: &char) -> Result<u64> {
            if *view == '!' {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let free = match self.way {
                NumberOrder::Lowest => self.free.iter().copied().min(),
                NumberOrder::Last => self.free.last().copied(),
                NumberOrder::Onward => None,
            };
            self.free.retain(|number| Some(*number) != free);
            let number = free.unwrap_or(self.next);
            if number >= self.most {
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
            self.next = self.next.max(number + 1);
            self.live.insert(number, *view);
            Ok(number)
        }

        fn destroy(&mut self, view: &char, number: u64) {
            assert_eq!(self.live.remove(&number), Some(*view));
            self.free.push(number);
        }
    }

    #[test]
    fn a_number_that_somebody_else_has_is_missed_and_nothing_stays() {
        let mut numbers = Numbers { most: 100, ..Numbers::new(NumberOrder::Lowest) };
        assert_eq!(numbers.make(&'x'), Ok(1));
        let wanted = [(1, 'a'), (4, 'b')];
        assert_eq!(renumber(&wanted, &mut numbers), Err(Missed::Number(1, 'a')));
        assert_eq!(numbers.live, [(1, 'x')].into());
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        let mut numbers = Numbers::new(NumberOrder::Lowest);
        let wanted = [(1, 'a'), (2, '!')];
        assert_eq!(renumber(&wanted, &mut numbers), Err(Missed::Failed(2, '!', CUDA_ERROR_INVALID_VALUE)));
        assert_eq!(numbers.live, BTreeMap::new());
    }

    proptest! {
        #[test]
        fn all_come_out_as_they_were(numbers in proptest::collection::btree_set(1u64..300, 0..40), way in 0..3) {
            let way = [NumberOrder::Lowest, NumberOrder::Last, NumberOrder::Onward][way as usize];
            let mut numbers: Vec<u64> = numbers.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
            numbers.reverse();
            let wanted: Vec<(u64, char)> = numbers.iter().zip(('a'..='z').cycle()).map(|(n, c)| (*n, c)).collect();
            let mut device = Numbers::new(way);
            prop_assert_eq!(renumber(&wanted, &mut device), Ok(()));
            prop_assert_eq!(device.live, wanted.into_iter().collect());
        }
    }
}
