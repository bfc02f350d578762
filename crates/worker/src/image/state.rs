//! All that a worker must know to have a program's GPU objects again, as plain data.
//!
//! ```text
//!   "RKWS"  version (u32, little endian)  postcard encoding of State
//! ```
//!
//! The encoding has no field names: any change of these structs raises [`VERSION`].

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rekindle_device::{Access, GpuKind, ModuleKind, Placement, Slice, Units};
use rekindle_protocol::operation::Id;
use serde::{Deserialize, Serialize};

use super::arrays::{ArrayState, ViewState};
use super::error::{Error, Result};
use crate::client::{GlobalGiven, GlobalsBuffer, Recipe};
use crate::ipc::{IpcState, PhysicalShared};
use crate::memory::Small;

const MAGIC: &[u8; 4] = b"RKWS";
pub(super) const VERSION: u32 = 11;
/// Earlier versions, each with what is to be added to what it says: fields that are empty.
const EARLIER: [(u32, usize); 9] =
    [(10, 0), (9, 1), (8, 2), (7, 8), (6, 14), (5, 15), (4, 16), (3, 19), (2, 20)];

/// The largest state that is read, bytes.
pub(super) const MOST_BYTES: u64 = 1 << 30;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub devices: Vec<DeviceState>,
    pub physical: Vec<PhysicalState>,
    pub reservations: Vec<ReservationState>,
    pub mappings: Vec<MappingState>,
    pub pinned: Vec<PinnedState>,
    pub modules: Vec<ModuleState>,
    pub functions: Vec<FunctionState>,
    pub streams: Vec<StreamState>,
    pub events: Vec<EventState>,
    /// Of images of earlier versions; later ones have them in [a part of their own](super::graph_part).
    pub graphs: Vec<GraphState>,
    pub execs: Vec<ExecState>,
    pub threads: Vec<ThreadState>,
    /// The board file's name.
    pub board: String,
    pub history: u64,
    /// Where the driver has put its own heaps.
    pub placements: Vec<Placement>,
    /// Modules that are loaded a kernel at a time, and where the globals of each lie.
    pub pieces: BTreeMap<Id, GlobalsBuffer>,
    /// Those of them of whose constants the program knows where they are.
    pub constants_told: BTreeSet<Id>,
    /// Why other modules could not be taken apart.
    pub whole: BTreeMap<Id, String>,
    /// Pieces that were loaded, those first that are best loaded first.
    pub kernels: Vec<KernelState>,
    /// The addresses that it keeps to, if it may share contexts with others.
    pub slice: Option<Slice>,
    /// Bytes that the GPU has given, and that no thread has taken out of its staging area.
    pub uncollected: Vec<UncollectedState>,
    /// What other processes of the program have too.
    pub ipc: IpcState,
    pub arrays: Vec<ArrayState>,
    /// Textures and surfaces, in the order in which they were made.
    pub views: Vec<ViewState>,
    /// Graphs that are in a node of another: that one, the node's number, and which body of it they are.
    pub inside: BTreeMap<Id, (Id, u32, u32)>,
    /// Multiprocessors that the program has divided off.
    pub parts: Vec<PartState>,
    /// Of the memory that the program maps itself, what other processes of it have too.
    pub physical_shared: PhysicalShared,
    /// Buffers that nothing has named yet, by their addresses: they have no memory, and the image no part of them.
    pub unbacked: BTreeSet<u64>,
    /// Of `kernels`, those by their places that programs of one context may have together.
    pub sharable: BTreeSet<usize>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartState {
    pub id: Id,
    pub device: usize,
    /// A set of these units.
    pub set: u64,
    pub units: Units,
    /// The streams that were made there.
    pub streams: BTreeSet<Id>,
}

/// A piece of a staging area.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct UncollectedState {
    pub ring: u32,
    pub offset: u64,
    /// The position that its thread waits for.
    pub end: u64,
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

