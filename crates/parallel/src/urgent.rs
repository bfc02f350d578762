//! Threads that take turns with each other, a few microseconds each: whoever is woken is to have a processor soon.

/// A thread that runs before others, as do threads and processes that it starts meanwhile, until this is dropped.
pub struct Urgent {
    thread: i32,
    nice: i32,
}

/// The most weight that the kernel gives. A real-time class has no bound: with it a machine of two processors stood still for two
/// minutes once.
const MOST: i32 = -20;

impl Urgent {
    /// The calling thread.
    pub fn begin() -> Option<Urgent> {
        Urgent::of(0)
    }

    /// None for one that is so already, or has a real-time class, or where that is not allowed.
    pub fn of(thread: i32) -> Option<Urgent> {
        // SAFETY: asks how a thread is scheduled.
        let policy = unsafe { libc::sched_getscheduler(thread) };
        let usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
        let may = policy >= 0 && usual.contains(&(policy & !libc::SCHED_RESET_ON_FORK));
        // SAFETY: asks how a thread is scheduled.
        let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, thread as libc::id_t) };
        (may && nice != MOST && weigh(thread, MOST)).then_some(Urgent { thread, nice })
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        weigh(self.thread, self.nice);
    }
}

fn weigh(thread: i32, nice: i32) -> bool {
    // SAFETY: changes how a thread is scheduled.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_urgent_and_then_as_it_was() {
        // SAFETY: asks how this thread is scheduled.
        let scheduled = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let of_its_own = || std::thread::scope(|scope| scope.spawn(scheduled).join().unwrap());
        crate::give_way(3);
        if let Some(urgent) = Urgent::begin() {
            assert_eq!((scheduled(), of_its_own()), (MOST, MOST));
            assert!(Urgent::begin().is_none(), "who is urgent stays so");
            drop(urgent);
        }
        assert_eq!((scheduled(), of_its_own()), (3, 3));
    }
}
