//! Dump and restore, as seen from inside the sandbox: a conversation with `criu swrk`.
//!
//! CRIU announces each step and waits for leave to go on. At `post-dump` (the images are written, the program
//! still stands) and at `post-restore` (the program is complete, not yet running) the daemon is asked; any
//! answer but [`Verdict::Commit`] makes CRIU undo what it did. CRIU outlives a daemon that dies meanwhile.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::unistd::Pid;

use super::mounts::{LOG_PATH, RUN_PATH};
use super::program::{FIRST_PID, open_log, set_last_pid};
use crate::message::{Dump, DumpStats, Reply, Restore, Step, Verdict};
use crate::rpc::{self, Options, Response};
use crate::wire::Channel;
use crate::{devshm, process};

/// CRIU's log of a dump, among the images.
pub const DUMP_LOG: &str = "dump.log";
/// CRIU's log of a restore, in the run directory.
pub const RESTORE_LOG: &str = "restore.log";
const PACKET: usize = 1 << 16;
/// CRIU's first errors are the cause, the later ones what came of it.
const CAUSES: usize = 4;

/// Why a dump or restore did not happen.
pub enum Failed {
    Aborted(String),
    Criu(String),
}

impl From<Failed> for Reply {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Aborted(cause) => Self::Aborted(cause),
            Failed::Criu(cause) => Self::Failed(cause),
        }
    }
}

/// When the daemon is asked, and how long things may take.
struct Course<'a> {
    step: &'static str,
    /// Done by init at that step, before the daemon is asked.
    first: &'a dyn Fn() -> Result<(), String>,
    verdict: Duration,
    whole: Option<Duration>,
    log: PathBuf,
}

pub fn dump(
    dump: &Dump,
    descriptors: Vec<OwnedFd>,
    program: Pid,
    channel: &Channel,
) -> Result<DumpStats, Failed> {
    let [images] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|_| Failed::Criu("the images directory did not come with the command".into()))?;
    refuse_strays(program)?;
    let dir = PathBuf::from(format!("/proc/self/fd/{}", images.as_raw_fd()));
    let options = Options {
        images_dir: images.as_raw_fd(),
        work_dir: None,
        pid: Some(program.as_raw()),
        leave_running: dump.leave_running,
        tcp_established: dump.tcp_established,
        timeout_seconds: Some(dump.freeze_seconds),
        log_file: DUMP_LOG,
        log_level: rpc::LOG_DEBUG,
        external: dump.external_sockets.iter().map(|inode| format!("unix[{inode}]")).collect(),
        inherit: Vec::new(),
    };
    let keep_shared = || {
        devshm::copy(Path::new("/dev/shm"), &dir.join(devshm::NAME))
            .map_err(|error| format!("copying the files in /dev/shm: {error}"))
    };
    let course = Course {
        step: "post-dump",
        first: &keep_shared,
        verdict: Duration::from_millis(dump.verdict_millis),
        whole: None,
        log: dir.join(DUMP_LOG),
    };
    let mut criu = Criu::spawn(&dump.criu, &[])?;
    let finished = criu.converse(&rpc::dump_request(&options), &course, channel);
    criu.wait();
    finished?;
    let stats = fs::read(dir.join("stats-dump")).ok().and_then(|file| rpc::dump_stats(&file));
    Ok(stats.unwrap_or_default())
}

