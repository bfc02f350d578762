//! A conversation with `criu swrk`, for a dump or a restore.
//!
//! CRIU announces each step and waits for leave to go on, which its caller gives; a refusal makes CRIU undo what it
//! did. CRIU outlives a caller that dies meanwhile: its next announcement fails, and it undoes all too.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, send, shutdown, socketpair,
};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::ending::Watch;
use crate::message::Step;
use crate::process;
use crate::rpc::{self, Response};
use crate::tracer::{self, Mended, Tracer, TracerMode};

const PACKET: usize = 1 << 16;
/// CRIU's first errors are the cause, the later ones what came of it.
const CAUSES: usize = 4;

/// Why a dump or restore did not happen.
#[derive(Debug)]
pub enum Failed {
    Aborted(String),
    Criu(String),
}

/// A library of ours that is loaded into CRIU.
pub trait Library {
    /// What CRIU is to have.
    fn descriptors(&self) -> Vec<RawFd>;
    /// The variables that name them.
    fn environment(&self) -> Vec<(&'static str, String)>;
    /// It is for this CRIU.
    fn serve(&self, _criu: u32) {}
}

/// Asked at every step of CRIU's, by its name, with the steps that nobody was told of yet.
pub type StepHandler<'a> = dyn FnMut(&str, &mut Vec<Step>) -> Result<(), String> + 'a;

/// How long all may take, and where CRIU's words are.
pub struct ConversationOptions {
    pub whole: Option<Duration>,
    pub log: PathBuf,
    /// Where the images are of what is restored; a dump has none.
    pub restores: Option<PathBuf>,
}

/// A `criu swrk` that works for this process. It lets go of what it holds when we are gone, and is killed only if it
/// waits for what never comes.
#[derive(Debug)]
pub struct Service {
    child: Child,
    socket: OwnedFd,
    began: Instant,
    /// Steps that nobody was told of yet.
    steps: Vec<Step>,
    /// Who traces for it, until it has ended.
    tracer: Option<Tracer>,
}

/// So often it is looked whether one that says nothing has ended.
const LOOK: Duration = Duration::from_millis(10);

impl Service {
    /// Starts CRIU with the descriptors `passed` open in it too. One that is to dump has a tracer.
    pub fn spawn(
        command: &[std::ffi::OsString],
        passed: &[RawFd],
        tracer: Option<TracerMode<'_>>,
        library: Option<&dyn Library>,
    ) -> Result<Self, Failed> {
        let failed = |error: io::Error| Failed::Criu(format!("starting CRIU: {error}"));
        let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        let (ours, theirs) =
            socketpair(kind.0, kind.1, None, kind.2).map_err(|error| failed(error.into()))?;
        let (program, args) = command.split_first().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let mut keep = passed.to_vec();
        keep.push(theirs.as_raw_fd());
        let mut command = Command::new(program);
        command.args(args).arg("swrk").arg(theirs.as_raw_fd().to_string());
        let scans = matches!(tracer, Some(TracerMode::Here { hides_unwritten: true, .. }));
        let told = tracer::Told { scans, limits: tracer::limits_are_withheld() };
        keep.extend(library.iter().flat_map(|library| library.descriptors()));
        let filter = tracer.map(|mode| Ok((mode, tracer::pair()?))).transpose().map_err(failed)?;
        let filter_to = filter.as_ref().map(|(_, (_, to))| to.as_raw_fd());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        command.envs(library.iter().flat_map(|library| library.environment()));
        // SAFETY: the closure only makes system calls that are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                SigSet::all().thread_unblock()?;
                // A caller that is gone must not end it: it has to undo what it did.
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                // A restored program whose session began outside of its tree joins CRIU's.
                libc::setsid();
                for &fd in &keep {
                    if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                filter_to.map_or(Ok(()), |to| tracer::install_and_send(to, told))
            })
        };
        let mut child = command.spawn().map_err(failed)?;
        library.iter().for_each(|library| library.serve(child.id()));
        let tracer = filter.map(|(mode, ends)| Tracer::start(mode, ends)).transpose();
        let tracer = tracer.map_err(|error| {
            // It has touched nothing yet.
            let _ = child.kill();
            let _ = child.wait();
            Failed::Criu(format!("starting the tracer: {error}"))
        })?;
        Ok(Self { child, socket: ours, began: Instant::now(), steps: Vec::new(), tracer })
    }

    /// Makes a request and answers CRIU until it is done; the pid that it tells of.
    pub fn converse(
        &mut self,
        request: &[u8],
        course: &ConversationOptions,
        leave: &mut StepHandler<'_>,
    ) -> Result<Option<i32>, Failed> {
        self.ask(request)?;
        self.attend(course, leave)
    }

    /// Makes a request. CRIU begins, and waits at its first step until [`Service::attend`] answers it.
    pub fn ask(&mut self, request: &[u8]) -> Result<(), Failed> {
        self.began = Instant::now();
        self.send(request).map_err(trouble)
    }

    /// Waits until CRIU has come to its first step, or has ended, for so long at most.
    pub fn await_first_step(&self, most: Duration) -> Result<(), Failed> {
        let until = Instant::now() + most;
        while !process::readable(self.socket.as_fd(), Some(LOOK)).map_err(trouble)?
            && Instant::now() < until
            && !self.has_ended(WaitPidFlag::WNOHANG)
        {}
        Ok(())
    }

    /// Answers CRIU until it has done what it was asked; the pid that it tells of.
    pub fn attend(
        &mut self,
        course: &ConversationOptions,
        leave: &mut StepHandler<'_>,
    ) -> Result<Option<i32>, Failed> {
        let deadline = course.whole.map(|whole| self.began + whole);
        let mut aborted = None;
        let criu = self.pid().as_raw();
        let mut watch = match &course.restores {
            Some(images) => Watch::of_whole_restore(criu, images),
            None => Watch::of_dump(criu),
        };
        let ended = |pid: i32| Failed::Criu(format!("process {pid} ended while CRIU held it"));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let look = left.map_or(Watch::EVERY, |left| left.min(Watch::EVERY));
            if !process::readable(self.socket.as_fd(), Some(look)).map_err(trouble)? {
                // Children of it that it has left have its end of the socket too.
                if self.has_ended(WaitPidFlag::WNOHANG) && !self.has_said()? {
                    return Err(Failed::Criu(self.end(&course.log)));
                }
                if let Some(pid) = watch.look() {
                    let _ = self.child.kill();
                    return Err(ended(pid));
                }
                if left.is_some_and(|left| left <= look) {
                    let whole = course.whole.unwrap_or_default();
                    return Err(Failed::Criu(format!(
                        "it took longer than {whole:?}; {}",
                        cause(&course.log, None)
                    )));
                }
                continue;
            }
            let mut packet = vec![0; PACKET];
            let length = match recv(self.socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
                // It ended with an answer of ours unread.
                Err(nix::Error::ECONNRESET) => 0,
                received => received.map_err(|error| trouble(error.into()))?,
            };
            match rpc::response(&packet[..length]) {
                _ if length == 0 => {
                    let who = watch.ended();
                    return Err(who.map_or_else(|| Failed::Criu(self.end(&course.log)), ended));
                }
                None => return Err(Failed::Criu("its answer is not in CRIU's protocol".into())),
                Some(Response::Notify { step }) => {
                    self.step(&step);
                    watch.note(&step);
                    let verdict = leave(&step, &mut self.steps);
                    if verdict.is_err() {
                        // It ends them itself.
                        watch = Watch::of_dump(criu);
                    }
                    let answered = self.send(&rpc::notify_answer(verdict.is_ok()));
                    aborted = aborted.or(verdict.err());
                    // One that has ended meanwhile is told of by that.
                    if let Err(error) = answered {
                        let cause = aborted.map(Failed::Aborted);
                        return Err(match error.kind() {
                            io::ErrorKind::BrokenPipe => {
                                cause.unwrap_or_else(|| Failed::Criu(self.end(&course.log)))
                            }
                            _ => trouble(error),
                        });
                    }
                }
                Some(Response::Finished { success: true, pid, .. }) => return Ok(pid),
                Some(Response::Finished { message, .. }) => {
                    return Err(match aborted {
                        Some(cause) => Failed::Aborted(cause),
                        None => Failed::Criu(cause(&course.log, message)),
                    });
                }
            }
        }
    }

    /// A step was done, by CRIU or after it.
    pub fn step(&mut self, name: &str) {
        self.steps.push(Step { name: name.to_string(), at_us: self.began.elapsed().as_micros() as u64 });
    }

    /// The steps since they were taken last, counted from when CRIU was asked.
    pub fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Whether it has ended, which is not taken note of.
    fn has_ended(&self, how: WaitPidFlag) -> bool {
        let how = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | how;
        loop {
            match waitid(Id::Pid(self.pid()), how) {
                Err(nix::Error::EINTR) => {}
                Ok(WaitStatus::StillAlive) => return false,
                _ => return true,
            }
        }
    }

    /// Whether nobody has taken note of its end, as init does of any child's.
    fn is_ours(&self) -> bool {
        let how = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        waitid(Id::Pid(self.pid()), how).is_ok()
    }

    fn has_said(&self) -> Result<bool, Failed> {
        process::readable(self.socket.as_fd(), Some(Duration::ZERO)).map_err(trouble)
    }

    pub fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended, and the program is let go of.
    pub fn wait(&mut self) -> Mended {
        // Its answer has told all; only the process is left.
        self.has_ended(WaitPidFlag::empty());
        if self.tracer.is_some() && self.is_ours() {
            // Its group has its own children alone, and its number until it is taken note of. Without them nothing is left.
            let _ = killpg(self.pid(), Signal::SIGKILL);
        }
        let _ = self.child.wait();
        let mended = self.tracer.take().map(Tracer::finish).unwrap_or_default();
        if let Some(cause) = &mended.failed {
            log::error!("{cause}");
        }
        mended
    }

    /// How one ended that gave no answer.
    fn end(&mut self, log: &Path) -> String {
        let is_traced = self.tracer.is_some();
        let mended = self.wait();
        let signal = self.child.wait().ok().and_then(|status| status.signal());
        let how = match signal {
            Some(signal) => format!("it was killed by signal {signal}"),
            None => format!("it ended without an answer; {}", cause(log, None)),
        };
        match mended.failed {
            Some(failed) => format!("{how}; {failed}"),
            None if is_traced => format!("{how}; what it had changed was undone, and the program goes on"),
            None => how,
        }
    }

    /// Ends one that waits at its first step: without an answer it gives up, and has touched nothing.
    pub fn dismiss(mut self) {
        // Only its process and its tracer are left.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        self.wait();
    }
}

