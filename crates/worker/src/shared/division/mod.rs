//! How the multiprocessors of a GPU are divided among the clients of a context.
//!
//! ```text
//!   a launch of a client that rests ─▶ begin ─┐
//!   watch: streams that have ended  ─▶ end ───┼─▶ divide: assign ─▶ portions ─▶ other streams for who has other units
//!   limits, join, drop              ──────────┘
//! ```
//!
//! While no client has a share, a weight or a most, the streams of all are made on the whole device. As soon as one has, each
//! has streams on units of its own, and those without a share on what is left: work of the whole device would run on
//! everybody's.

mod assign;
mod portion;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;

use rekindle_cuda::CuResult;
use rekindle_device::{Device, Units};

use super::ClientDevice;
use assign::{Candidate, assign, is_flexible};
use portion::Portions;

pub(crate) use assign::Wish;
pub(crate) use portion::Portion;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSORS: i32 = 16;

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

pub(crate) type MemberId = u64;

pub(crate) struct Division {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: BTreeMap<MemberId, Member>,
    last: MemberId,
    portions: Portions,
    /// The thread that looks when work ends, if there is one.
    watcher: Option<Thread>,
}

struct Member {
    view: Weak<ClientDevice>,
    wish: Wish,
    /// What it has; none: the whole device.
    portion: Option<Arc<Portion>>,
    /// Whether it has work, where that is asked.
    work: Work,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// It has the same whether it works or rests.
    Unasked,
    Rests,
    Works(watch::Seen),
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
        wish: Wish,
    ) -> Result<DivisionMember, PortionError> {
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        view.work_sign().tell(Arc::downgrade(self), id);
        let member = Member { view: Arc::downgrade(view), wish, portion: None, work: Work::Unasked };
        state.members.insert(id, member);
        let divided = self.divide(&mut state);
        if divided.is_err() {
            state.members.remove(&id);
        }
        divided.map(|()| DivisionMember { division: self.clone(), id })
    }

    /// A client that rests is about to launch something.
    pub(super) fn begin(self: &Arc<Division>, id: MemberId) {
        let mut state = self.state();
        let Some(member) = state.members.get_mut(&id) else { return };
        if member.work != Work::Rests {
            return;
        }
        member.begin();
        if let Err(problem) = self.divide(&mut state) {
            log::warn!("a client that has work again keeps the multiprocessors that it had: {problem}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has everybody's streams on what they are to have. Nothing has changed if there is no room for that.
    fn divide(self: &Arc<Division>, state: &mut State) -> Result<(), PortionError> {
        let State { members, portions, .. } = state;
        let candidates: Vec<Candidate> = members.values().map(Member::candidate).collect();
        let is_plain = candidates.iter().all(|candidate| candidate.wish == Wish::default());
        let units = match self.device.units() {
            Some(units) => units,
            None if is_plain => Units::default(),
            None => return Err(PortionError::Indivisible),
        };
        let wanted = assign(units, &candidates)?;
        let given = members.values().zip(wanted).map(|(member, wanted)| match wanted {
            None => Ok(member.portion.clone()),
            Some(0) => Ok(None),
            Some(units) => portions.of(&self.device, units).map(Some),
        });
        let given = given.collect::<Result<Vec<_>, CuResult>>().map_err(PortionError::Driver)?;
        let by_weight = is_flexible(&candidates);
        for (member, portion) in members.values_mut().zip(given) {
            member.set_asked(by_weight && (member.wish.share.is_none() || member.wish.is_flexible()));
            let id = |portion: &Option<Arc<Portion>>| portion.as_ref().map(|portion| portion.part());
            if id(&member.portion) == id(&portion) {
                continue;
            }
            member.portion.clone_from(&portion);
            if let Some(view) = member.view.upgrade() {
                view.move_to(portion);
            }
        }
        portions.trim(by_weight);
        self.watch(state);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn portions(&self) -> usize {
        self.state().portions.count()
    }
}

impl Member {
    fn candidate(&self) -> Candidate {
        let had = self.portion.as_ref().map_or(0, |portion| portion.units());
        Candidate { wish: self.wish, has_work: self.work != Work::Rests, had }
    }

    /// From when on it is asked whether it has work, it has: it is seen when that ends.
    fn set_asked(&mut self, is_asked: bool) {
        match (is_asked, self.work) {
            (true, Work::Unasked) => self.begin(),
            (false, _) => {
                self.work = Work::Unasked;
                self.view.upgrade().inspect(|view| view.work_sign().unask());
            }
            (true, _) => {}
        }
    }

    fn begin(&mut self) {
        let launched = self.view.upgrade().map_or(0, |view| {
            view.work_sign().set_works();
            view.work_sign().launched()
        });
        self.work = Work::Works(watch::Seen::new(launched));
    }
}

impl DivisionMember {
    /// Changes what the client is to have.
    pub(crate) fn set(&self, wish: Wish) -> Result<(), PortionError> {
        let mut state = self.division.state();
        let Some(member) = state.members.get_mut(&self.id) else { return Ok(()) };
        let former = std::mem::replace(&mut member.wish, wish);
        let divided = self.division.divide(&mut state);
        if divided.is_err()
            && let Some(member) = state.members.get_mut(&self.id)
        {
            member.wish = former;
        }
        divided
    }

    /// How many multiprocessors the client's work has now: none while it rests and others may have them.
    pub(crate) fn multiprocessors(&self) -> u32 {
        let state = self.division.state();
        let Some(member) = state.members.get(&self.id).filter(|member| member.work != Work::Rests) else {
            return 0;
        };
        match &member.portion {
            Some(portion) => portion.multiprocessors(),
            None => self.division.device.info().attribute(MULTIPROCESSORS).unwrap_or(0).max(0) as u32,
        }
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