pub fn restore(restore: &Restore, descriptors: Vec<OwnedFd>, channel: &Channel) -> Result<Pid, Failed> {
    let (images, sockets) =
        descriptors.split_first().filter(|(_, sockets)| sockets.len() == restore.sockets.len()).ok_or_else(
            || Failed::Criu("the images directory and the sockets did not come with the command".into()),
        )?;
    let dir = PathBuf::from(format!("/proc/self/fd/{}", images.as_raw_fd()));
    let shared = dir.join(devshm::NAME);
    if shared.exists() {
        devshm::copy(&shared, Path::new("/dev/shm"))
            .map_err(|error| Failed::Criu(format!("putting back the files in /dev/shm: {error}")))?;
    }
    let log = open_log().map_err(|error| Failed::Criu(format!("opening {LOG_PATH}: {error}")))?;
    // The images may be read-only, and in use by another restore.
    let work =
        fs::File::open(RUN_PATH).map_err(|error| Failed::Criu(format!("opening {RUN_PATH}: {error}")))?;
    let keys = restore.sockets.iter().map(|inode| format!("socket:[{inode}]"));
    let mut inherit: Vec<_> = keys.zip(sockets.iter().map(AsRawFd::as_raw_fd)).collect();
    // CRIU names a regular file by its path without the leading slash.
    inherit.push((LOG_PATH.trim_start_matches('/').to_owned(), log.as_raw_fd()));
    let mut files = Vec::new();
    for file in &restore.files {
        let named = |error| Failed::Criu(format!("opening {}: {error}", file.path.display()));
        let opened = file.open().map_err(named)?;
        inherit.push((file.key(), opened.as_raw_fd()));
        files.push(opened);
    }
    let passed: Vec<_> = inherit.iter().map(|(_, fd)| *fd).collect();
    let options = Options {
        images_dir: images.as_raw_fd(),
        work_dir: Some(work.as_raw_fd()),
        tcp_established: restore.tcp_established,
        log_file: RESTORE_LOG,
        log_level: rpc::LOG_STEPS,
        external: restore.sockets.iter().map(|inode| format!("unix[{inode}]")).collect(),
        inherit,
        ..Options::default()
    };
    // New children of the program get pids above the restored ones, as far from CRIU's as those.
    let raise_pids = || {
        let last = process::all().into_iter().max().unwrap_or(FIRST_PID).max(FIRST_PID);
        set_last_pid(last).map_err(|error| format!("choosing the next pid: {error}"))
    };
    let whole = Duration::from_millis(restore.timeout_millis);
    let course = Course {
        step: "post-restore",
        first: &raise_pids,
        verdict: whole,
        whole: Some(whole),
        log: Path::new(RUN_PATH).join(RESTORE_LOG),
    };
    let mut criu = Criu::spawn(&restore.criu, &passed)?;
    let pid = criu.converse(&rpc::restore_request(&options), &course, channel)?;
    criu.wait();
    pid.map(Pid::from_raw)
        .ok_or_else(|| Failed::Criu("CRIU restored a program without telling its pid".into()))
}

/// A process that left the program's tree would be missing from the dump.
fn refuse_strays(program: Pid) -> Result<(), Failed> {
    let tree = process::tree(program.as_raw());
    let stray = |pid: &i32| *pid != 1 && !tree.contains(pid) && !process::is_zombie(*pid);
    // A parent of 0 is outside: somebody looks into the sandbox from there.
    match process::all().into_iter().find(|pid| stray(pid) && process::parent(*pid) == Some(1)) {
        None => Ok(()),
        Some(pid) => Err(Failed::Criu(format!(
            "process {pid} ({}) has outlived its parent and is no longer a descendant of the program",
            process::name(pid)
        ))),
    }
}

struct Criu {
    child: Child,
    socket: OwnedFd,
}