fn trouble(error: io::Error) -> Failed {
    Failed::Criu(format!("talking to CRIU: {error}"))
}

/// CRIU asks for more descriptors where it may; that it may not is no error.
const HARMLESS: &str = "rlimit: Can't setup RLIMIT_NOFILE for self";

/// How CRIU before 4.2 fails on every internet socket under Linux 6.16 and newer.
const NO_PASSCRED: &str = "sockets: Can't get 1:16 opt";
const OLD_CRIU: &str = "the program has an internet socket, which needs CRIU 4.2 on this kernel \
    (`scripts/criu` in Rekindle's sources sets it up; `make install` puts it into an installation)";

/// What CRIU says of what it cannot take, and what that means.
const EXPLAINED: [(&str, &str); 4] = [
    (NO_PASSCRED, OLD_CRIU),
    (
        "Can't get rlimit",
        "a process of the program runs as another user than the daemon, and CRIU can only read the limits of such with \
         CAP_SYS_RESOURCE, which the daemon is to be given (`rekindle doctor`)",
    ),
    (
        "unix: External socket is used",
        "the program has a Unix socket to a process outside of it; close that, or have the other process in the program's tree",
    ),
    (
        "handle_device_vma plugin failed",
        "the program has memory of a device mapped, as what uses a GPU past CUDA does (OpenCL, Vulkan, video); have it do \
         without",
    ),
];

