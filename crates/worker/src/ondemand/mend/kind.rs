//! What becomes of a request where the loss of the worker is to be mended.

use rekindle_device::DEVICE_RANGE;
use rekindle_protocol::mending::MendObstacle;
use rekindle_protocol::operation::*;
use rekindle_ring::Record;
use serde::Deserialize;

use crate::client::{Client, Pinned};
use crate::ondemand::needs::{Needs, needs};
use crate::ondemand::only_waits;

/// What a request is to what is done once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It changes nothing.
    Look,
    /// It changes nothing, and may be answered later.
    Wait,
    /// It is done once more.
    Again,
    /// So, with bytes of pinned memory as they are now.
    From { address: u64, bytes: u64 },
    /// It brings bytes to pinned memory.
    To,
    /// It brings bytes to the ring's staging area.
    Staged,
    /// It makes an allocation, which is to be where it was.
    Allocate,
    /// It gives one back, and may be answered later.
    Free,
    /// It cannot be done once more: from here on nothing can be mended.
    Never(MendObstacle),
}

/// Whether an operation can only end what could be mended. Quick, for what comes while nothing can be.
pub(super) fn is_never(opcode: u32) -> bool {
    !matches!(
        opcode,
        LaunchKernel::OPCODE
            | LaunchKernelWith::OPCODE
            | Copy::OPCODE
            | CopyStrided::OPCODE
            | SetMemory::OPCODE
            | Upload::OPCODE
            | Download::OPCODE
            | GraphLaunch::OPCODE
            | MemoryAllocate::OPCODE
            | MemoryAllocateAsync::OPCODE
            | MemoryFree::OPCODE
            | MemoryFreeAsync::OPCODE
            | PoolTrim::OPCODE
            | GlobalGet::OPCODE
            | ContextOpen::OPCODE
            | FunctionGet::OPCODE
            | FunctionSet::OPCODE
            | FunctionCache::OPCODE
            | StreamCreate::OPCODE
            | StreamDestroy::OPCODE
            | StreamWaitEvent::OPCODE
            | EventCreate::OPCODE
            | EventDestroy::OPCODE
            | EventRecord::OPCODE
            | MemoryInfo::OPCODE
            | LimitGet::OPCODE
            | FunctionNames::OPCODE
            | OccupancyBlocks::OPCODE
            | OccupancyShared::OPCODE
            | OccupancyClusters::OPCODE
            | TensorMap::OPCODE
    ) && !only_waits(opcode)
}

pub(super) fn kind(client: &Client, record: &Record<'_>) -> Kind {
    let Record { opcode, body, trailer, .. } = *record;
    let host = HostMemory::of(client);
    match opcode {
        LaunchKernel::OPCODE | LaunchKernelWith::OPCODE => match host.is_among(trailer) {
            true => Kind::Never(MendObstacle::HostMemory),
            false => Kind::Again,
        },
        Copy::OPCODE => read::<Copy>(body, |copy| host.copy(client, &copy)),
        CopyStrided::OPCODE => {
            read::<CopyStrided>(body, |strided| host.on_device(&[strided.copy.to, strided.copy.from]))
        }
        SetMemory::OPCODE => read::<SetMemory>(body, |fill| host.on_device(&[fill.set.address])),
        Upload::OPCODE => read::<Upload>(body, |upload| host.on_device(&[upload.to])),
        Download::OPCODE => read::<Download>(body, |_| Kind::Staged),
        MemoryAllocate::OPCODE | MemoryAllocateAsync::OPCODE => Kind::Allocate,
        MemoryFree::OPCODE => Kind::Free,
        MemoryFreeAsync::OPCODE | PoolTrim::OPCODE => Kind::Again,
        WaitValue::OPCODE | WriteValue::OPCODE | HostCall::OPCODE => Kind::Never(MendObstacle::Host),
        ContextOpen::OPCODE => match postcard::from_bytes::<ContextOpen>(body) {
            Ok(open) if client.context(open.device.into()).is_ok() => Kind::Look,
            _ => Kind::Never(MendObstacle::Changed),
        },
        GlobalGet::OPCODE => match postcard::from_bytes::<GlobalGet<'_>>(body) {
            Ok(get) if client.knows_global(&get) => Kind::Look,
            _ => Kind::Never(MendObstacle::Changed),
        },
        DataLoad::OPCODE
        | DataState::OPCODE
        | DataOpen::OPCODE
        | DataDump::OPCODE
        | DataDumped::OPCODE
        | DataRead::OPCODE
        | ExchangePut::OPCODE
        | ExchangeGet::OPCODE
        | ExchangeDrop::OPCODE => Kind::Never(MendObstacle::Others),
        opcode if only_waits(opcode) => Kind::Wait,
        // To be loaded when its GPU has nothing to do, while others go on.
        FunctionGet::OPCODE | FunctionSet::OPCODE if client.alone_on(opcode, body).is_some() => {
            Kind::Never(MendObstacle::Changed)
        }
        _ => match needs(client, opcode, body, trailer) {
            Needs::Look(_) => Kind::Look,
            Needs::Memory(touched) => {
                let inside = |range: &std::ops::Range<u64>| DEVICE_RANGE.contains(&range.start);
                let all_inside = touched.ranges.iter().all(inside);
                match all_inside && !touched.words.iter().any(|word| host.holds(*word)) {
                    true => Kind::Again,
                    false => Kind::Never(MendObstacle::HostMemory),
                }
            }
            Needs::All => Kind::Never(MendObstacle::Changed),
        },
    }
}