impl Criu {
    fn spawn(command: &[std::ffi::OsString], passed: &[RawFd]) -> Result<Self, Failed> {
        let failed = |error: io::Error| Failed::Criu(format!("starting CRIU: {error}"));
        let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        let (ours, theirs) =
            socketpair(kind.0, kind.1, None, kind.2).map_err(|error| failed(error.into()))?;
        let (program, args) = command.split_first().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let mut keep = passed.to_vec();
        keep.push(theirs.as_raw_fd());
        let mut command = Command::new(program);
        command.args(args).arg("swrk").arg(theirs.as_raw_fd().to_string());
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        // SAFETY: the closure only makes system calls that are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                super::outer::signals().thread_unblock()?;
                for &fd in &keep {
                    if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            })
        };
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, socket: ours })
    }

    fn converse(
        &mut self,
        request: &[u8],
        course: &Course<'_>,
        channel: &Channel,
    ) -> Result<Option<i32>, Failed> {
        let deadline = course.whole.map(|whole| Instant::now() + whole);
        let began = Instant::now();
        let mut steps = Vec::new();
        let mut aborted = None;
        let trouble = |error: io::Error| Failed::Criu(format!("talking to CRIU: {error}"));
        self.send(request).map_err(trouble)?;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !process::readable(self.socket.as_fd(), left).map_err(trouble)? {
                let whole = course.whole.unwrap_or_default();
                return Err(Failed::Criu(format!(
                    "it took longer than {whole:?}; {}",
                    cause(&course.log, None)
                )));
            }
            let mut packet = vec![0; PACKET];
            let length = recv(self.socket.as_raw_fd(), &mut packet, MsgFlags::empty())
                .map_err(|error| trouble(error.into()))?;
            match rpc::response(&packet[..length]) {
                _ if length == 0 => {
                    return Err(Failed::Criu(format!(
                        "it ended without an answer; {}",
                        cause(&course.log, None)
                    )));
                }
                None => return Err(Failed::Criu("its answer is not in CRIU's protocol".into())),
                Some(Response::Notify { step }) if step == course.step => {
                    steps.push(Step { name: step, at_us: began.elapsed().as_micros() as u64 });
                    let steps = std::mem::take(&mut steps);
                    let verdict = (course.first)().and_then(|()| ask(channel, course.verdict, steps));
                    let commit = verdict.is_ok();
                    aborted = verdict.err();
                    self.send(&rpc::notify_answer(commit)).map_err(trouble)?;
                }
                Some(Response::Notify { step }) => {
                    steps.push(Step { name: step, at_us: began.elapsed().as_micros() as u64 });
                    self.send(&rpc::notify_answer(true)).map_err(trouble)?;
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

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }

    fn wait(&mut self) {
        // Its answer has told all; only the process is left.
        let _ = self.child.wait();
    }
}

/// Tells the daemon that the program stands still and waits for its word.
fn ask(channel: &Channel, within: Duration, steps: Vec<Step>) -> Result<(), String> {
    let gone = |error: io::Error| format!("the daemon cannot be asked: {error}");
    channel.send(&Reply::Frozen { steps }, &[]).map_err(gone)?;
    if !process::readable(channel.as_fd(), Some(within)).map_err(gone)? {
        return Err(format!("the daemon gave no word within {within:?}"));
    }
    match channel.recv::<Verdict>().map_err(gone)? {
        Some((Verdict::Commit, _)) => Ok(()),
        Some((Verdict::Abort(cause), _)) => Err(cause),
        None => Err("the daemon is gone".into()),
    }
}

/// CRIU asks for more descriptors where it may; that it may not is no error.
const HARMLESS: &str = "rlimit: Can't setup RLIMIT_NOFILE for self";

/// How CRIU before 4.2 fails on every internet socket under Linux 6.16 and newer.
const NO_PASSCRED: &str = "sockets: Can't get 1:16 opt";
const OLD_CRIU: &str = "the program has an internet socket, which needs CRIU 4.2 on this kernel \
    (REKINDLE_CRIU_SUITE=forky scripts/criu sets it up)";

/// CRIU's own words: the errors in its log, else its message.
fn cause(log: &Path, message: Option<String>) -> String {
    let mut text = Vec::new();
    // Without a log, the message has to do.
    let _ = fs::File::open(log).and_then(|mut file| file.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let errors: Vec<_> =
        text.lines().filter_map(error_text).filter(|text| !text.starts_with(HARMLESS)).take(CAUSES).collect();
    match (errors.is_empty(), message) {
        (false, _) if errors[0].starts_with(NO_PASSCRED) => format!("{}; {OLD_CRIU}", errors.join("; ")),
        (false, _) => errors.join("; "),
        (true, Some(message)) if !message.is_empty() => message,
        (true, _) => "it gave no reason".into(),
    }
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
    }
}
