//! Threads that take turns with each other, a few microseconds each: whoever is woken has a processor at once.
//!
//! A thread that is only less nice than others waits until who has the processor has had it for some milliseconds, with each
//! turn.

/// A thread that has a real-time class, as have threads and processes that it starts
/// meanwhile, until this is dropped.
pub struct Urgent {
    thread: i32,
    policy: i32,
}

/// The least of its class.
const PRIORITY: i32 = 1;

impl Urgent {
    /// The calling thread.
    pub fn begin() -> Option<Urgent> {
        Urgent::of(0)
    }

    /// None for one that has a class of its own already, or where that is not allowed.
    pub fn of(thread: i32) -> Option<Urgent> {
        // SAFETY: asks how a thread is scheduled.
        let policy = unsafe { libc::sched_getscheduler(thread) };
        let usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
        let flag = policy & libc::SCHED_RESET_ON_FORK;
        let may = policy >= 0
            && usual.contains(&(policy ^ flag))
            && schedule(thread, libc::SCHED_FIFO | flag, PRIORITY);
        may.then_some(Urgent { thread, policy })
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        // It is as nice as before.
        schedule(self.thread, self.policy, 0);
    }
}

fn schedule(thread: i32, policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: changes how a thread is scheduled.
    unsafe { libc::sched_setscheduler(thread, policy, &parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_urgent_and_then_as_it_was() {
        // SAFETY: asks how this thread is scheduled.
        let scheduled = || unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
        let of_its_own = || std::thread::scope(|scope| scope.spawn(scheduled).join().unwrap());
        crate::give_way(3);
        let before = scheduled();
        if let Some(urgent) = Urgent::begin() {
            assert_eq!((scheduled().0, of_its_own().0), (libc::SCHED_FIFO, libc::SCHED_FIFO));
            assert!(Urgent::begin().is_none(), "who has a class keeps it");
            drop(urgent);
        }
        assert_eq!((scheduled(), of_its_own()), (before, before));
    }
}
