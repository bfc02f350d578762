//! What a request of the program needs of memory, as far as its words tell.
//!
//! A kernel's arguments are searched for addresses, structures passed by value too. It may reach more by addresses that
//! lie in memory; what it then finds is not here.

use std::ops::Range;

use rekindle_device::{Copy3D, MemorySet};
use rekindle_protocol::operation::*;

use crate::client::{Client, GraphStep, Recipe, Step};

/// `CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: u32 = 1;

/// Of addresses among a kernel's parameters, in structures that are packed too.
const ALIGNMENT: usize = 4;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct TouchedMemory {
    /// What is certainly read or written.
    pub ranges: Vec<Range<u64>>,
    /// Words that may be addresses.
    pub words: Vec<u64>,
    /// What is certainly written; where only what is written was looked for, what may be.
    pub written: Vec<Range<u64>>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Needs {
    /// All contents: it could not be done once more with the same effect, or its answer tells how far the GPU has come.
    All,
    /// This memory, at most; it leaves nothing behind.
    Look(TouchedMemory),
    /// This memory; doing it once more on the same memory has the same effect.
    Memory(TouchedMemory),
}

/// What is looked for, and with what is known of the program.
#[derive(Clone, Copy)]
struct Search<'c> {
    client: &'c Client,
    /// Of kernels only the memory that they may write to.
    only_written: bool,
}

/// What lies behind the operation of a record.
pub(crate) fn needs(client: &Client, opcode: u32, body: &[u8], trailer: &[u8]) -> Needs {
    look(Search { client, only_written: false }, opcode, body, trailer)
}

/// As [`needs`], without the words by which kernels only read; all ranges that may be written are among those that are.
pub(super) fn needs_to_write(client: &Client, opcode: u32, body: &[u8], trailer: &[u8]) -> Needs {
    look(Search { client, only_written: true }, opcode, body, trailer)
}

fn look(search: Search<'_>, opcode: u32, body: &[u8], trailer: &[u8]) -> Needs {
    let client = search.client;
    let mut touched = TouchedMemory::default();
    let known = match opcode {
        LaunchKernel::OPCODE | LaunchKernelWith::OPCODE => {
            launched(opcode, body).is_some_and(|function| touched.kernel(search, function, trailer))
        }
        Copy::OPCODE => postcard::from_bytes::<Copy>(body).is_ok_and(|copy| {
            touched.copy(copy.to, copy.from, copy.bytes);
            true
        }),
        CopyStrided::OPCODE => {
            postcard::from_bytes::<CopyStrided>(body).is_ok_and(|strided| touched.strided(&strided.copy))
        }
        SetMemory::OPCODE => postcard::from_bytes::<SetMemory>(body).is_ok_and(|fill| touched.set(&fill.set)),
        Upload::OPCODE => postcard::from_bytes::<Upload>(body)
            .is_ok_and(|upload| touched.write(upload.to, Some(upload.bytes))),
        GraphLaunch::OPCODE => postcard::from_bytes::<GraphLaunch>(body).is_ok_and(|launch| {
            client.execs.get(launch.exec).is_ok_and(|exec| touched.recipe(search, &exec.recipe))
        }),
        FunctionGet::OPCODE
        | FunctionSet::OPCODE
        | FunctionCache::OPCODE
        | StreamCreate::OPCODE
        | StreamDestroy::OPCODE
        | StreamWaitEvent::OPCODE
        | EventCreate::OPCODE
        | EventDestroy::OPCODE
        | EventRecord::OPCODE => true,
        MemoryInfo::OPCODE
        | LimitGet::OPCODE
        | FunctionNames::OPCODE
        | OccupancyBlocks::OPCODE
        | OccupancyShared::OPCODE
        | OccupancyClusters::OPCODE
        | PartUnits::OPCODE
        | HostAtomics::OPCODE
        | DeviceFeature::OPCODE
        | TensorMapReplace::OPCODE
        | DataWaits::OPCODE => return Needs::Look(touched),
        // A driver may look whether there is memory.
        TensorMap::OPCODE => {
            touched.words(body, 1);
            return Needs::Look(touched);
        }
        _ => false,
    };
    if known { Needs::Memory(touched) } else { Needs::All }
}

/// The kernel that a request launches.
fn launched(opcode: u32, body: &[u8]) -> Option<Id> {
    match opcode {
        LaunchKernel::OPCODE => postcard::from_bytes::<LaunchKernel>(body).ok().map(|launch| launch.function),
        _ => postcard::from_bytes::<LaunchKernelWith>(body).ok().map(|launch| launch.function),
    }
}

