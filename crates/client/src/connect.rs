//! `cuInit`: the way from a process to its worker.

use std::io::ErrorKind;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED, CuResult};
use rekindle_protocol::client::{
    ADMISSION_SOCKET, ADMISSION_VERSION, Admission, AdmissionRequest, CLIENT_VERSION, RUN_DIRECTORY,
    ToWorker, Welcome, file_name,
};
use rekindle_protocol::frame::{self, FrameError};
use rekindle_ring::{BoardMapping, Liveness, SharedError};

use crate::abi::Result;
use crate::report::report;
use crate::session::{self, Session};
use crate::{control, fork, genuine};

/// How long a daemon that is started anew may take to be there.
const DAEMON_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks for it.
const BETWEEN: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{RUN_DIRECTORY} is not set: run the program with `rekindle run` to give it a GPU")]
    Outside,
    #[error("cannot reach the daemon at {path}: {source}; is rekindled running?", path = path.display())]
    Unreachable { path: PathBuf, source: std::io::Error },
    #[error("the daemon gave no answer: {0}")]
    Admission(FrameError),
    #[error("this process gets no GPU: {0}")]
    Refused(String),
    #[error("the daemon admitted this process but sent no socket to a worker")]
    NoSocket,
    #[error(
        "this process's libcuda.so.1 speaks version {CLIENT_VERSION} of the client's protocol, and its worker version {0}; \
         use both of one installation"
    )]
    Version(u32),
    #[error("the worker gave no answer: {0}")]
    Welcome(FrameError),
    #[error("{0}")]
    Shared(#[from] SharedError),
    #[error("cannot start the client's threads: {0}")]
    Threads(std::io::Error),
}

/// `cuInit`. The first call connects; one that failed is tried again by the next.
pub fn initialise(flags: u32) -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if fork::is_child() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if session::get().is_ok() {
        return Ok(());
    }
    connect().map_err(|error| {
        report(format_args!("{error}"));
        CuResult::from(error)
    })
}

impl From<ConnectError> for CuResult {
    fn from(_: ConnectError) -> CuResult {
        CUDA_ERROR_NO_DEVICE
    }
}

fn connect() -> std::result::Result<(), ConnectError> {
    let directory = PathBuf::from(std::env::var_os(RUN_DIRECTORY).ok_or(ConnectError::Outside)?);
    let (socket, control, welcome) = ask(&directory.join(ADMISSION_SOCKET))?;

    let name = file_name("board", std::process::id(), 0);
    let path = directory.join(&name);
    // An earlier program of this pid may have left its own.
    let _ = std::fs::remove_file(&path);
    let board = BoardMapping::create(&path)?;
    board.set_client(Liveness::Alive);
    let bytes = std::fs::metadata(&path).map_or(0, |m| m.len());
    let process = own_process();
    let descriptors: Vec<_> = process.iter().map(AsFd::as_fd).collect();
    frame::send(&control, &ToWorker::Board { name: name.clone(), version: CLIENT_VERSION }, &descriptors)
        .map_err(ConnectError::Welcome)?;
    // A daemon that is gone has written down whom the worker serves.
    let _ = frame::send(&socket, &AdmissionRequest::Settled, &[]);
    drop(socket);

    genuine::open_in_background(welcome.real_driver.as_deref(), &welcome.devices);
    fork::watch();
    let session = Session::new((board, name, bytes), welcome, directory, control).publish();
    control::start(session).map_err(ConnectError::Threads)
}

/// A descriptor of this process, by which the worker finds where it prints.
fn own_process() -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
    // SAFETY: the descriptor is new and nobody else's.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Connects to the admission socket, at which nobody answers while one daemon has ended and the next one has not begun.
fn connect_when_served(socket: &Path) -> std::io::Result<UnixStream> {
    let began = Instant::now();
    let mut said = false;
    loop {
        match UnixStream::connect(socket) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && began.elapsed() < DAEMON_LIMIT => {
                if !said {
                    let seconds = DAEMON_LIMIT.as_secs();
                    report(format_args!("no daemon runs; waiting up to {seconds} s for the next one"));
                    said = true;
                }
                std::thread::sleep(BETWEEN);
            }
            other => return other,
        }
    }
}

fn ask(socket: &Path) -> std::result::Result<(UnixStream, UnixStream, Welcome), ConnectError> {
    let stream = connect_when_served(socket)
        .map_err(|source| ConnectError::Unreachable { path: socket.to_owned(), source })?;
    let knock = AdmissionRequest::Knock { version: ADMISSION_VERSION };
    frame::send(&stream, &knock, &[]).map_err(ConnectError::Admission)?;
    let (admission, descriptors) = frame::receive(&stream).map_err(ConnectError::Admission)?;
    match admission {
        Admission::Admitted => {}
        Admission::Refused(why) => return Err(ConnectError::Refused(why)),
        Admission::Waking { .. } => return Err(ConnectError::NoSocket),
    }
    let control = UnixStream::from(descriptors.into_iter().next().ok_or(ConnectError::NoSocket)?);
    let (welcome, _) = frame::receive::<Welcome>(&control).map_err(ConnectError::Welcome)?;
    if welcome.version != CLIENT_VERSION {
        return Err(ConnectError::Version(welcome.version));
    }
    Ok((stream, control, welcome))
}