/// A piece, as it was cut: so many bytes of the part of all pieces, one behind the other.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KernelState {
    pub module: Id,
    pub name: String,
    pub bytes: u64,
    pub options: Vec<(i32, u64)>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct DeviceState {
    pub kind: GpuKind,
    pub model: String,
    /// None for a device whose context the program did not have.
    pub context: Option<ContextState>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ContextState {
    /// Reserved addresses: start, bytes.
    pub regions: Vec<(u64, u64)>,
    pub buffers: Vec<BufferState>,
    pub limits: Vec<(u32, u64)>,
    /// Milliseconds on the program's clock when it was stopped.
    pub clock: f64,
    /// An asynchronous error that the program has not yet asked for, 0 if none.
    pub error: i32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BufferState {
    pub address: u64,
    /// Of the handle.
    pub bytes: u64,
    pub content: ContentState,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ContentState {
    /// Bytes that the program asked for.
    Large(u64),
    /// Allocations by their offsets.
    Slab(BTreeMap<u64, Small>),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PhysicalState {
    pub serial: u64,
    pub device: usize,
    pub bytes: u64,
    pub id: Option<Id>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ReservationState {
    pub address: u64,
    pub bytes: u64,
    pub device: usize,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MappingState {
    pub address: u64,
    pub bytes: u64,
    pub serial: u64,
    pub access: Access,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PinnedState {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
    pub device: usize,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ModuleState {
    /// None for a module that was unloaded and is loaded again for its place only.
    pub id: Option<Id>,
    pub device: usize,
    pub kind: ModuleKind,
    pub options: Vec<(i32, u64)>,
    pub code: CodeState,
    pub loaded_at: u64,
    pub unloaded_at: Option<u64>,
    pub given: Vec<GlobalGiven>,
    /// What the part of the module's globals holds, in its order.
    pub contents: Vec<GlobalContent>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GlobalContent {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum CodeState {
    /// The name of a part.
    Part(String),
    File {
        path: String,
        offset: u64,
        bytes: u64,
        identity: String,
    },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FunctionState {
    pub id: Id,
    pub module: Id,
    pub name: String,
    pub at: u64,
    pub attributes: Vec<(i32, i32)>,
    pub cache: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StreamState {
    /// None for a stream that was destroyed and is made again for its room in the driver's heaps only.
    pub id: Option<Id>,
    pub device: usize,
    pub flags: u32,
    pub priority: i32,
    pub at: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct EventState {
    pub id: Id,
    pub device: usize,
    pub flags: u32,
    /// When it was last recorded, in milliseconds on the program's clock; for those that keep time.
    pub time: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GraphState {
    pub id: Id,
    pub device: usize,
    pub recipe: Arc<Recipe>,
    /// How many nodes the program was told of.
    pub nodes: usize,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ExecState {
    pub id: Id,
    pub device: usize,
    pub flags: u64,
    pub recipe: Arc<Recipe>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ThreadState {
    pub index: u32,
    pub name: String,
    /// Devices on which it has a default stream of its own, and since when.
    pub streams: Vec<(usize, u64)>,
}

impl State {
    /// Buffers that have memory.
    pub(super) fn backed(&self) -> impl Iterator<Item = &BufferState> {
        let buffers = self.devices.iter().flat_map(|row| &row.context).flat_map(|context| &context.buffers);
        buffers.filter(|buffer| !self.unbacked.contains(&buffer.address))
    }

    /// The part that a stream was made on; none: it has the whole device.
    pub(super) fn part_of(&self, stream: Id) -> Option<Id> {
        self.parts.iter().find(|part| part.streams.contains(&stream)).map(|part| part.id)
    }

    /// Where the globals lie of a module that is loaded a kernel at a time; none for one that is loaded whole.
    pub(super) fn pieces_of(&self, module: &ModuleState) -> Option<GlobalsBuffer> {
        self.pieces.get(&module.id?).copied()
    }

    /// The last turn that has a say in addresses that the program may hold: those of modules that are whole, of their globals
    /// and of functions that these name. All that had a turn before shapes them, pieces too. None: nothing has a say.
    pub(super) fn ordered_until(&self) -> Option<u64> {
        let is_shaped = |row: &&ModuleState| {
            self.pieces_of(row).is_none() && (!row.contents.is_empty() || row.unloaded_at.is_some())
        };
        let turns = self.modules.iter().filter(is_shaped).flat_map(|row| {
            let functions = self.functions.iter().filter(|function| Some(function.module) == row.id);
            let given = row.given.iter().map(|given| given.at);
            functions.map(|function| function.at).chain(given).chain([row.loaded_at])
        });
        turns.max()
    }

    /// What whoever looks at an image is told of its code.
    pub(super) fn code_attributes(&self) -> serde_json::Value {
        let mut whole: BTreeMap<&str, u64> = BTreeMap::new();
        self.whole.values().for_each(|word| *whole.entry(word).or_default() += 1);
        let kernels = self.functions.iter().filter(|row| self.pieces.contains_key(&row.module)).count();
        serde_json::json!({ "code": {
            "modules": self.modules.iter().filter(|row| row.id.is_some()).count(),
            "in_pieces": self.pieces.len(),
            "kernels": kernels,
            "loaded": self.kernels.len(),
            "whole": whole,
            "ordered": self.ordered_until().is_some(),
        }})
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        postcard::to_extend(self, bytes).map_err(|error| Error::State(error.to_string()))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<State> {
        let (head, body) =
            bytes.split_at_checked(8).ok_or_else(|| Error::State("it is cut short".to_string()))?;
        if &head[..4] != MAGIC {
            return Err(Error::State("it does not begin with RKWS".to_string()));
        }
        let version = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let earlier = EARLIER.iter().find(|(earlier, _)| *earlier == version);
        let body = match (version, earlier) {
            (VERSION, _) => Cow::Borrowed(body),
            (_, Some((_, fields))) => Cow::Owned([body, &vec![0; *fields]].concat()),
            _ => {
                let text = format!(
                    "it has version {version} where {VERSION} was expected; use the Rekindle that made it"
                );
                return Err(Error::State(text));
            }
        };
        postcard::from_bytes(&body).map_err(|error| Error::State(error.to_string()))
    }
}

/// The part with a heap buffer's contents. Addresses of all devices differ.
pub(super) fn buffer_part(address: u64) -> String {
    format!("{address:012x}")
}

pub(super) fn physical_part(serial: u64) -> String {
    format!("physical-{serial}")
}

pub(super) fn globals_part(loaded_at: u64) -> String {
    format!("globals-{loaded_at}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> State {
        State {
            devices: vec![DeviceState {
                kind: GpuKind::Emulated,
                model: "m".to_string(),
                context: Some(ContextState { regions: vec![(1, 2)], clock: 1.5, ..ContextState::default() }),
            }],
            streams: vec![StreamState { id: Some(2), device: 0, flags: 1, priority: -1, at: 3 }],
            functions: vec![FunctionState {
                id: 5,
                module: 3,
                name: "k".to_string(),
                at: 7,
                attributes: vec![(8, 100)],
                cache: Some(1),
            }],
            board: "board-1-0".to_string(),
            ..State::default()
        }
    }

    /// Nothing in what is written says where a field begins: a field more in the middle has every image misread that was taken
    /// before. New ones go to the end of [`State`].
    #[test]
    fn what_a_version_writes_stays_as_it_is() {
        let expected = "524b57530b0000000101016d010101020000000000000000f83f000000000000010503016b070110c801010201010200\
                        0101030000000009626f6172642d312d3000000000000103016b0901000100000000000000000000000000000000";
        let kernels = vec![KernelState { module: 3, name: "k".to_string(), bytes: 9, options: vec![(0, 1)] }];
        let state = State { kernels, ..sample() };
        let found: String = state.encode().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_state_reads_back_and_other_versions_are_refused() {
        let mut bytes = sample().encode().unwrap();
        assert_eq!(State::decode(&bytes).unwrap(), sample());
        bytes[4] = 99;
        assert!(State::decode(&bytes).unwrap_err().to_string().contains("version 99"));
        bytes[0] = 0;
        assert!(State::decode(&bytes).is_err());
    }

    #[test]
    fn states_of_earlier_versions_are_read() {
        for (version, fields) in EARLIER {
            let mut bytes = sample().encode().unwrap();
            bytes.truncate(bytes.len() - fields);
            bytes[4] = version as u8;
            assert_eq!(State::decode(&bytes).unwrap(), sample());
        }
        let pieces = BTreeMap::from([(3, GlobalsBuffer { allocation: 1, address: 2, bytes: 3 })]);
        let state = State { pieces, ..sample() };
        assert_eq!(State::decode(&state.encode().unwrap()).unwrap(), state);
    }

    proptest! {
        #[test]
        fn nonsense_is_refused_without_harm(body in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..60) {
            let mut bytes = sample().encode().unwrap();
            bytes.truncate(cut.min(bytes.len()));
            let _ = State::decode(&bytes);
            bytes.truncate(8);
            bytes.extend_from_slice(&body);
            let _ = State::decode(&bytes);
        }
    }
}
