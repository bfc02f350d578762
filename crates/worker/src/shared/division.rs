//! How the multiprocessors of a GPU are divided among the clients of a context.
//!
//! While no client has a share, the streams of all are made on the whole device. As soon as one has, each has streams on
//! units of its own, and those without a share on what is left: work of the whole device would run on everybody's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rekindle_cuda::CuResult;
use rekindle_device::{Device, Part, Result, Units};

use super::ClientDevice;

/// Why a client cannot have what it is to have of a context.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum PortionError {
    #[error("its context is its own")]
    NotShared,
    #[error(
        "the multiprocessors of this GPU cannot be divided: that takes an NVIDIA GPU with driver 555 (CUDA 12.5) or newer"
    )]
    Indivisible,
    #[error("the GPU's driver does not divide the multiprocessors: {0}")]
    Driver(#[source] CuResult),
    #[error(transparent)]
    Context(CuResult),
    #[error(
        "the programs of this context would have {all} % of its multiprocessors, in {wanted} units of {} where there \
         are {}{others}; give it a smaller share, or take some from others by `rekindle limits`",
        units.multiprocessors, units.count
    )]
    TooMuch { all: u32, wanted: u32, units: Units, others: &'static str },
}

/// Multiprocessors that streams are made on, until nobody has such streams.
pub(crate) struct Portion {
    device: Arc<dyn Device>,
    part: Part,
    units: u64,
}

impl Portion {
    /// What makes no unit goes with the last one.
    fn new(device: &Arc<dyn Device>, units: u64) -> Result<Arc<Portion>> {
        let all = device.units().unwrap_or_default();
        let has_last = units >> all.count.saturating_sub(1) & 1 == 1;
        let part = device.part_create(units | if has_last { all.rest() } else { 0 })?;
        Ok(Arc::new(Portion { device: device.clone(), part, units }))
    }

    pub(super) fn part(&self) -> Part {
        self.part
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        if let Err(code) = self.device.bind().and_then(|()| self.device.part_destroy(self.part)) {
            log::warn!("a part of the multiprocessors stays: {code}");
        }
    }
}

type MemberId = u64;

pub(crate) struct Division {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: BTreeMap<MemberId, Member>,
    last: MemberId,
}

struct Member {
    view: Weak<ClientDevice>,
    percent: Option<u32>,
    /// What it has; none: the whole device.
    portion: Option<Arc<Portion>>,
}

/// A client's place in a division, which it has until this is dropped.
pub(crate) struct DivisionMember {
    division: Arc<Division>,
    id: MemberId,
}

impl Division {
    pub(super) fn new(device: Arc<dyn Device>) -> Arc<Division> {
        Arc::new(Division { device, state: Mutex::default() })
    }

