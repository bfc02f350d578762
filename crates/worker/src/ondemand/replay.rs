//! Doing the log once more, on the same contents, in the same order.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rekindle_device::{Device, Event};
use rekindle_protocol::operation::{Asynchronous, Origin, ReplyHead, Upload, dispatch};

use super::journal::{Entry, entries};
use crate::dispatch::Desk;
use crate::engine::Engine;

/// How often it is looked whether the GPU has taken all that was uploaded.
const LOOK: Duration = Duration::from_millis(2);

/// The log's bytes, which GPUs copy from.
struct Mapped {
    base: u64,
    bytes: usize,
    /// The devices that know them, and an event behind what each took of them last.
    devices: HashMap<usize, (Arc<dyn Device>, Vec<Event>)>,
}

/// Does all requests once more. `staged`: up to where each ring's staging area was used.
pub(super) fn replay(desk: &mut Desk, log: OwnedFd, staged: &[u64]) -> Result<(), String> {
    let mut mapped =
        Mapped::of(File::from(log)).map_err(|error| format!("the log cannot be mapped: {error}"))?;
    // SAFETY: the mapping is so long, nobody writes to it, and it lives until `mapped` is given to `let_go`.
    let bytes = unsafe { std::slice::from_raw_parts(mapped.base as *const u8, mapped.bytes) };
    for entry in entries(bytes) {
        let done = match entry.opcode == Upload::OPCODE {
            true => mapped.upload(&mut desk.engine, &entry),
            false => again(&mut desk.engine, &entry),
        };
        match done {
            Ok(()) => {}
            // With all memory there this is the program's own fault, which it is to see.
            Err(code) if code.is_sticky() => {
                desk.engine.asynchronous_failure("a request", code);
                break;
            }
            Err(code) => return Err(format!("a request that had worked before gave {code}")),
        }
    }
    for (thread, end) in desk.engine.threads.iter().zip(staged).filter(|(_, end)| **end != 0) {
        thread.ring.staged(*end);
    }
    mapped.let_go();
    Ok(())
}

fn again(engine: &mut Engine, entry: &Entry<'_>) -> rekindle_device::Result<()> {
    let mut failure = Ok(());
    let failed = |_: &mut Engine, _, code| failure = Err(code);
    let origin = Origin { ring: entry.ring };
    let answer = dispatch(engine, origin, entry.opcode, entry.body, entry.trailer, failed);
    engine.operations += 1;
    let reply = answer.map_err(|_| rekindle_cuda::CUDA_ERROR_INVALID_VALUE)?;
    let head = reply.as_deref().and_then(|reply| reply.get(..ReplyHead::BYTES)?.try_into().ok());
    let status = head.map_or(0, |head| ReplyHead::decode(head).status);
    failure.and_then(|()| rekindle_cuda::CuResult(status).ok())
}

impl Mapped {
    fn of(file: File) -> std::io::Result<Mapped> {
        let bytes = file.metadata()?.len() as usize;
        // SAFETY: a new mapping of a file that is as long and that nobody else has.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes.max(1),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match base == libc::MAP_FAILED {
            true => Err(std::io::Error::last_os_error()),
            false => Ok(Mapped { base: base as u64, bytes, devices: HashMap::new() }),
        }
    }

    /// Copies from the log what came through the staging area.
    fn upload(&mut self, engine: &mut Engine, entry: &Entry<'_>) -> rekindle_device::Result<()> {
        let upload: Upload =
            postcard::from_bytes(entry.body).map_err(|_| rekindle_cuda::CUDA_ERROR_INVALID_VALUE)?;
        let (index, stream) = engine.enter(Origin { ring: entry.ring }, upload.device, upload.stream)?;
        let device = engine.context(index)?.device.clone();
        if !self.devices.contains_key(&index) {
            device.host_register(self.base, self.bytes as u64)?;
            self.devices.insert(index, (device.clone(), Vec::new()));
        }
        device.copy(upload.to, self.base + entry.staged_at as u64, entry.staged.len() as u64, stream)?;
        let event = device.event_create(DISABLE_TIMING)?;
        device.event_record(event, stream, 0)?;
        if let Some((_, events)) = self.devices.get_mut(&index) {
            events.push(event);
        }
        engine.operations += 1;
        Ok(())
    }

    /// Unmaps it when the GPUs have taken what they were to take.
    fn let_go(mut self) {
        std::thread::spawn(move || {
            for (_, (device, events)) in self.devices.drain() {
                let _ = device.bind();
                for event in events {
                    while device.event_query(event) == Ok(false) {
                        std::thread::sleep(LOOK);
                    }
                    let _ = device.event_destroy(event);
                }
                let _ = device.host_unregister(self.base);
            }
            // SAFETY: mapped by `of`; no device knows it any more, and nothing borrows from it.
            unsafe { libc::munmap(self.base as *mut libc::c_void, self.bytes.max(1)) };
        });
    }
}

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