/// CRIU's own words: the errors in its log, else its message.
fn cause(log: &Path, message: Option<String>) -> String {
    let mut text = Vec::new();
    // Without a log, the message has to do.
    let _ = fs::File::open(log).and_then(|mut file| file.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let errors: Vec<_> =
        text.lines().filter_map(error_text).filter(|text| !text.starts_with(HARMLESS)).take(CAUSES).collect();
    match (errors.is_empty(), message) {
        (false, _) => {
            let known = EXPLAINED.iter().find(|(said, _)| errors[0].starts_with(said));
            let meaning = known.map(|(_, meaning)| meaning.to_string()).or_else(|| ended(errors[0]));
            let meaning = meaning.map(|meaning| format!("; {meaning}")).unwrap_or_default();
            format!("{}{meaning}", errors.join("; "))
        }
        (true, Some(message)) if !message.is_empty() => message,
        (true, _) => "it gave no reason".into(),
    }
}

/// What an error such as `Unable to detach 1000: No such process` means.
fn ended(error: &str) -> Option<String> {
    let pid: i32 = error.strip_suffix(": No such process")?.rsplit(' ').next()?.parse().ok()?;
    Some(format!("process {pid} ended while CRIU held it"))
}

/// The text of an error line such as `(00.012) Error (criu/sk-inet.c:123): inet: Connected TCP socket`.
fn error_text(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("Error (")?;
    after.split_once("): ").map(|(_, text)| text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_first_errors_of_the_log() {
        let line = "(00.012) Error (criu/sk-inet.c:123): inet: Connected TCP socket";
        assert_eq!(error_text(line), Some("inet: Connected TCP socket"));
        assert_eq!(error_text("(00.1) Warn  (criu/x.c:1): no"), None);
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(cause(&log, Some("said".into())), "said");
        assert_eq!(cause(&log, None), "it gave no reason");
        fs::write(&log, format!("{line}\n(00.013) Error (criu/cr-dump.c:1): Dumping FAILED.\n")).unwrap();
        assert_eq!(cause(&log, None), "inet: Connected TCP socket; Dumping FAILED.");
        fs::write(&log, "(00.1) Error (criu/sk-unix.c:1): unix: External socket is used. Consider\n")
            .unwrap();
        assert!(cause(&log, None).ends_with("in the program's tree"));
        let device = "(00.1) Error (criu/proc_parse.c:1): handle_device_vma plugin failed: No such file or directory\n";
        fs::write(&log, device).unwrap();
        assert!(cause(&log, None).ends_with("(OpenCL, Vulkan, video); have it do without"));
        fs::write(&log, "(00.2) Error (compel/x.c:1): Unable to detach 1000: No such process\n").unwrap();
        assert!(cause(&log, None).ends_with("; process 1000 ended while CRIU held it"));
    }
}
