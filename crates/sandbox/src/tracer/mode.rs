//! Where the tracer is: a thread of the sandbox's init, or a process of its own beside a program without a sandbox.
//!
//! Who traces must outlive CRIU. Init's end is that of the program anyway; a daemon's is not, so there it is a process that
//! does nothing else.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, Signal};

use super::filter::receive;
use super::{Mended, stand};
use crate::assist::{Answers, Assist};
use crate::{process, processor};

/// The argument with which a tracer is run as a process.
pub const TRACER_ARGUMENT: &str = "criu-tracer";

#[derive(Debug)]
pub enum TracerMode<'a> {
    Here {
        /// Whether CRIU is told of pages only that were written to since they were protected.
        hides_unwritten: bool,
        /// What CRIU has of ours, if it has that.
        assist: Option<Arc<Assist>>,
        /// Where what CRIU does not keep of processors goes, where there is any.
        processor: Option<processor::Found>,
    },
    Process {
        /// The number of a descriptor is added, and what is to be kept.
        command: &'a [OsString],
        /// Where the images go, and the program's first process, for what CRIU does not keep; none where they are not ours.
        kept: Option<(&'a Path, i32)>,
    },
}

/// A tracer at work. It lets go of what a CRIU that has ended held when this is dropped.
#[derive(Debug)]
pub struct Tracer {
    work: TracerHandle,
    /// The end by which the filter's descriptor was sent: it is told by its close.
    owner: OwnedFd,
}

#[derive(Debug)]
enum TracerHandle {
    Thread(JoinHandle<Mended>),
    Process(Child),
}

impl Tracer {
    /// The ends are those of the pair by which the filter's descriptor was sent.
    pub fn start(mode: TracerMode<'_>, (from, owner): (OwnedFd, OwnedFd)) -> io::Result<Self> {
        let work = match mode {
            TracerMode::Here { hides_unwritten, assist, processor } => {
                let thread = std::thread::Builder::new().name("tracer".into());
                TracerHandle::Thread(
                    thread
                        .spawn(move || trace(&from, hides_unwritten, assist.map(Answers::new), processor))?,
                )
            }
            TracerMode::Process { command, kept } => {
                TracerHandle::Process(Self::process(command, kept, from)?)
            }
        };
        Ok(Self { work, owner })
    }

    fn process(words: &[OsString], kept: Option<(&Path, i32)>, from: OwnedFd) -> io::Result<Child> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let passed = from.as_raw_fd();
        let mut command = Command::new(program);
        command.args(arguments).arg(passed.to_string());
        if let Some((images, program)) = kept {
            command.arg(images).arg(program.to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: the closure only makes system calls that are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // Signals for the daemon's terminal or group are not for it.
                libc::setsid();
                if libc::fcntl(passed, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            })
        };
        command.spawn()
    }

    /// Waits until it has let go of the program: not before CRIU has ended.
    pub fn finish(self) -> Mended {
        let Self { work, owner } = self;
        drop(owner);
        let lost = || Mended { failed: Some("the tracer ended before CRIU".into()), ..Mended::default() };
        match work {
            TracerHandle::Thread(thread) => thread.join().unwrap_or_else(|_| lost()),
            TracerHandle::Process(mut child) => {
                let mut said = Vec::new();
                if let Some(mut output) = child.stdout.take() {
                    // What is cut is not understood below.
                    let _ = output.read_to_end(&mut said);
                }
                let _ = child.wait();
                serde_json::from_slice(&said).unwrap_or_else(|_| lost())
            }
        }
    }
}

/// Traces for the CRIU whose filter comes, if one does.
fn trace(
    from: &OwnedFd,
    hides_unwritten: bool,
    answers: Option<Answers>,
    processor: Option<processor::Found>,
) -> Mended {
    let mut told = SigSet::empty();
    told.add(Signal::SIGCHLD);
    let traced = told.thread_block().map_err(io::Error::from).and_then(|()| match receive(from)? {
        Some((listener, criu)) => stand(listener, criu, from, hides_unwritten, answers, processor),
        None => Ok(Mended::default()),
    });
    let failed = |error| Mended { failed: Some(format!("tracing for CRIU: {error}")), ..Mended::default() };
    traced.unwrap_or_else(failed)
}

/// `criu-tracer FD [IMAGES PID]`: traces for the CRIU whose filter comes by that descriptor, and tells on standard output how it
/// went. What CRIU does not keep of that program goes to the directory of its images.
pub fn tracer_main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let fd = words.next().and_then(|word| word.to_str()?.parse::<RawFd>().ok()).filter(|fd| *fd > 2);
    let Some(fd) = fd else {
        eprintln!("{TRACER_ARGUMENT} takes the number of a descriptor; the daemon runs this");
        return ExitCode::FAILURE;
    };
    let processor = words.next().zip(words.next()).map(|(images, program)| {
        let program = program.to_str().and_then(|word| word.parse().ok()).unwrap_or_default();
        processor::Found::ask_all(Path::new(&images), &process::tree(program))
    });
    let processor = processor.transpose();
    let processor = match processor {
        Ok(processor) => processor,
        Err(error) => {
            eprintln!("{TRACER_ARGUMENT}: finding out what the program has of the processor: {error}");
            return ExitCode::FAILURE;
        }
    };
    // A directory of the daemon's is not kept busy.
    let _ = nix::unistd::chdir("/");
    // SAFETY: the daemon made this descriptor for us and nothing else in this process knows it.
    let mended = trace(&unsafe { OwnedFd::from_raw_fd(fd) }, false, None, processor);
    let told = serde_json::to_vec(&mended).map_err(io::Error::from);
    // A daemon that is gone hears nothing.
    match told.and_then(|told| io::stdout().write_all(&told)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
