//! Host functions that the program enqueued: kept under a token, run by a thread of the client's when the stream gets
//! there.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_protocol::client::ToWorker;
use rekindle_protocol::operation::HostCall;

use crate::abi::{Handle, Result};
use crate::export::exports;
use crate::lane;
use crate::session::Session;
use crate::stream;

type HostFunction = extern "C" fn(*mut c_void);
type StreamCallback = extern "C" fn(Handle, i32, *mut c_void);

#[derive(Clone, Copy)]
enum Function {
    Plain(HostFunction),
    Callback(StreamCallback, Handle),
}

#[derive(Clone, Copy)]
struct Pending {
    function: Function,
    data: usize,
}

static PENDING: Mutex<Option<HashMap<u64, Pending>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);
static DUE: OnceLock<Sender<u64>> = OnceLock::new();

fn pending() -> MutexGuard<'static, Option<HashMap<u64, Pending>>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
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
    let call = pending().get_or_insert_default().remove(&token);
    match call {
        Some(Pending { function: Function::Plain(function), data }) => function(data as *mut c_void),
        Some(Pending { function: Function::Callback(function, stream), data }) => {
            function(stream, 0, data as *mut c_void);
        }
        None => {}
    }
}

fn enqueue(stream: Handle, function: Function, data: *mut c_void) -> Result<()> {
    let place = stream::resolve(stream)?;
    // A graph would run it with every launch; devices take a function that runs once.
    if stream::capture(place)?.status != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let token = NEXT.fetch_add(1, Ordering::Relaxed);
    pending().get_or_insert_default().insert(token, Pending { function, data: data as usize });
    lane::post(&HostCall { device: place.device, stream: place.id, token }, &[])
}

exports! {
    call fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz [stream] (stream: Handle, function: Option<HostFunction>, data: *mut c_void) {
        enqueue(stream, Function::Plain(function.ok_or(CUDA_ERROR_INVALID_VALUE)?), data)
    }

    call fn cuStreamAddCallback | cuStreamAddCallback_ptsz [stream] (stream: Handle, function: Option<StreamCallback>, data: *mut c_void, flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        enqueue(stream, Function::Callback(function.ok_or(CUDA_ERROR_INVALID_VALUE)?, stream), data)
    }
}
