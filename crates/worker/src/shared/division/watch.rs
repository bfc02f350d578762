//! When a client's work has ended: the driver says so to who asks, and a thread does while anybody has work.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Division, Member, State, Work};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(1);
/// So often in a row a client's streams have ended and nothing was launched: one that launches after each answer of the GPU's
/// does not come and go.
const LOOKS: u32 = 3;
/// The thread stays so long after the last work.
const LINGER: Duration = Duration::from_secs(10);

/// What was seen of a client with work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    launched: u64,
    /// So often its work was found to have ended since.
    ended: u32,
}

impl Seen {
    pub(super) fn new(launched: u64) -> Seen {
        Seen { launched, ended: 0 }
    }
}

impl Division {
    /// Has a thread look when the work ends that there is.
    pub(super) fn watch(self: &Arc<Division>, state: &mut State) {
        if !state.has_work() {
            return;
        }
        if let Some(watcher) = &state.watcher {
            return watcher.unpark();
        }
        let division = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("division".to_string());
        match thread.spawn(move || look_on(&division)) {
            Ok(watcher) => state.watcher = Some(watcher.thread().clone()),
            Err(error) => log::error!("it is not seen when clients have no work any more: {error}"),
        }
    }

    /// Divides anew if the work of any client has ended. Whose context has failed is not looked at any more.
    fn look(self: &Arc<Division>, state: &mut State) {
        let is_there = self.device.bind().is_ok();
        let mut ended = false;
        for member in state.members.values_mut() {
            match member.look(is_there) {
                Look::Goes => {}
                Look::Ended => ended = true,
                Look::Failed => member.work = Work::Rests,
            }
        }
        if ended && let Err(problem) = self.divide(state) {
            log::warn!("what a client without work had of the multiprocessors is nobody's yet: {problem}");
        }
    }
}

/// Looks while anybody has work, and waits for that otherwise. The division may end meanwhile.
fn look_on(division: &Weak<Division>) {
    let mut last_work = Instant::now();
    loop {
        std::thread::sleep(LOOK);
        let Some(division) = division.upgrade() else { return };
        let mut state = division.state();
        if state.has_work() {
            division.look(&mut state);
            last_work = Instant::now();
        }
        let has_work = state.has_work();
        if !has_work && last_work.elapsed() > LINGER {
            state.watcher = None;
            return;
        }
        drop(state);
        drop(division);
        if !has_work {
            std::thread::park_timeout(LINGER);
        }
    }
}

impl State {
    fn has_work(&self) -> bool {
        self.members.values().any(|member| matches!(member.work, Work::Works(_)))
    }
}

enum Look {
    Goes,
    Ended,
    Failed,
}

impl Member {
    fn look(&mut self, is_there: bool) -> Look {
        let Work::Works(seen) = &mut self.work else { return Look::Goes };
        let Some(view) = self.view.upgrade().filter(|_| is_there) else { return Look::Failed };
        let launched = view.work_sign().launched();
        if launched != seen.launched {
            *seen = Seen::new(launched);
            return Look::Goes;
        }
        match view.is_idle() {
            Ok(true) => seen.ended += 1,
            Ok(false) => seen.ended = 0,
            Err(code) if code.is_sticky() => return Look::Failed,
            Err(_) => seen.ended = 0,
        }
        if seen.ended < LOOKS || !view.work_sign().set_rests(launched) {
            return Look::Goes;
        }
        self.work = Work::Rests;
        Look::Ended
    }
}
