//! System calls that wait, and are interrupted when a thread is brought to a stand.
//!
//! The kernel goes on with such a call for what is left of its time (`restart_syscall`), and the program sees nothing of it.
//! CRIU does not: it has the call fail as by a signal (`EINTR`), in the program that goes on and in its image, and programs
//! without handlers of signals do not expect that. So a thread that goes on is given back
//! [what the kernel had](super::tracee::Before), and CRIU is told of a thread that makes its call next.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::calls::Memory;
use super::general::{General, Interrupted};

/// What of a futex's operation is not what is done.
const FLAGS: u64 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u64;

/// The calls that threads go on with, of which the kernel does not tell any more which they are.
static WAITING: Mutex<BTreeMap<i32, Waiting>> = Mutex::new(BTreeMap::new());

struct Waiting {
    place: Place,
    number: i64,
}

/// Where a thread waits, and for what.
#[derive(PartialEq, Eq)]
struct Place {
    instruction: u64,
    stack: u64,
    arguments: [u64; 4],
}

impl Place {
    fn of(general: &General) -> Self {
        let (instruction, stack) = (general.instruction(), general.stack());
        Self { instruction, stack, arguments: general.arguments() }
    }
}

/// How long a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// For ever, or until a time that is given.
    Until,
    /// For a time from its beginning.
    For,
    /// For a time from its beginning, by a program that is ready for an early end: it asks for what is left, or looks again
    /// whether what it waits for is so.
    Ready,
}

impl Wait {
    fn of(number: i64, [_, second, third, fourth]: [u64; 4]) -> Option<Self> {
        let asks_for_rest = |rest| if rest == 0 { Self::For } else { Self::Ready };
        match number {
            libc::SYS_poll => Some(if (third as i32) < 0 { Self::Until } else { Self::For }),
            libc::SYS_nanosleep => Some(asks_for_rest(second)),
            libc::SYS_clock_nanosleep => Some(asks_for_rest(fourth)),
            libc::SYS_futex if second & !FLAGS == libc::FUTEX_WAIT_BITSET as u64 => Some(Self::Until),
            libc::SYS_futex => Some(Self::Ready),
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait if (fourth as i32) < 0 => Some(Self::Until),
            libc::SYS_epoll_pwait2 if fourth == 0 => Some(Self::Until),
            _ => None,
        }
    }
}

/// The registers from which a thread goes on that had these.
pub fn goes_on(thread: i32, mut general: General) -> General {
    match of(thread, &general) {
        Some((_, Wait::Until)) => general.begins_anew_unless_handled(),
        Some((number, _)) => {
            waiting_calls().insert(thread, Waiting { place: Place::of(&general), number });
        }
        None => {
            waiting_calls().remove(&thread);
        }
    }
    general
}

/// Nothing is known any more of threads that have ended.
pub fn forget_ended() {
    waiting_calls().retain(|thread, _| Path::new(&format!("/proc/{thread}")).exists());
}

/// What CRIU is told in place of a thread's general registers, if it is to be told something else. What waits for a time
/// waits for all of it once more in a restored program; the call of one that is ready for that fails.
pub fn told(thread: i32, general: &[u8]) -> Option<General> {
    let mut general = General::read(general)?;
    let (number, _) = of(thread, &general).filter(|(_, wait)| *wait != Wait::Ready)?;
    general.begin_call_again(number);
    Some(general)
}

/// As [`told`], where whoever asks has just read the registers into what this vector of one part leads to.
pub fn tell(thread: i32, asker: Memory, vector: u64) -> io::Result<()> {
    let (base, length) = (asker.word(vector)?, asker.word(vector + 8)?);
    let general = asker.read(base, length as usize)?;
    told(thread, &general).map_or(Ok(()), |told| asker.write(base, told.bytes()))
}

/// The call that it is interrupted in, as it was made, if that is to go on.
fn of(thread: i32, general: &General) -> Option<(i64, Wait)> {
    let interrupted = general.interrupted()?;
    let mut number = general.call()?;
    if number == libc::SYS_restart_syscall {
        let waiting = waiting_calls();
        number = waiting.get(&thread).filter(|known| known.place == Place::of(general))?.number;
    }
    let wait = Wait::of(number, general.arguments())?;
    // What fails at each stand, as a wait for sets of epoll, is begun anew where that is the same.
    (interrupted == Interrupted::GoesOn || wait == Wait::Until).then_some((number, wait))
}

fn waiting_calls() -> MutexGuard<'static, BTreeMap<i32, Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
