//! Doing the journal once more, on the same contents, in the same order.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::sync::Arc;
use std::time::Duration;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CuResult};
use rekindle_device::{Device, Event};
use rekindle_protocol::operation::{Asynchronous, Origin, ReplyHead, Upload, dispatch, name};

use super::OnDemandError;
use super::journal::{Entry, Journal};
use crate::client::Client;
use crate::dispatch::Dispatcher;

/// How often it is looked whether the GPU has taken all that was uploaded.
const LOOK: Duration = Duration::from_millis(2);

/// The journal, which GPUs copy from.
struct Source {
    journal: Journal,
    base: u64,
    /// The devices that know its memory, and an event behind what each took of it last.
    devices: HashMap<usize, (Arc<dyn Device>, Vec<Event>)>,
}

/// Does all requests once more. From then on the journal serves nobody.
pub(super) fn replay(dispatcher: &mut Dispatcher, journal: Journal) -> Result<(), OnDemandError> {
    let (base, bytes) = journal.memory();
    let staged = journal.staged();
    let mut source = Source { journal, base, devices: HashMap::new() };
    for entry in source.journal.requests().filter(|entry| !entry.flags.has_failed()) {
        let done = match entry.opcode == Upload::OPCODE {
            true => upload(&mut source.devices, (base, bytes), &mut dispatcher.client, &entry),
            false => perform(&mut dispatcher.client, &entry),
        };
        let operation = name(entry.opcode).unwrap_or("a request");
        match done {
            Ok(()) => {}
            // With all memory there this is the program's own fault, which it is to see.
            Err(code) if code.is_sticky() => {
                dispatcher.client.asynchronous_failure(operation, code);
                break;
            }
            // It is done for the first time.
            Err(code) if entry.flags.is_aside() => dispatcher.client.asynchronous_failure(operation, code),
            Err(code) => return Err(OnDemandError::Otherwise { operation, code }),
        }
    }
    for (thread, end) in dispatcher.client.threads.iter().zip(staged).filter(|(_, end)| *end != 0) {
        thread.ring.staged(end);
    }
    source.journal.settle();
    source.let_go();
    Ok(())
}

/// Does a request of the journal, as it is.
pub(crate) fn perform(client: &mut Client, entry: &Entry<'_>) -> rekindle_device::Result<()> {
    let mut failure = Ok(());
    let failed = |_: &mut Client, _, code| failure = Err(code);
    let origin = Origin { ring: entry.ring };
    let answer = dispatch(client, origin, entry.opcode, entry.body, entry.trailer, failed);
    client.operations += 1;
    let reply = answer.map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let head = reply.as_deref().and_then(|reply| reply.get(..ReplyHead::BYTES)?.try_into().ok());
    let status = head.map_or(0, |head| ReplyHead::decode(head).status);
    failure.and_then(|()| CuResult(status).ok())
}

/// Copies from the journal what came through the staging area.
fn upload(
    devices: &mut HashMap<usize, (Arc<dyn Device>, Vec<Event>)>,
    (base, bytes): (u64, usize),
    client: &mut Client,
    entry: &Entry<'_>,
) -> rekindle_device::Result<()> {
    let upload: Upload = postcard::from_bytes(entry.body).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, upload.device, upload.stream)?;
    let device = client.context(index)?.device.clone();
    let (_, events) = match devices.entry(index) {
        Vacant(vacant) => {
            device.host_register(base, bytes as u64)?;
            vacant.insert((device.clone(), Vec::new()))
        }
        Occupied(known) => known.into_mut(),
    };
    device.copy(upload.to, base + entry.staged_at as u64, entry.staged.len() as u64, stream)?;
    let event = device.event_create(DISABLE_TIMING)?;
    device.event_record(event, stream, 0)?;
    events.push(event);
    client.operations += 1;
    Ok(())
}

impl Source {
    /// Lets go of its memory when the GPUs have taken what they were to take.
    fn let_go(self) {
        std::thread::spawn(move || {
            let mut source = self;
            for (_, (device, events)) in source.devices.drain() {
                let _ = device.bind();
                for event in events {
                    while device.event_query(event) == Ok(false) {
                        std::thread::sleep(LOOK);
                    }
                    let _ = device.event_destroy(event);
                }
                let _ = device.host_unregister(source.base);
            }
        });
    }
}

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
