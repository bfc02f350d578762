//! Who traces a program in CRIU's place while that dumps it, so that CRIU can die.
//!
//! The kernel lets go of what a dead tracer held: threads go on wherever they are, and for most of a dump that is code
//! that CRIU has put into them, which then ends the program. So CRIU traces nothing. A seccomp filter tells us of each of
//! its calls of `ptrace` and of waits, and we make them: the tracer is the sandbox's init, or a process of its own beside a
//! program without a sandbox. Before a thread is first changed we keep what it was about to do. If CRIU ends with
//! threads held, they stand as before, are given back all that was changed, and go on.
//!
//! ```text
//!  CRIU ──ptrace, wait4──▶ filter ──tells──▶ tracer ──ptrace──▶ program
//!    └──talks to its code in the program, by a connection of which the tracer has both ends──▶┘
//! ```
//!
//! CRIU's code in a program would take the end of its connection for the end of CRIU, and let the program go on while we
//! look at it. So we accept the connection in CRIU's place, and keep it open.

mod calls;
mod filter;
mod general;
mod injection;
mod interrupted;
mod limits;
mod mend;
mod mode;
mod pages;
#[cfg(test)]
mod posted_tests;
mod prefetch;
mod request;
mod seize;
#[cfg(test)]
mod stand_tests;
mod together;
mod tracee;
mod wait;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CpuSet;
use serde::{Deserialize, Serialize};

use crate::assist::Answers;
use crate::process::{self, Handle};
use crate::processor;
use calls::{Answer, Call, Listener, Memory};
use request::{SETSIGMASK, carry_out, changes, leaves_as_it_is};
use seize::Ahead;
use tracee::{Before, GENERAL, Shared, Stop, Tracee};

pub use filter::{Told, install_and_send, pair};
pub use injection::{PATIENCE, of_processor, userfaultfd};
pub use limits::limits_are_withheld;
pub use mode::{TRACER_ARGUMENT, Tracer, TracerMode, tracer_main};

/// A CRIU that asks for nothing for so long has something else to do.
const PAUSE_MS: u8 = 2;

/// Traces for one CRIU.
struct TracerState {
    listener: Listener,
    criu: i32,
    handle: Handle,
    tracees: BTreeMap<i32, Tracee>,
    /// By process: of those that CRIU has touched, and of others that stand.
    shared: BTreeMap<i32, Shared>,
    untouched: BTreeMap<i32, Shared>,
    /// That each process has one of both; looked at anew once that may have changed.
    knows_all: bool,
    /// CRIU's sockets that it accepts connections on, by its numbers for them.
    listening: BTreeMap<i32, OwnedFd>,
    /// Its connections to its code.
    connections: Vec<OwnedFd>,
    /// Whether it is told of pages only that were written to since they were protected: others were copied ahead.
    hides_unwritten: bool,
    /// Where CRIU has a library of ours: what that is told of threads that stand.
    answers: Option<Answers>,
    /// Where what CRIU does not keep of processors goes.
    processor: Option<processor::Found>,
    /// The one that CRIU, we and the thread that it leads have, from the first such thread on.
    processor_of_all: Option<CpuSet>,
}

/// Whether a program had to be mended, and why that failed if it did.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Mended {
    pub processes: Vec<i32>,
    pub failed: Option<String>,
}

/// Traces for `criu` until that has ended. What it still held is given back all that was changed, and let go of once the
/// other end of `owner` is closed. SIGCHLD is to be blocked in this thread.
fn stand(
    listener: OwnedFd,
    criu: i32,
    owner: &OwnedFd,
    hides_unwritten: bool,
    answers: Option<Answers>,
    processor: Option<processor::Found>,
) -> io::Result<Mended> {
    let mut stand = TracerState {
        listener: Listener::new(listener),
        criu,
        handle: Handle::open(criu)?,
        tracees: BTreeMap::new(),
        shared: BTreeMap::new(),
        untouched: BTreeMap::new(),
        knows_all: false,
        listening: BTreeMap::new(),
        connections: Vec::new(),
        hides_unwritten,
        answers,
        processor,
        processor_of_all: None,
    };
    while stand.serve()? {}
    let mended = stand.mend();
    // Whoever knows of an image that is complete ends the program before that.
    if !stand.tracees.is_empty() {
        process::readable(owner.as_fd(), None)?;
    }
    for (&thread, tracee) in &mut stand.tracees {
        mend::let_go(thread, tracee);
    }
    interrupted::forget_ended();
    Ok(mended)
}

