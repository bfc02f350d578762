//! This process's connection to its worker: made by the first `cuInit`, there until the process ends.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{
    CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_OPERATING_SYSTEM, CuResult,
};
use rekindle_device::DeviceInfo;
use rekindle_protocol::client::{ToWorker, Welcome, file_name};
use rekindle_protocol::frame;
use rekindle_ring::{Board, Liveness, RING_BYTES, Ring, Spin};

use crate::abi::Result;
use crate::report::report;

static CURRENT: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());

pub struct Session {
    pub board: &'static Board,
    pub spin: Spin,
    pub welcome: Welcome,
    pub directory: PathBuf,
    /// The pid as the program sees it.
    pub process: u32,
    pub control: UnixStream,
    sending: Mutex<()>,
    rings: Mutex<Vec<Ring>>,
    files_made: AtomicU32,
    /// Files of the run directory that are mapped here: name to bytes.
    files: Mutex<BTreeMap<String, u64>>,
    dead: AtomicBool,
}

/// The session, or `CUDA_ERROR_NOT_INITIALIZED`.
pub fn get() -> Result<&'static Session> {
    let session = CURRENT.load(Ordering::Acquire);
    if session.is_null() {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    // SAFETY: `publish` stored a leaked box, which is never freed.
    Ok(unsafe { &*session })
}

/// In a forked child: there is no session here. That of its parent, if there was one.
pub fn forget_in_child() -> Option<&'static Session> {
    let session = CURRENT.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: as in `get`.
    let session = unsafe { session.as_ref() }?;
    // SAFETY: the descriptor is the child's own copy, and nobody uses it here any more.
    unsafe { libc::close(session.control.as_raw_fd()) };
    Some(session)
}

impl Session {
    pub fn new(
        board: (&'static Board, String, u64),
        welcome: Welcome,
        directory: PathBuf,
        control: UnixStream,
    ) -> Session {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Session {
            board: board.0,
            spin: Spin::for_cores(cores),
            welcome,
            directory,
            process: std::process::id(),
            control,
            sending: Mutex::new(()),
            rings: Mutex::new(Vec::new()),
            files_made: AtomicU32::new(0),
            files: Mutex::new(BTreeMap::from([(board.1, board.2)])),
            dead: AtomicBool::new(false),
        }
    }

    /// From now on [`get`] gives this session.
    pub fn publish(self) -> &'static Session {
        let session = Box::leak(Box::new(self));
        CURRENT.store(session, Ordering::Release);
        session
    }

    pub fn alive(&self) -> bool {
        self.board.worker() != Liveness::Dead
    }

    /// The worker is gone: every call fails from now on, and one line says why.
    pub fn worker_died(&self, why: &str) {
        self.board.set_worker(Liveness::Dead);
        if !self.dead.swap(true, Ordering::AcqRel) {
            report(format_args!(
                "the GPU worker of this program is gone ({why}); every CUDA call now returns \
                 CUDA_ERROR_DEVICE_UNAVAILABLE"
            ));
        }
    }

    pub fn send(&self, message: &ToWorker) -> Result<()> {
        let _one_at_a_time = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        frame::send(&self.control, message, &[]).map_err(|_| CUDA_ERROR_DEVICE_UNAVAILABLE)
    }

    pub fn control_descriptor(&self) -> RawFd {
        self.control.as_raw_fd()
    }

    pub fn device(&self, device: usize) -> Result<&DeviceInfo> {
        self.welcome.devices.get(device).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The device's asynchronous error: a sticky one stays, another is taken.
    pub fn take_error(&self, device: u8) -> Result<()> {
        CuResult(self.board.take_error(device.into(), |code| CuResult(code).is_sticky())).ok()
    }

    /// The device's sticky error, if it has one.
    pub fn sticky_error(&self, device: u8) -> Result<()> {
        match CuResult(self.board.take_error(device.into(), |_| true)) {
            code if code.is_sticky() => Err(code),
            _ => Ok(()),
        }
    }

    /// A new ring, known to the worker and unknown to children, with its index.
    pub fn make_ring(&self) -> Result<(u32, Ring)> {
        let mut rings = self.rings();
        let index = rings.len() as u32;
        let name = file_name("ring", self.process, index);
        let path = self.directory.join(&name);
        let _ = std::fs::remove_file(&path);
        let ring = Ring::create(&path).map_err(|error| {
            report(format_args!("{error}"));
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        // SAFETY: the ring's mapping starts where its header is and is RING_BYTES long.
        unsafe {
            libc::madvise(ptr::from_ref(ring.header()).cast_mut().cast(), RING_BYTES, libc::MADV_DONTFORK)
        };
        self.files().insert(name.clone(), RING_BYTES as u64);
        self.send(&ToWorker::Ring { index, name })?;
        rings.push(ring);
        Ok((index, ring))
    }

    /// All rings, by their indices.
    pub fn rings(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name that no file of this process has had: `KIND-PID-N`.
    pub fn new_file_name(&self, kind: &str) -> String {
        file_name(kind, self.process, self.files_made.fetch_add(1, Ordering::Relaxed))
    }

    /// Files of the run directory that are mapped here.
    pub fn files(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
