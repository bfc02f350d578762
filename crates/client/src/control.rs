//! The client's own thread: it reads what the worker says beside the rings, closes the barrier for a checkpoint, and
//! notices that the worker has died.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rekindle_protocol::client::{CLIENT_VERSION, Quiesced, ToClient, ToWorker};
use rekindle_protocol::frame;
use rekindle_protocol::rounds::Rounds;

use crate::allocators::{self, Unused};
use crate::session::Session;
use crate::{first_pages, genuine, host_call, quiesce, thread_slot};

/// So much this thread allocates once, and has it for what it says in a stop: memory that grows then is not as CRIU knows it.
const HEAP: usize = 96 << 10;
/// How often a closing barrier is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long threads that may make a call more are waited for.
const ROUND_LIMIT: Duration = Duration::from_millis(20);
/// How long threads inside are waited for before others make calls more: a call may wait for the GPU, whose work waits for a kernel
/// that one of those was about to launch.
const PATIENCE: Duration = Duration::from_millis(50);

/// The barrier is being closed.
struct Closing {
    deadline: Instant,
    unused: Unused,
    /// Until when calls are let through, if some are.
    round: Option<Instant>,
    rounds: Rounds,
    /// When the next round begins, if threads are inside then.
    next: Instant,
}

impl Closing {
    fn begin(deadline: Instant, unused: Unused) -> Closing {
        Closing {
            deadline,
            unused,
            round: None,
            rounds: Rounds::new(PATIENCE),
            next: Instant::now() + PATIENCE,
        }
    }

    fn begin_round(&mut self, calls: u32) {
        quiesce::begin_round(calls);
        self.round = Some(Instant::now() + ROUND_LIMIT);
    }

    /// Begins a round, or ends one, if it is time.
    fn look(&mut self, session: &Session) {
        let now = Instant::now();
        match self.round {
            Some(until) if quiesce::have_all_passed() || now > until => {
                quiesce::end_round();
                self.round = None;
                self.next = now + self.rounds.patience();
                wake_waits(session);
            }
            None if now > self.next && quiesce::inside() > 0 => {
                let calls = self.rounds.begin();
                self.begin_round(calls);
            }
            _ => {}
        }
    }
}

/// Starts the control thread and the one that runs host functions, both deaf to signals.
pub fn start(session: &'static Session) -> io::Result<()> {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    without_signals(|| {
        std::thread::Builder::new().name("rekindle".to_owned()).spawn(move || serve(session))?;
        host_call::start(session)
    })
}

/// Runs `body` with all signals blocked: threads started by it inherit that.
pub fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    without(&[], body)
}

/// As [`without_signals`], for threads that touch the program's memory: what it does about faults there still works.
pub fn deaf_but_for_faults<T>(body: impl FnOnce() -> T) -> T {
    without(&[libc::SIGSEGV, libc::SIGBUS], body)
}

/// All but some signals are blocked meanwhile.
fn without<T>(but_for: &[libc::c_int], body: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid places; sigfillset makes the first one whole before it is used.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in but_for {
            libc::sigdelset(all.as_mut_ptr(), *signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = body();
    // SAFETY: pthread_sigmask has filled `before` above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

fn serve(session: &'static Session) {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(HEAP)));
    let mut closing: Option<Closing> = None;
    let why = loop {
        if let Some(closing) = &mut closing {
            closing.look(session);
        }
        if let Some(Closing { deadline, unused, round: None, .. }) = &closing
            && let Some(answer) = closed(session, *deadline, unused)
        {
            closing = None;
            let _ = session.send(&answer);
        }
        if !readable(session, closing.is_some()) {
            continue;
        }
        let message = match frame::receive::<ToClient>(&session.control) {
            Ok((message, _)) => message,
            Err(error) => break error.to_string(),
        };
        match message {
            ToClient::RingReady { .. } => {}
            ToClient::Call { token } => host_call::due(token),
            ToClient::Quiesce { limit_ms, unused } => {
                let deadline = Instant::now() + Duration::from_millis(limit_ms);
                let unused = Unused::close_barrier(session, unused);
                wake_waits(session);
                closing = Some(Closing::begin(deadline, unused));
            }
            ToClient::Step { calls, limit_ms } => {
                let deadline = Instant::now() + Duration::from_millis(limit_ms);
                closing.insert(Closing::begin(deadline, Unused::default())).begin_round(calls);
            }
            ToClient::Sleep => quiesce::sleep(),
            ToClient::Resume { restored, driver_attached } => {
                closing = None;
                if restored {
                    session.board.set_client(rekindle_ring::Liveness::Alive);
                    session.board.set_client_version(CLIENT_VERSION);
                    thread_slot::all().iter().for_each(|slot| slot.reload());
                }
                genuine::set_attached(driver_attached);
                quiesce::open();
                let _ = session.send(&ToWorker::Resumed);
                if restored {
                    first_pages::take(&session.directory);
                }
            }
            ToClient::Attached { problem } => genuine::attached(problem),
            ToClient::Release => genuine::release(|released| {
                let _ = session.send(&ToWorker::Released(released));
            }),
            ToClient::Kept => genuine::set_attached(true),
            ToClient::TellUnused => allocators::tell(session),
            ToClient::GiveBack => allocators::give_back(),
        }
    };
    session.worker_died(&why);
    genuine::attached("the worker is gone".to_owned());
    quiesce::open();
}

/// Threads that wait inside look whether the barrier is closed.
fn wake_waits(session: &Session) {
    session.rings().iter().for_each(|ring| {
        ring.look_again();
        ring.header().space().raise();
    });
}

/// The answer to a `Quiesce`, once there is one.
fn closed(session: &Session, deadline: Instant, unused: &Unused) -> Option<ToWorker> {
    let inside = quiesce::inside();
    if inside == 0 && genuine::settled() {
        return Some(ToWorker::Quiesced(Quiesced {
            version: CLIENT_VERSION,
            process: session.process,
            socket_inode: inode(session),
            driver_attached: genuine::is_attached(),
            files: session.files().iter().map(|(name, bytes)| (name.clone(), *bytes)).collect(),
            uncollected: thread_slot::all().iter().flat_map(|slot| slot.uncollected()).collect(),
            unused: unused.ranges(session),
        }));
    }
    if Instant::now() < deadline {
        return None;
    }
    quiesce::open();
    Some(ToWorker::Busy(format!("{inside} of the program's threads are still inside CUDA calls")))
}

fn inode(session: &Session) -> u64 {
    // SAFETY: fstat fills the structure, which may hold any bytes before.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `status` is a valid place.
    unsafe { libc::fstat(session.control_descriptor(), &mut status) };
    status.st_ino
}

/// Waits for a message; for a moment only while the barrier is closing.
fn readable(session: &Session, closing: bool) -> bool {
    if !closing {
        return true;
    }
    let mut wait = libc::pollfd {
        fd: std::os::fd::AsRawFd::as_raw_fd(&session.control.as_fd()),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut wait, 1, LOOK.as_millis() as i32) > 0 }
}
