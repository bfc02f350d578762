//! Which requests wait for data that is on its way, and which are refused as it cannot be had.
//!
//! A request that names it (a kernel's arguments, ranges of copies and fills) waits until all of it is there, and so does what
//! comes after it by CUDA's rules ([`super::deferred`]). A kernel may also come to it by an address in memory. That address can have got there
//! only by the program's bytes after it was given, since a kernel that was given it has waited: so what brings bytes that
//! hold it waits too, and all that lets a kernel see memory that the program writes by itself.
//!
//! Whatever else a kernel may find is not mapped before all of it is there: it faults, and reads nothing wrong.

use std::ops::Range;

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::deferred::{DeferredRequests, LoadDependencies};
use super::{Load, REFUSED};
use crate::client::Client;
use crate::dispatch::Admission;
use crate::ondemand::{Needs, RequestReach, TouchedMemory, needs, reach};

/// Whether the next request can be done.
pub(crate) fn admit(client: &mut Client, ring: usize, record: &Record<'_>) -> Admission {
    client.data.holds = false;
    if writes_declared(client, record) {
        return Admission::Refuse(CUDA_ERROR_INVALID_VALUE);
    }
    if client.data.loads.is_empty() && client.data.later.is_empty() {
        return Admission::Now;
    }
    let admission = match judge(client, ring, record) {
        RequestVerdict::Refuse => Admission::Refuse(REFUSED),
        RequestVerdict::Now => DeferredRequests::admit(client, ring, record, None),
        RequestVerdict::Waits(waits) => DeferredRequests::admit(client, ring, record, Some(waits)),
    };
    client.data.holds = admission == Admission::Wait;
    admission
}

/// What is known of a request by what it may come to.
enum RequestVerdict {
    Now,
    Refuse,
    Waits(LoadDependencies),
}

/// Whether it certainly writes to data that is there, which the GPU would refuse by a fault.
fn writes_declared(client: &Client, record: &Record<'_>) -> bool {
    let writes = [Copy::OPCODE, CopyStrided::OPCODE, SetMemory::OPCODE, Upload::OPCODE];
    if client.data.declared.is_empty() || !writes.contains(&record.opcode) {
        return false;
    }
    let Needs::Memory(touched) = needs(client, record.opcode, record.body, record.trailer) else {
        return false;
    };
    touched.written.iter().any(|range| {
        let before = client.data.declared.range(..range.end).next_back();
        before.is_some_and(|(address, declared)| range.start < address + declared.bytes)
    })
}

fn judge(client: &Client, ring: usize, record: &Record<'_>) -> RequestVerdict {
    let loading = |load: &&Load| load.is_loading();
    let data = &client.data;
    let touched = match reached(client, ring, record) {
        RequestReach::Nothing => return RequestVerdict::Now,
        RequestReach::Anything => {
            let loads: Vec<usize> = data.loads.iter().filter(loading).map(Load::part).collect();
            return if loads.is_empty() {
                RequestVerdict::Now
            } else {
                RequestVerdict::Waits(LoadDependencies { loads, named: false })
            };
        }
        RequestReach::These(touched, _) => touched,
    };
    let named = data.loads.iter().filter(|load| names(&touched, &load.range()));
    let (loads, failed): (Vec<&Load>, Vec<&Load>) = named.partition(loading);
    // What it names beside data that cannot be had does not matter.
    match (failed.is_empty(), loads.is_empty()) {
        (false, _)
            if matches!(record.opcode, MemoryFree::OPCODE | MemoryFreeAsync::OPCODE | TensorMap::OPCODE) =>
        {
            RequestVerdict::Now
        }
        (false, _) => RequestVerdict::Refuse,
        (true, false) => RequestVerdict::Waits(LoadDependencies {
            loads: loads.into_iter().map(Load::part).collect(),
            named: true,
        }),
        (true, true) => RequestVerdict::Now,
    }
}

fn names(touched: &TouchedMemory, range: &Range<u64>) -> bool {
    touched.ranges.iter().any(|one| one.start < range.end && range.start < one.end)
        || touched.words.iter().any(|word| range.contains(word))
}

/// Nobody knows what a request comes to whose bytes hold an address of data that is on its way.
fn reached(client: &Client, ring: usize, record: &Record<'_>) -> RequestReach {
    let body = record.body;
    let reached = match record.opcode {
        MemoryFree::OPCODE => {
            postcard::from_bytes(body).map(|MemoryFree { address, .. }| RequestReach::at(address, 1))
        }
        MemoryFreeAsync::OPCODE => {
            postcard::from_bytes(body).map(|MemoryFreeAsync { address, .. }| RequestReach::at(address, 1))
        }
        ContextReset::OPCODE
        | GraphAdd::OPCODE
        | GraphAddKernel::OPCODE
        | GraphAddCopy::OPCODE
        | GraphAddSet::OPCODE
        | GraphAddChild::OPCODE
        | GraphInstantiate::OPCODE
        | GraphSet::OPCODE
        | GraphSetKernel::OPCODE
        | GraphSetCopy::OPCODE
        | GraphSetSet::OPCODE
        | GraphSetChild::OPCODE
        | GraphSetChildInside::OPCODE
        | GraphExecUpdate::OPCODE => Ok(RequestReach::Anything),
        _ => {
            let loading = || client.data.loads.iter().filter(|load| load.is_loading()).map(Load::range);
            let first = loading().map(|range| range.start).min().unwrap_or(0);
            let last = loading().map(|range| range.end).max().unwrap_or(0);
            match reach(client, ring, record, &(first..last)) {
                RequestReach::These(_, found)
                    if found.iter().any(|word| loading().any(|range| range.contains(word))) =>
                {
                    Ok(RequestReach::Anything)
                }
                other => Ok(other),
            }
        }
    };
    // Whoever does it finds out that it is nonsense.
    reached.unwrap_or(RequestReach::Nothing)
}
