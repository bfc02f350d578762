//! Which requests wait for data that is on its way, and which are refused as it cannot be had.
//!
//! A request that names it (a kernel's arguments, ranges of copies and fills) waits until all of it is there, and so does what
//! comes after it by CUDA's rules ([`super::aside`]). A kernel may also come to it by an address in memory. That address can have got there
//! only by the program's bytes after it was given, since a kernel that was given it has waited: so what brings bytes that
//! hold it waits too, and all that lets a kernel see memory that the program writes by itself.
//!
//! Whatever else a kernel may find is not mapped before all of it is there: it faults, and reads nothing wrong.

use std::ops::Range;

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::DEVICE_RANGE;
use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::aside::{Later, Waits};
use super::{Data, Load, REFUSED};
use crate::client::Client;
use crate::dispatch::Admission;
use crate::ondemand::{Needs, Touched, needs, staged};

/// Of addresses among bytes that a program brings, in structures that are packed too.
const ALIGNMENT: usize = 4;

/// What a request may come to.
enum Reach {
    Nothing,
    These(Touched),
    /// Nobody knows.
    Anything,
}

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
        Judged::Refuse => Admission::Refuse(REFUSED),
        Judged::Now => Later::admit(client, ring, record, None),
        Judged::Waits(waits) => Later::admit(client, ring, record, Some(waits)),
    };
    client.data.holds = admission == Admission::Wait;
    admission
}

/// What is known of a request by what it may come to.
enum Judged {
    Now,
    Refuse,
    Waits(Waits),
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

fn judge(client: &Client, ring: usize, record: &Record<'_>) -> Judged {
    let loading = |load: &&Load| load.is_loading();
    let data = &client.data;
    let touched = match reach(client, ring, record) {
        Reach::Nothing => return Judged::Now,
        Reach::Anything => {
            let loads: Vec<usize> = data.loads.iter().filter(loading).map(Load::part).collect();
            return if loads.is_empty() { Judged::Now } else { Judged::Waits(Waits { loads, named: false }) };
        }
        Reach::These(touched) => touched,
    };
    let named = data.loads.iter().filter(|load| names(&touched, &load.range()));
    let (loads, failed): (Vec<&Load>, Vec<&Load>) = named.partition(loading);
    // What it names beside data that cannot be had does not matter.
    match (failed.is_empty(), loads.is_empty()) {
        (false, _)
            if matches!(record.opcode, MemoryFree::OPCODE | MemoryFreeAsync::OPCODE | TensorMap::OPCODE) =>
        {
            Judged::Now
        }
        (false, _) => Judged::Refuse,
        (true, false) => {
            Judged::Waits(Waits { loads: loads.into_iter().map(Load::part).collect(), named: true })
        }
        (true, true) => Judged::Now,
    }
}

fn names(touched: &Touched, range: &Range<u64>) -> bool {
    touched.ranges.iter().any(|one| one.start < range.end && range.start < one.end)
        || touched.words.iter().any(|word| range.contains(word))
}

fn reach(client: &Client, ring: usize, record: &Record<'_>) -> Reach {
    let Record { opcode, body, trailer, .. } = *record;
    let at = |address: u64, bytes: u64| {
        let range = address..address.saturating_add(bytes.max(1));
        Reach::These(Touched { ranges: vec![range], ..Touched::default() })
    };
    let reach = match opcode {
        Download::OPCODE => postcard::from_bytes(body).map(|Download { from, bytes, .. }| at(from, bytes)),
        MemoryFree::OPCODE => postcard::from_bytes(body).map(|MemoryFree { address, .. }| at(address, 1)),
        MemoryFreeAsync::OPCODE => {
            postcard::from_bytes(body).map(|MemoryFreeAsync { address, .. }| at(address, 1))
        }
        ExchangePut::OPCODE => {
            postcard::from_bytes(body).map(|ExchangePut { address, bytes, .. }| at(address, bytes))
        }
        DataDump::OPCODE => postcard::from_bytes(body).map(|DataDump { address, .. }| at(address, 1)),
        WaitValue::OPCODE => postcard::from_bytes(body).map(|WaitValue { address, .. }| at(address, 8)),
        WriteValue::OPCODE => postcard::from_bytes(body).map(|WriteValue { address, value, .. }| {
            let range = address..address.saturating_add(8);
            Reach::These(Touched { ranges: vec![range], words: vec![value], ..Touched::default() })
        }),
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
        | GraphExecUpdate::OPCODE => Ok(Reach::Anything),
        _ => Ok(match needs(client, opcode, body, trailer) {
            Needs::Look(touched) => Reach::These(touched),
            Needs::Memory(touched) => brought(client, ring, record, touched),
            Needs::All if opcode == GraphLaunch::OPCODE => Reach::Anything,
            // It waits, or makes something, and comes to no memory of the program's.
            Needs::All => Reach::Nothing,
        }),
    };
    // Whoever does it finds out that it is nonsense.
    reach.unwrap_or(Reach::Nothing)
}

/// With the words that the request brings along.
fn brought(client: &Client, ring: usize, record: &Record<'_>, touched: Touched) -> Reach {
    let pinned = |range: &Range<u64>| {
        client.pinned.iter().any(|own| own.address <= range.start && range.end <= own.address + own.bytes)
    };
    if touched.words.iter().any(|word| pinned(&(*word..*word + 1))) {
        return Reach::Anything;
    }
    match record.opcode {
        Upload::OPCODE => match staged(client, ring, record) {
            Some(bytes) if holds(&client.data, bytes.as_ptr(), bytes.len()) => return Reach::Anything,
            Some(_) => {}
            None => return Reach::Nothing,
        },
        Copy::OPCODE => {
            let Ok(Copy { from, bytes, .. }) = postcard::from_bytes(record.body) else {
                return Reach::Nothing;
            };
            let range = from..from.saturating_add(bytes);
            if pinned(&range) && holds(&client.data, from as *const u8, bytes as usize) {
                return Reach::Anything;
            }
        }
        _ => {
            if touched.ranges.iter().any(|range| !DEVICE_RANGE.contains(&range.start)) {
                return Reach::Anything;
            }
        }
    }
    Reach::These(touched)
}

/// Whether one of these bytes' words is an address of data that is on its way. The memory is mapped in this process; the
/// program may write to it meanwhile, which leaves as open what is copied from there as what is found here.
fn holds(data: &Data, bytes: *const u8, count: usize) -> bool {
    let loading: Vec<Range<u64>> =
        data.loads.iter().filter(|load| load.is_loading()).map(Load::range).collect();
    let first = loading.iter().map(|range| range.start).min().unwrap_or(u64::MAX);
    let last = loading.iter().map(|range| range.end).max().unwrap_or(0);
    (0..(count + 1).saturating_sub(size_of::<u64>())).step_by(ALIGNMENT).any(|at| {
        // SAFETY: eight bytes inside of what the caller has, from wherever they begin.
        let word = unsafe { bytes.add(at).cast::<u64>().read_unaligned() };
        (first..last).contains(&word) && loading.iter().any(|range| range.contains(&word))
    })
}
