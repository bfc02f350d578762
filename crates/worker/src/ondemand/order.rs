//! What a request of the program has to come after: others of its stream, and of what it names beside memory.
//!
//! These are CUDA's own rules. Work of different streams has no order but by events, by the legacy default stream, which
//! waits for all streams that are not made otherwise and which they wait for, and by the program's waiting for results.

use rekindle_protocol::operation::*;

use crate::client::Client;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Legacy(u8),
    /// The default stream of a thread, by its ring.
    Own(u8, usize),
    Numbered(Id),
}

/// A stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub name: Name,
    pub device: u8,
    /// It and the legacy default stream wait for each other.
    pub blocking: bool,
}

/// What a request names and may change: a change comes after all uses before it, and before those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedObjects {
    pub object: Object,
    pub changes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Event(Id),
    Exec(Id),
    Function(Id),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub stream: Option<Stream>,
    pub named: Option<NamedObjects>,
    /// It can be taken from its ring and done later: nobody waits for an answer, and all that it needs is in itself.
    pub can_wait: bool,
}

/// What a request that can run ahead is ordered by. None for one that is nonsense.
pub(crate) fn order(client: &Client, ring: usize, opcode: u32, body: &[u8]) -> Option<Order> {
    let stream = |device, id| stream(client, ring, device, id);
    let work = |device, id, named| Some(Order { stream: Some(stream(device, id)?), named, can_wait: true });
    let named = |object, changes| Some(NamedObjects { object, changes });
    let now = |stream, named| Some(Order { stream, named, can_wait: false });
    match opcode {
        LaunchKernel::OPCODE => {
            let LaunchKernel { device, stream, function, .. } = postcard::from_bytes(body).ok()?;
            work(device, stream, named(Object::Function(function), false))
        }
        LaunchKernelWith::OPCODE => {
            let LaunchKernelWith { device, stream, function, .. } = postcard::from_bytes(body).ok()?;
            work(device, stream, named(Object::Function(function), false))
        }
        Copy::OPCODE => {
            let Copy { device, stream, .. } = postcard::from_bytes(body).ok()?;
            work(device, stream, None)
        }
        CopyStrided::OPCODE => {
            let CopyStrided { device, stream, .. } = postcard::from_bytes(body).ok()?;
            work(device, stream, None)
        }
        SetMemory::OPCODE => {
            let SetMemory { device, stream, .. } = postcard::from_bytes(body).ok()?;
            work(device, stream, None)
        }
        GraphLaunch::OPCODE => {
            let GraphLaunch { device, exec, stream } = postcard::from_bytes(body).ok()?;
            work(device, stream, named(Object::Exec(exec), true))
        }
        StreamWaitEvent::OPCODE => {
            let StreamWaitEvent { device, stream, event, .. } = postcard::from_bytes(body).ok()?;
            work(device, stream, named(Object::Event(event), false))
        }
        EventRecord::OPCODE => {
            let EventRecord { device, stream, event, .. } = postcard::from_bytes(body).ok()?;
            work(device, stream, named(Object::Event(event), true))
        }
        // Its bytes lie in the staging area, which is used in turn.
        Upload::OPCODE => {
            let Upload { device, stream: id, .. } = postcard::from_bytes(body).ok()?;
            now(Some(stream(device, id)?), None)
        }
        StreamDestroy::OPCODE => {
            let StreamDestroy { id } = postcard::from_bytes(body).ok()?;
            now(Some(stream(0, id)?), None)
        }
        EventDestroy::OPCODE => {
            let EventDestroy { id } = postcard::from_bytes(body).ok()?;
            now(None, named(Object::Event(id), true))
        }
        FunctionSet::OPCODE => {
            let FunctionSet { id, .. } = postcard::from_bytes(body).ok()?;
            now(None, named(Object::Function(id), true))
        }
        FunctionCache::OPCODE => {
            let FunctionCache { id, .. } = postcard::from_bytes(body).ok()?;
            now(None, named(Object::Function(id), true))
        }
        _ => now(None, None),
    }
}

/// The stream of this number, of the thread that has this ring.
pub(crate) fn stream(client: &Client, ring: usize, device: u8, id: Id) -> Option<Stream> {
    Some(match id {
        LEGACY_STREAM => Stream { name: Name::Legacy(device), device, blocking: false },
        PER_THREAD_STREAM => Stream { name: Name::Own(device, ring), device, blocking: true },
        _ => {
            let stream = client.streams.get(id).ok()?;
            let blocking = stream.flags & NON_BLOCKING == 0;
            Stream { name: Name::Numbered(id), device: stream.device as u8, blocking }
        }
    })
}
