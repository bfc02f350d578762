//! Requests that wait for data on its way, and those that come after them by CUDA's rules, while other streams go on.
//!
//! Such a request is taken from its ring and done when what it names is there and nothing is left that it comes after. What
//! may come after any of them, or is to be answered by one, waits in its ring, and all after it: frees, waits for the whole
//! device, code, captures.

use std::collections::HashMap;

use rekindle_cuda::CuResult;
use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::REFUSED;
use crate::client::Client;
use crate::dispatch::Admission;
use crate::ondemand::{DeferredQueue, NamedObjects, Object, Order, Waiting, named_stream, order};

/// So many bytes of requests are put aside at most, and so many requests.
const MOST_BYTES: usize = 16 << 20;
const MOST: usize = 1 << 16;

/// Loads that a request waits for.
pub(super) struct LoadDependencies {
    pub loads: Vec<usize>,
    /// It names what they load, and so cannot be done without any of it.
    pub named: bool,
}

struct DeferredRequest {
    /// The loads that it names.
    names: Vec<usize>,
    ring: usize,
    opcode: u32,
    body: Vec<u8>,
    trailer: Vec<u8>,
}

impl DeferredRequest {
    fn bytes(&self) -> usize {
        self.body.len() + self.trailer.len()
    }
}

#[derive(Default)]
pub(super) struct DeferredRequests {
    aside: DeferredQueue,
    /// By the numbers that it has there.
    kept: HashMap<usize, DeferredRequest>,
    next: usize,
    bytes: usize,
}

impl DeferredRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.aside.is_empty()
    }

    /// What becomes of the next request, which `waits` for data or does not.
    pub(super) fn admit(
        client: &mut Client,
        ring: usize,
        record: &Record<'_>,
        waits: Option<LoadDependencies>,
    ) -> Admission {
        let later = &client.data.later;
        // What is captured is in the order in which it comes.
        let has_room = later.bytes < MOST_BYTES && later.kept.len() < MOST && client.recordings.is_empty();
        if waits.is_none() && later.is_empty() {
            return Admission::Now;
        }
        let Some(order) = order_of(client, ring, record) else { return Admission::Wait };
        if waits.is_none() && !later.aside.precedes(&order) {
            return Admission::Now;
        }
        let Some(stream) = order.stream.filter(|_| order.can_wait && has_room) else {
            return Admission::Wait;
        };
        let Record { opcode, ticket, body, trailer, .. } = *record;
        let later = &mut client.data.later;
        let LoadDependencies { loads: parts, named } =
            waits.unwrap_or(LoadDependencies { loads: Vec::new(), named: false });
        let names = if named { parts.clone() } else { Vec::new() };
        let kept = DeferredRequest { names, ring, opcode, body: body.to_vec(), trailer: trailer.to_vec() };
        let at = later.next;
        later.next += 1;
        later.bytes += kept.bytes();
        later.kept.insert(at, kept);
        later.aside.push(stream, Waiting { ticket, at, parts, named: order.named, hurried: false });
        Admission::Aside
    }

    pub(super) fn clear(&mut self) {
        *self = DeferredRequests::default();
    }
}

/// What it comes after. None for what has to come after all.
fn order_of(client: &Client, ring: usize, record: &Record<'_>) -> Option<Order> {
    let body = record.body;
    let on = |device, id| {
        let stream = Some(named_stream(client, ring, device, id)?);
        Some(Order { stream, ..Order::default() })
    };
    let event = |event| {
        let named = Some(NamedObjects { object: Object::Event(event), changes: false });
        Some(Order { named, ..Order::default() })
    };
    match record.opcode {
        LaunchKernel::OPCODE
        | LaunchKernelWith::OPCODE
        | Copy::OPCODE
        | CopyStrided::OPCODE
        | SetMemory::OPCODE
        | GraphLaunch::OPCODE
        | StreamWaitEvent::OPCODE
        | EventRecord::OPCODE
        | Upload::OPCODE
        | StreamDestroy::OPCODE
        | EventDestroy::OPCODE
        | FunctionSet::OPCODE
        | FunctionCache::OPCODE => order(client, ring, record.opcode, body),
        Download::OPCODE => {
            let Download { device, stream, .. } = postcard::from_bytes(body).ok()?;
            on(device, stream)
        }
        DataDump::OPCODE => {
            let DataDump { device, stream, .. } = postcard::from_bytes(body).ok()?;
            on(device, stream)
        }
        StreamQuery::OPCODE => {
            let StreamQuery { device, stream } = postcard::from_bytes(body).ok()?;
            on(device, stream)
        }
        StreamSynchronize::OPCODE => {
            let StreamSynchronize { device, stream } = postcard::from_bytes(body).ok()?;
            on(device, stream)
        }
        StreamAwait::OPCODE => {
            let StreamAwait { device, stream } = postcard::from_bytes(body).ok()?;
            on(device, stream)
        }
        EventAwait::OPCODE => event(postcard::from_bytes::<EventAwait>(body).ok()?.event),
        EventQuery::OPCODE => event(postcard::from_bytes::<EventQuery>(body).ok()?.event),
        EventSynchronize::OPCODE => event(postcard::from_bytes::<EventSynchronize>(body).ok()?.event),
        // They make or tell something, and use no memory of the program's.
        MemoryAllocate::OPCODE
        | MemoryInfo::OPCODE
        | MemoryRange::OPCODE
        | FunctionGet::OPCODE
        | StreamCreate::OPCODE
        | StreamRoom::OPCODE
        | EventCreate::OPCODE
        | DataLoad::OPCODE
        | DataOpen::OPCODE
        | DataState::OPCODE
        | DataDumped::OPCODE
        | DataRead::OPCODE
        | DataWaits::OPCODE => Some(Order::default()),
        _ => None,
    }
}

/// Does what was put aside and need not wait any more.
pub(crate) fn catch_up(client: &mut Client) {
    while !client.data.later.is_empty() && !client.is_broken() {
        let data = &mut client.data;
        let (loads, later) = (&data.loads, &mut data.later);
        let is_there = |part: usize| !loads.iter().any(|load| load.part() == part && load.is_loading());
        let Some(at) = later.aside.next(is_there, |_| ()) else { return };
        let Some(kept) = later.kept.remove(&at) else { continue };
        later.bytes -= kept.bytes();
        if client.waiting.transfers != 0 {
            client.close_batches();
        }
        perform(client, &kept);
    }
}

fn perform(client: &mut Client, kept: &DeferredRequest) {
    let DeferredRequest { names, ring, opcode, body, trailer } = kept;
    let what = name(*opcode).unwrap_or("a request");
    // What has come is no load any more.
    if client.data.loads.iter().any(|load| names.contains(&load.part())) {
        return client.asynchronous_failure(what, REFUSED);
    }
    let failed =
        |client: &mut Client, name: &'static str, code: CuResult| client.asynchronous_failure(name, code);
    if dispatch(client, Origin { ring: *ring }, *opcode, body, trailer, failed).is_err() {
        log::error!("{what} cannot be read, which was put aside");
    }
    client.operations += 1;
}
