//! The driver's log, as far as there is one here: the calls that were refused, and why.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;

use crate::abi::{Handle, Out, Result, Text};
use crate::export::exports;

/// What is kept, bytes; the oldest goes first.
const KEPT: usize = 25600;
/// `CU_LOG_LEVEL_ERROR`.
const ERROR: u32 = 0;
const CUT: &str = "[CUDA][W] the log was cut short; its oldest messages are gone\n";

type Callback = extern "C" fn(*mut c_void, u32, *mut c_char, usize);

/// Whoever is told of each message.
#[derive(Clone, Copy)]
struct Listener {
    id: usize,
    call: Callback,
    data: usize,
}

struct Logs {
    lines: VecDeque<String>,
    bytes: usize,
    /// The number of the next message; the first that is kept is so many before it.
    next: u32,
    listeners: Vec<Listener>,
    last_listener: usize,
}

static LOGS: Mutex<Logs> =
    Mutex::new(Logs { lines: VecDeque::new(), bytes: 0, next: 0, listeners: Vec::new(), last_listener: 0 });

fn logs() -> MutexGuard<'static, Logs> {
    LOGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a message in, and tells it whoever listens.
pub fn add(message: &str) {
    let line = format!("[CUDA][E] {message}\n");
    let listeners = {
        let mut logs = logs();
        logs.bytes += line.len();
        logs.next = logs.next.wrapping_add(1);
        logs.lines.push_back(line);
        while logs.bytes > KEPT {
            let oldest = logs.lines.pop_front().map_or(0, |line| line.len());
            logs.bytes -= oldest;
        }
        logs.listeners.clone()
    };
    for listener in listeners {
        let mut text: Vec<u8> = message.bytes().chain([0]).collect();
        (listener.call)(listener.data as *mut c_void, ERROR, text.as_mut_ptr().cast(), message.len());
    }
}

/// The messages from the iterator on, or all; whether earlier ones are gone. The iterator goes to the end.
fn taken(iterator: Out<u32>) -> (Vec<String>, bool) {
    let logs = logs();
    let kept = logs.lines.len() as u32;
    let wanted = match iterator.current() {
        Ok(from) => logs.next.wrapping_sub(from),
        Err(_) => logs.next,
    };
    iterator.offer(logs.next);
    let skip = kept.saturating_sub(wanted) as usize;
    (logs.lines.iter().skip(skip).cloned().collect(), wanted > kept)
}

fn to_memory(iterator: Out<u32>, buffer: Out<u8>, size: Out<usize>) -> Result<()> {
    buffer.check()?;
    let room = size.current()?.min(KEPT);
    let (lines, is_cut) = taken(iterator);
    size.put(0)?;
    if lines.is_empty() && !is_cut {
        if room > 0 {
            buffer.put(0)?;
        }
        return Ok(());
    }
    // The newest that there is room for, and a word if that is not all.
    let all: usize = lines.iter().map(String::len).sum();
    let needs_word = is_cut || all + 1 > room;
    let mut left = room.saturating_sub(1 + if needs_word { CUT.len() } else { 0 });
    let fits = |line: &&String| {
        let has_room = line.len() <= left;
        left = left.saturating_sub(line.len());
        has_room
    };
    let mut chosen: Vec<&String> = lines.iter().rev().take_while(fits).collect();
    if chosen.is_empty() && !lines.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    chosen.reverse();
    let word = if needs_word { CUT } else { "" };
    let text: String = std::iter::once(word).chain(chosen.into_iter().map(String::as_str)).collect();
    buffer.fill(text.len() + 1, text.bytes().chain([0]));
    size.put(text.len())
}

fn to_file(iterator: Out<u32>, path: Text) -> Result<()> {
    let path = path.get()?;
    let mut file = std::fs::File::create(path).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (lines, is_cut) = taken(iterator);
    let word = if is_cut { CUT } else { "" };
    let text = word.to_owned() + &lines.concat();
    file.write_all(text.as_bytes()).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

fn no_flags(flags: u32) -> Result<()> {
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

exports! {
    free fn cuLogsRegisterCallback(call: Option<Callback>, data: *mut c_void, out: Out<Handle>) {
        let call = call.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut logs = logs();
        logs.last_listener += 1;
        let id = logs.last_listener;
        logs.listeners.push(Listener { id, call, data: data as usize });
        out.offer(Handle(id));
        Ok(())
    }
    free fn cuLogsUnregisterCallback(handle: Handle) {
        let mut logs = logs();
        let before = logs.listeners.len();
        logs.listeners.retain(|listener| listener.id != handle.0);
        if logs.listeners.len() < before { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }
    free fn cuLogsCurrent(out: Out<u32>, flags: u32) {
        no_flags(flags)?;
        out.put(logs().next)
    }
    free fn cuLogsDumpToFile(iterator: Out<u32>, path: Text, flags: u32) {
        no_flags(flags)?;
        to_file(iterator, path)
    }
    free fn cuLogsDumpToMemory(iterator: Out<u32>, buffer: Out<u8>, size: Out<usize>, flags: u32) {
        no_flags(flags)?;
        to_memory(iterator, buffer, size)
    }
}