    /// Gives a client its share, or what is left. Refused in a sentence if there is no room for it.
    pub(crate) fn join(
        self: &Arc<Division>,
        view: &Arc<ClientDevice>,
        percent: Option<u32>,
    ) -> std::result::Result<DivisionMember, PortionError> {
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.members.insert(id, Member { view: Arc::downgrade(view), percent, portion: None });
        let divided = self.divide(&mut state);
        if divided.is_err() {
            state.members.remove(&id);
        }
        divided.map(|()| DivisionMember { division: self.clone(), id })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has everybody's streams on what they are to have. Nothing has changed if there is no room for that.
    fn divide(&self, state: &mut State) -> std::result::Result<(), PortionError> {
        let members = &mut state.members;
        let wanted = if members.values().any(|member| member.percent.is_some()) {
            let units = self.device.units().ok_or(PortionError::Indivisible)?;
            let have: Vec<(Option<u32>, u64)> = members
                .values()
                .map(|member| (member.percent, member.portion.as_ref().map_or(0, |portion| portion.units)))
                .collect();
            assign(units, &have)?
        } else {
            vec![0; members.len()]
        };
        let rest = members.values().find(|member| member.percent.is_none());
        let mut rest = rest.and_then(|member| member.portion.clone());
        let mut portions = Vec::new();
        for (member, units) in members.values().zip(&wanted) {
            let known = if member.percent.is_some() { &member.portion } else { &rest };
            let portion = match known.as_ref().filter(|portion| portion.units == *units) {
                Some(known) => Some(known.clone()),
                None if *units == 0 => None,
                None => Some(Portion::new(&self.device, *units).map_err(PortionError::Driver)?),
            };
            if member.percent.is_none() {
                rest.clone_from(&portion);
            }
            portions.push(portion);
        }
        for (member, portion) in members.values_mut().zip(portions) {
            let id = |portion: &Option<Arc<Portion>>| portion.as_ref().map(|portion| portion.part);
            if id(&member.portion) == id(&portion) {
                continue;
            }
            member.portion.clone_from(&portion);
            if let Some(view) = member.view.upgrade() {
                view.move_to(portion);
            }
        }
        Ok(())
    }
}

impl DivisionMember {
    /// Changes the client's share.
    pub(crate) fn set(&self, percent: Option<u32>) -> std::result::Result<(), PortionError> {
        let mut state = self.division.state();
        let Some(member) = state.members.get_mut(&self.id) else { return Ok(()) };
        let former = std::mem::replace(&mut member.percent, percent);
        let divided = self.division.divide(&mut state);
        if divided.is_err()
            && let Some(member) = state.members.get_mut(&self.id)
        {
            member.percent = former;
        }
        divided
    }
}

impl Drop for DivisionMember {
    fn drop(&mut self) {
        let mut state = self.division.state();
        let gone = state.members.remove(&self.id);
        if let Err(problem) = self
            .division
            .device
            .bind()
            .map_err(PortionError::Context)
            .and_then(|()| self.division.divide(&mut state))
        {
            log::warn!("what a client had of the multiprocessors is nobody's yet: {problem}");
        }
        drop(state);
        drop(gone);
    }
}

/// The units of each, of which this is the share in percent and what it has had; those without a share have all that is left.
fn assign(units: Units, members: &[(Option<u32>, u64)]) -> std::result::Result<Vec<u64>, PortionError> {
    let percents: Vec<u32> = members.iter().map(|(percent, _)| percent.unwrap_or(0)).collect();
    let sizes = sizes(units.count, &percents);
    let (all, wanted): (u32, u32) = (percents.iter().sum(), sizes.iter().sum());
    let least = u32::from(members.iter().any(|(percent, _)| percent.is_none()));
    if all > 100 || wanted + least > units.count {
        let others = if least > 0 { ", and others without a share have to have some too" } else { "" };
        return Err(PortionError::TooMuch { all, wanted, units, others });
    }
    // Who keeps the size keeps the units.
    let mut free = units.all();
    let mut taken = vec![0; members.len()];
    for ((place, (percent, had)), size) in taken.iter_mut().zip(members).zip(&sizes) {
        if percent.is_some() && had.count_ones() == *size && had & free == *had {
            *place = *had;
            free &= !had;
        }
    }
    for (place, size) in taken.iter_mut().zip(&sizes) {
        while place.count_ones() < *size {
            let lowest = free & free.wrapping_neg();
            *place |= lowest;
            free &= !lowest;
        }
    }
    for (place, _) in taken.iter_mut().zip(members).filter(|(_, (percent, _))| percent.is_none()) {
        *place = free;
    }
    Ok(taken)
}

/// How many of `count` units each share has: rounded down, one at least. What they have together beyond that goes to those that
/// lose most by it.
fn sizes(count: u32, percents: &[u32]) -> Vec<u32> {
    let least = |percent: u32| if percent == 0 { 0 } else { (percent * count / 100).max(1) };
    let mut sizes: Vec<u32> = percents.iter().map(|percent| least(*percent)).collect();
    let together = percents.iter().sum::<u32>() * count / 100;
    let spare = together.saturating_sub(sizes.iter().sum()) as usize;
    let mut order: Vec<usize> = (0..percents.len()).filter(|at| percents[*at] > 0).collect();
    order.sort_by_key(|at| std::cmp::Reverse(percents[*at] * count % 100));
    order.into_iter().take(spare).for_each(|at| sizes[at] += 1);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Units = Units { count: 16, multiprocessors: 8, rest: 4 };

    fn counts(members: &[(Option<u32>, u64)]) -> Vec<u32> {
        assign(UNITS, members).unwrap().iter().map(|units| units.count_ones()).collect()
    }

    #[test]
    fn shares_are_units_and_who_has_none_has_the_rest() {
        assert_eq!(counts(&[(Some(25), 0), (Some(75), 0)]), [4, 12]);
        assert_eq!(sizes(15, &[25, 75]), [4, 11]);
        assert_eq!(sizes(15, &[33, 0, 33, 33]), [5, 0, 5, 4]);
        assert_eq!(sizes(15, &[1, 99]), [1, 14]);
        assert_eq!(counts(&[(Some(50), 0), (None, 0), (None, 0)]), [8, 8, 8]);
        assert_eq!(counts(&[(Some(1), 0), (None, 0)]), [1, 15]);
        let given = assign(UNITS, &[(Some(25), 0), (None, 0), (Some(25), 0b1111)]).unwrap();
        assert_eq!(given[2], 0b1111, "who keeps its size keeps its units");
        assert_eq!(given[0] & given[2], 0);
        assert_eq!(given[1] & (given[0] | given[2]), 0);
        assert_eq!(given.iter().fold(0, |all, units| all | units), UNITS.all());
    }

    #[test]
    fn more_than_there_is_is_refused_with_what_there_is() {
        let refused = assign(UNITS, &[(Some(80), 0), (Some(30), 0)]).unwrap_err().to_string();
        assert!(refused.contains("110 %"), "{refused}");
        let refused = assign(UNITS, &[(Some(100), 0), (None, 0)]).unwrap_err().to_string();
        assert!(refused.contains("without a share"), "{refused}");
    }
}