impl TracerState {
    /// Answers the next call; false once CRIU has ended.
    fn serve(&mut self) -> io::Result<bool> {
        let limit = if self.is_all_looked_at() { PollTimeout::NONE } else { PollTimeout::from(PAUSE_MS) };
        let fds = [self.handle.as_fd(), self.listener.as_fd()];
        let mut polled = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut polled, limit) {
            Err(nix::Error::EINTR) => return Ok(true),
            Ok(0) => {
                self.prefetch();
                return Ok(true);
            }
            other => other?,
        };
        let [ended, told] = polled.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        if !ended.is_empty() {
            return Ok(false);
        }
        if told.contains(PollFlags::POLLIN)
            && let Some(call) = self.listener.take()
        {
            self.do_posted();
            if let Some(answer) = self.answer(&call) {
                self.listener.answer(&call, &answer);
            }
        }
        Ok(true)
    }

    /// Does what CRIU has left with us before this call.
    fn do_posted(&mut self) {
        let ours = Memory(std::process::id() as i32);
        for posted in self.answers.as_ref().map(Answers::posted).unwrap_or_default() {
            let part = libc::iovec {
                iov_base: posted.bytes.as_ptr().cast_mut().cast(),
                iov_len: posted.bytes.len(),
            };
            let data = match posted.request {
                libc::PTRACE_SETREGSET => &raw const part as u64,
                SETSIGMASK => posted.bytes.as_ptr() as u64,
                _ => posted.data,
            };
            let done = self.carry_out(posted.request, posted.thread, posted.address, data, ours);
            // Of one that cannot be interrupted a wait tells why.
            if let Err(error) = done
                && posted.request != libc::PTRACE_INTERRUPT
                && let Some(tracee) = self.tracees.get_mut(&posted.thread)
            {
                tracee.failed = tracee.failed.or(error.raw_os_error()).or(Some(libc::EIO));
            }
        }
    }

    /// None where nobody waits for it any more.
    fn answer(&mut self, call: &Call) -> Option<Answer> {
        match call.number {
            libc::SYS_ptrace => Some(self.trace(call).unwrap_or_else(Answer::from)),
            libc::SYS_wait4 => self.wait(call),
            libc::SYS_listen => {
                if let Some(socket) = self.descriptor(call) {
                    self.listening.insert(call.words[0] as i32, socket);
                }
                Some(Answer::Kernel)
            }
            libc::SYS_ioctl => Some(self.scan(call)),
            libc::SYS_prlimit64 => Some(limits::tell(call).unwrap_or_else(Answer::from)),
            _ => Some(self.accept(call)),
        }
    }

    /// Looks for CRIU's pages in its place.
    fn scan(&self, call: &Call) -> Answer {
        if !self.hides_unwritten || call.pid != self.criu {
            return Answer::Kernel;
        }
        let Some(pagemap) = self.descriptor(call) else { return Answer::Kernel };
        pages::scan(&pagemap, Memory(call.pid), call.words[2])
            .map_or_else(Answer::from, |found| found.map_or(Answer::Kernel, Answer::Value))
    }

    /// A descriptor of CRIU's that is the first argument of a call.
    fn descriptor(&self, call: &Call) -> Option<OwnedFd> {
        if call.pid != self.criu {
            return None;
        }
        let of = self.handle.as_fd().as_raw_fd();
        // SAFETY: the call takes three integers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, of, call.words[0] as i32, 0) };
        // SAFETY: the kernel has just made this descriptor for us.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    fn accept(&mut self, call: &Call) -> Answer {
        let [socket, address, ..] = call.words;
        let known = self.listening.get(&(socket as i32)).filter(|_| call.pid == self.criu && address == 0);
        let Some(known) = known else { return Answer::Kernel };
        // SAFETY: the kernel has just made this descriptor for us.
        let accepted =
            nix::sys::socket::accept(known.as_raw_fd()).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let both = accepted.map_err(io::Error::from).and_then(|ours| Ok((ours.try_clone()?, ours)));
        match both {
            Ok((theirs, ours)) => {
                self.connections.push(ours);
                Answer::Descriptor(theirs)
            }
            Err(error) => error.into(),
        }
    }

    fn trace(&mut self, call: &Call) -> io::Result<Answer> {
        let [request, thread, address, data, ..] = call.words;
        let (request, thread) = (request as request::Request, thread as i32);
        let asker = Memory(call.pid);
        if request == libc::PTRACE_SEIZE {
            return self.seize(call, thread);
        }
        let known = self.tracees.get_mut(&thread).filter(|tracee| tracee.ahead != Ahead::Seized);
        let Some(tracee) = known else { return Ok(Answer::Kernel) };
        match tracee.failed.take() {
            Some(error) => Ok(Answer::Error(error)),
            None => self.carry_out(request, thread, address, data, asker).map(Answer::Value),
        }
    }

    /// Does what CRIU wants of a thread that we trace, and takes note of it.
    fn carry_out(
        &mut self,
        request: request::Request,
        thread: i32,
        address: u64,
        data: u64,
        asker: Memory,
    ) -> io::Result<i64> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        self.bring_together(request, thread);
        let tracee = self.tracees.get_mut(&thread).ok_or_else(gone)?;
        if let Some(answers) = self.answers.as_ref().filter(|_| !leaves_as_it_is(request, data)) {
            answers.forget(thread);
            answers.forget_memory(address);
        }
        if changes(request) && tracee.stop.is_some() {
            let untouched = &mut self.untouched;
            let take = || untouched.remove(&tracee.process).unwrap_or_else(|| Shared::take(tracee.process));
            let shared = self.shared.entry(tracee.process).or_insert_with(take);
            if tracee.before.is_none() {
                let before = Before::take(thread)?;
                if let (Some(found), Some(registers)) = (&mut self.processor, before.tiles()) {
                    found.keep_tiles(tracee.process, thread, registers)?;
                }
                tracee.before = Some(before.into());
            }
            if matches!(request, libc::PTRACE_POKEDATA | libc::PTRACE_POKETEXT) {
                shared.words.entry(address).or_insert(Memory(thread).word(address)?);
            }
        }
        match (request, &tracee.before) {
            // Of what CRIU has a thread do, not all is what that was about to do.
            (libc::PTRACE_DETACH, Some(before)) => before.put_back(thread)?,
            (libc::PTRACE_SYSCALL, Some(_)) if tracee.stop == Some(Stop::Call) => {
                mend::stay_in_call(thread)?;
            }
            _ => {}
        }
        // It was interrupted when it was seized.
        if request == libc::PTRACE_INTERRUPT && std::mem::take(&mut tracee.ahead) != Ahead::No {
            return Ok(0);
        }
        let done = carry_out(request, thread, address, data, asker)?;
        match request {
            libc::PTRACE_GETREGSET if address == GENERAL && tracee.before.is_none() => {
                interrupted::tell(thread, asker, data)?;
            }
            libc::PTRACE_CONT | libc::PTRACE_SYSCALL | libc::PTRACE_SINGLESTEP | libc::PTRACE_LISTEN => {
                tracee.stop = None;
                self.knows_all &= self.untouched.remove(&tracee.process).is_none();
            }
            libc::PTRACE_SETOPTIONS => tracee.options = data,
            libc::PTRACE_DETACH => {
                self.tracees.remove(&thread);
                // Its code is out of the program by then, or waits for the end of these.
                self.connections.clear();
                self.listening.clear();
            }
            _ => {}
        }
        Ok(done)
    }

    fn note(&mut self, thread: i32, status: i32) {
        if !libc::WIFSTOPPED(status) {
            self.tracees.remove(&thread);
        } else if let Some(tracee) = self.tracees.get_mut(&thread) {
            tracee.stop = Some(Stop::read(status));
            tracee.gets_back_processors(thread);
            if let Some(answers) = &mut self.answers {
                let (memory, known) = prefetch::answers(thread, tracee.before.is_none());
                answers.tell(thread, memory, &known);
            }
        }
    }
}