/// What a request of this type is, if it is one.
fn read<'b, O: Deserialize<'b>>(body: &'b [u8], kind: impl FnOnce(O) -> Kind) -> Kind {
    postcard::from_bytes(body).map_or(Kind::Never(MendObstacle::Changed), kind)
}

/// The pinned memory of a program.
struct HostMemory<'c> {
    pinned: &'c [Pinned],
    start: u64,
    end: u64,
}

impl HostMemory<'_> {
    fn of(client: &Client) -> HostMemory<'_> {
        let pinned = &client.pinned[..];
        let start = pinned.iter().map(|pinned| pinned.address).min().unwrap_or(u64::MAX);
        let end = pinned.iter().map(|pinned| pinned.address + pinned.bytes).max().unwrap_or(0);
        HostMemory { pinned, start, end }
    }

    fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
            && self
                .pinned
                .iter()
                .any(|pinned| (pinned.address..pinned.address + pinned.bytes).contains(&address))
    }

    /// Whether one of the words of a kernel's arguments is an address of it.
    fn is_among(&self, parameters: &[u8]) -> bool {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).is_ok_and(|word| self.holds(word));
        self.start < self.end && parameters.windows(8).step_by(4).any(word)
    }

    fn on_device(&self, addresses: &[u64]) -> Kind {
        let inside = |address: &u64| DEVICE_RANGE.contains(address);
        match addresses.iter().all(inside) {
            true => Kind::Again,
            false if addresses.iter().any(|address| self.holds(*address)) => {
                Kind::Never(MendObstacle::HostMemory)
            }
            // Globals and constants of modules that are whole.
            false => Kind::Never(MendObstacle::Changed),
        }
    }

    /// Whether all of a range is memory of it.
    fn has_all(&self, address: u64, bytes: u64) -> bool {
        let ends_in = |pinned: &Pinned| {
            let end = address.checked_add(bytes);
            pinned.address <= address && end.is_some_and(|end| end <= pinned.address + pinned.bytes)
        };
        self.pinned.iter().any(ends_in)
    }

    fn copy(&self, client: &Client, copy: &Copy) -> Kind {
        let Copy { to, from, bytes, .. } = *copy;
        match (self.holds(from), self.holds(to)) {
            (false, false) => self.on_device(&[to, from]),
            // What is copied may be on its way there.
            (true, false)
                if DEVICE_RANGE.contains(&to)
                    && self.has_all(from, bytes)
                    && !client.told.comes_to(from, bytes) =>
            {
                Kind::From { address: from, bytes }
            }
            (false, true) if DEVICE_RANGE.contains(&from) && self.has_all(to, bytes) => Kind::To,
            _ => Kind::Never(MendObstacle::HostMemory),
        }
    }
}