impl TouchedMemory {
    fn words(&mut self, bytes: &[u8], step: usize) {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
        self.words.extend(bytes.windows(8).step_by(step).filter_map(|bytes| word(bytes).ok()));
    }

    /// The words of a kernel's parameters.
    pub(super) fn parameters(&mut self, bytes: &[u8]) {
        self.words(bytes, ALIGNMENT);
    }

    /// The words of a kernel's parameters, and the globals of its module where they are buffers: its arguments do not name them.
    fn kernel(
        &mut self,
        Search { client, only_written }: Search<'_>,
        function: Id,
        parameters: &[u8],
    ) -> bool {
        let globals = client.globals_of(function);
        self.written.extend(globals.clone().filter(|_| only_written));
        self.ranges.extend(globals);
        match only_written.then(|| client.written_parameters(function)).flatten() {
            Some(written) => {
                for Range { start, end } in written {
                    let bytes = parameters.get(start / ALIGNMENT * ALIGNMENT..*end);
                    self.parameters(bytes.unwrap_or(parameters));
                }
            }
            None => self.parameters(parameters),
        }
        true
    }

    /// False where a range has no end, which makes what it is of unknown.
    fn range(&mut self, start: u64, bytes: Option<u64>) -> bool {
        let end = bytes.and_then(|bytes| start.checked_add(bytes));
        self.ranges.extend(end.map(|end| start..end));
        end.is_some()
    }

    fn write(&mut self, start: u64, bytes: Option<u64>) -> bool {
        let known = self.range(start, bytes);
        self.written.extend(self.ranges.last().filter(|_| known).cloned());
        known
    }

    fn copy(&mut self, to: u64, from: u64, bytes: u64) -> bool {
        self.write(to, Some(bytes)) && self.range(from, Some(bytes))
    }

    pub(super) fn strided(&mut self, copy: &Copy3D) -> bool {
        let Copy3D { width, height, depth, .. } = *copy;
        let extent = |pitch: u64, slice: u64| {
            let rows = height.saturating_sub(1).checked_mul(pitch)?;
            depth.saturating_sub(1).checked_mul(slice)?.checked_add(rows)?.checked_add(width)
        };
        self.write(copy.to, extent(copy.to_pitch, copy.to_slice))
            && self.range(copy.from, extent(copy.from_pitch, copy.from_slice))
    }

    pub(super) fn set(&mut self, set: &MemorySet) -> bool {
        let row = set.width.checked_mul(u64::from(set.element));
        let rows = set.height.saturating_sub(1).checked_mul(set.pitch);
        self.write(set.address, row.zip(rows).and_then(|(row, rows)| rows.checked_add(row)))
    }

    /// False for a graph that does more than launches, copies and fills.
    fn recipe(&mut self, search: Search<'_>, recipe: &Recipe) -> bool {
        recipe.steps.iter().all(|step| match step {
            GraphStep::Captured(recording) => recording.steps.iter().all(|step| self.step(search, step)),
            GraphStep::Kernel { function, parameters, .. } => self.kernel(search, *function, parameters),
            GraphStep::Copy { copy, .. } => self.strided(copy),
            GraphStep::Set { set, .. } => self.set(set),
            GraphStep::Empty { .. } => true,
            GraphStep::Child { recipe, .. } => self.recipe(search, recipe),
            GraphStep::Action { action, .. } => {
                matches!(action, NodeAction::Allocate { .. } | NodeAction::Free { .. })
            }
            GraphStep::Conditional { .. } => false,
            GraphStep::Disabled(_) | GraphStep::Gone => true,
        })
    }

    fn step(&mut self, search: Search<'_>, step: &Step) -> bool {
        match step {
            Step::Launch { function, parameters, .. } => self.kernel(search, *function, parameters),
            Step::Copy { to, from, bytes, .. } => self.copy(*to, *from, *bytes),
            Step::CopyStrided { copy, .. } => self.strided(copy),
            Step::Set { set, .. } => self.set(set),
            Step::Graph { recipe, .. } => self.recipe(search, recipe),
            Step::Record { flags, .. } | Step::Wait { flags, .. } => flags & EXTERNAL == 0,
            Step::WaitValue { .. }
            | Step::WriteValue { .. }
            | Step::HostCall { .. }
            | Step::CopyArray { .. }
            | Step::Node { .. }
            | Step::Added { .. }
            | Step::Depend { .. }
            | Step::Into { .. } => false,
        }
    }
}
