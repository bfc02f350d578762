//! Functions of the program's, kept under tokens and run by a thread of the client's when the worker says so: once, where
//! a stream gets there, or each time that a graph does.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::Copy3D;
use rekindle_protocol::client::ToWorker;
use rekindle_protocol::operation::{HostCall, NodeAction};

use crate::abi::{Handle, Result};
use crate::export::exports;
use crate::session::Session;
use crate::{capture, lane, stream};

pub type HostFunction = extern "C" fn(*mut c_void);
type StreamCallback = extern "C" fn(Handle, i32, *mut c_void);

#[derive(Clone, Copy)]
pub enum Function {
    Plain(HostFunction, usize),
    Callback(StreamCallback, Handle, usize),
    /// Carries bytes from memory of the program's to memory that the worker has too, or the other way.
    Copy(Copy3D),
}

struct RegisteredFunction {
    function: Function,
    is_kept: bool,
}

static KNOWN: Mutex<Option<HashMap<u64, RegisteredFunction>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);
static DUE: OnceLock<Sender<u64>> = OnceLock::new();

fn known() -> MutexGuard<'static, Option<HashMap<u64, RegisteredFunction>>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(function: Function, is_kept: bool) -> u64 {
    let token = NEXT.fetch_add(1, Ordering::Relaxed);
    known().get_or_insert_default().insert(token, RegisteredFunction { function, is_kept });
    token
}

/// A function that may be called as long as this is there.
pub struct FunctionGuard {
    pub token: u64,
}

impl Drop for FunctionGuard {
    fn drop(&mut self) {
        known().get_or_insert_default().remove(&self.token);
    }
}

pub fn keep(function: Function) -> Arc<FunctionGuard> {
    Arc::new(FunctionGuard { token: add(function, true) })
}

/// The function that is kept under a token.
pub fn kept(token: u64) -> Option<Function> {
    known().get_or_insert_default().get(&token).map(|known| known.function)
}

/// Starts the thread that runs host functions.
pub fn start(session: &'static Session) -> io::Result<()> {
    let (sender, receiver) = channel();
    let _ = DUE.set(sender);
    let run = move || {
        for token in receiver {
            run(token);
            if session.send(&ToWorker::Called { token }).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("rekindle-call".to_owned()).spawn(run).map(drop)
}

/// The stream has come to this function.
pub fn due(token: u64) {
    if let Some(sender) = DUE.get() {
        let _ = sender.send(token);
    }
}

fn run(token: u64) {
    let function = {
        let mut known = known();
        let known = known.get_or_insert_default();
        match known.get(&token) {
            Some(RegisteredFunction { function, is_kept: true }) => Some(*function),
            _ => known.remove(&token).map(|known| known.function),
        }
    };
    match function {
        Some(Function::Plain(function, data)) => function(data as *mut c_void),
        Some(Function::Callback(function, stream, data)) => function(stream, 0, data as *mut c_void),
        Some(Function::Copy(copy)) => carry(&copy),
        None => {}
    }
}

fn carry(copy: &Copy3D) {
    for z in 0..copy.depth {
        for y in 0..copy.height {
            let from = copy.from + z * copy.from_slice + y * copy.from_pitch;
            let to = copy.to + z * copy.to_slice + y * copy.to_pitch;
            // SAFETY: one side is staging of this copy's own; the program says that the other is its memory whenever a graph
            // with the copy runs.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, copy.width as usize) };
        }
    }
}

fn enqueue(stream: Handle, function: Function) -> Result<()> {
    let place = stream::enter(stream)?;
    let capture = stream::capture(place)?;
    if capture.status != 0 {
        if matches!(function, Function::Callback(..)) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let kept = keep(function);
        return capture::add(place, capture.id, NodeAction::Call { token: kept.token }, Some(kept));
    }
    lane::post(&HostCall { device: place.device, stream: place.id, token: add(function, false) }, &[])
}

exports! {
    call fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz [stream] (stream: Handle, function: Option<HostFunction>, data: *mut c_void) {
        enqueue(stream, Function::Plain(function.ok_or(CUDA_ERROR_INVALID_VALUE)?, data as usize))
    }

    call fn cuStreamAddCallback | cuStreamAddCallback_ptsz [stream] (stream: Handle, function: Option<StreamCallback>, data: *mut c_void, flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        enqueue(stream, Function::Callback(function.ok_or(CUDA_ERROR_INVALID_VALUE)?, stream, data as usize))
    }
}
