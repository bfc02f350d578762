//! A decoded module: what the machine runs.
//!
//! All functions share one code vector. An instruction's operands lie in one vector too, results first; each is
//! a row of registers relative to the frame's base, or, with [`CONSTANT`] set, an index into the constants.

use std::sync::{Arc, Mutex};

use crate::alu::{Alu, Alu2, Lanes};
use crate::module::{Entry, Global};
use crate::types::Space;

pub(crate) const CONSTANT: u32 = 1 << 31;
/// The guard of an instruction without one.
pub(crate) const UNGUARDED: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bits(u64),
    /// The address of a global and a distance from it.
    Global(u32, i64),
    /// Where dynamic shared memory begins in the launched kernel, and a distance from it.
    DynamicShared(i64),
}

pub(crate) struct Program {
    pub code: Vec<Instruction>,
    pub operands: Vec<u32>,
    /// The first is zero.
    pub constants: Vec<Constant>,
    pub functions: Vec<Function>,
    pub entries: Vec<Entry>,
    /// For each entry, its function.
    pub entry_functions: Vec<u32>,
    pub globals: Vec<Global>,
    pub unresolved: Vec<String>,
    pub version: (u32, u32),
    pub target: String,
    /// The constants as rows for the last launch: what they depend on, and they.
    pub rows: Mutex<Option<ConstantRows>>,
}

#[derive(Clone)]
pub(crate) struct ConstantRows {
    pub addresses: Vec<u64>,
    pub dynamic_shared_at: u32,
    pub rows: Arc<Vec<Lanes>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub start: u32,
    /// Rows of a frame.
    pub registers: u32,
    /// Bytes of a frame in local memory: returns and parameters first, then variables.
    pub frame: u32,
}

pub(crate) struct Instruction {
    pub op: Op,
    pub operands: u32,
    pub results: u8,
    pub sources: u8,
    pub negated: bool,
    /// Row of the predicate, or [`UNGUARDED`].
    pub guard: u32,
    pub line: u32,
}

#[derive(Clone)]
pub(crate) enum Op {
    Alu(Alu),
    Carry(Alu2),
    Special(Special),
    /// Address of a variable of the frame, in local space.
    FrameAddress(u32),
    /// A kernel parameter at a constant offset.
    LoadParameter(Access),
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    /// Compare-and-swap, or exchange, of 128 bits.
    Atomic128 {
        access: Access,
        compare: bool,
    },
    /// `cp.async`: bytes from the second address to the first, the rest (third source) zero.
    Copy {
        bytes: u32,
        offsets: [i64; 2],
    },
    /// `cp.async.bulk`: size in the third source; a fourth is an mbarrier that gets the bytes.
    BulkCopy {
        to: Space,
        from: Space,
        signal: bool,
    },
    /// `cp.async.bulk.tensor` to shared memory: map, target, mbarrier, coordinates.
    TensorLoad {
        dimensions: u8,
    },
    /// From there: map, source, coordinates.
    TensorStore {
        dimensions: u8,
    },
    /// `tensormap.replace`: map, value.
    TensorMapReplace {
        space: Space,
        offset: u32,
        bytes: u8,
    },
    /// `tensormap.cp_fenceproxy`: target, source.
    TensorMapCopy {
        to: Space,
        from: Space,
    },
    Mbarrier(Mbarrier, Space, i64),
    Fence,
    Branch(u32),
    BranchTable(Arc<[u32]>),
    Call(Arc<Call>),
    Return,
    Exit,
    Trap,
    /// Reached only if the program uses what it should not.
    Illegal(Arc<str>),
    Builtin(Arc<BuiltinCall>),
    Barrier(Barrier),
    ClusterBarrier {
        arrive: bool,
        wait: bool,
    },
    /// Source: the mask of lanes.
    WarpBarrier,
    Vote {
        kind: Vote,
        sync: bool,
    },
    Match {
        all: bool,
    },
    Shuffle {
        mode: Shuffle,
        sync: bool,
    },
    /// Folds the values of the lanes of the mask.
    Reduce(fn(u64, u64) -> u64),
    Elect,
    ActiveMask,
    /// `nanosleep`: the lanes rest for so many nanoseconds, and others run meanwhile.
    Sleep,
    Allocate,
    StackSave,
    StackRestore,
    MoveFragment(Arc<crate::machine::fragment::Transfer>),
    MultiplyFragments(Arc<crate::machine::fragment::Product>),
    Matrix(Arc<crate::machine::matrix::Multiply>),
    LoadMatrix {
        count: u8,
        transposed: bool,
        store: bool,
        offset: i64,
    },
    /// Sources: texture, layer, coordinates, level or gradients, offsets.
    Fetch(crate::machine::texture::Fetch),
    /// Sources: surface, layer, coordinates, values.
    Surface(crate::machine::texture::SurfaceAccess),
    ViewQuery(crate::machine::texture::Query),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub space: Space,
    /// Bytes of one element.
    pub width: u8,
    pub count: u8,
    /// Bits of the register that a signed element is extended to; zero for none.
    pub sign_extend: u8,
    /// Relative to the frame in local memory.
    pub frame: bool,
    /// Seen by other threads while this one spins.
    pub volatile: bool,
    pub offset: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Atomic {
    pub access: Access,
    /// New value from the old one and up to two operands.
    pub update: fn(u64, u64, u64) -> u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mbarrier {
    Init,
    Invalidate,
    /// Result: state before. Source: count.
    Arrive {
        drop: bool,
    },
    /// Adds the expected bytes; arrives too.
    ArriveExpect,
    Expect,
    Complete,
    /// Source: state; result: whether that phase is over.
    Test,
    /// Source: parity of the phase.
    TestParity,
    PendingCount,
}

/// How a call or return moves one value between the two frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    pub callers: ArgumentPlace,
    /// Offset in the callee's frame.
    pub callees: u32,
    pub size: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ArgumentPlace {
    /// Offset in the caller's frame.
    Frame(u32),
    /// Which operand of the call instruction.
    Operand(u8),
}

#[derive(Debug)]
pub(crate) struct Call {
    /// `None`: the first source is the function's address.
    pub function: Option<u32>,
    pub arguments: Vec<Transfer>,
    pub returns: Vec<Transfer>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Builtin {
    Vprintf,
    AssertFail,
    Malloc,
    Free,
    SetConditional,
}

#[derive(Debug)]
pub(crate) struct BuiltinCall {
    pub builtin: Builtin,
    pub arguments: Vec<ArgumentPlace>,
    pub result: Option<ArgumentPlace>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    pub kind: BarrierKind,
    /// Whether the second source is a thread count.
    pub counted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    /// The last source is the predicate, inverted if asked.
    Popc {
        inverted: bool,
    },
    And {
        inverted: bool,
    },
    Or {
        inverted: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Special {
    Thread(u8),
    BlockSize(u8),
    Block(u8),
    GridSize(u8),
    Lane,
    Warp,
    Warps,
    Multiprocessor,
    Multiprocessors,
    GridId,
    LaneMask(std::cmp::Ordering, bool),
    Clock,
    ClockHigh,
    Clock64,
    GlobalTimer,
    GlobalTimerHigh,
    StaticAndDynamicShared,
    DynamicShared,
    Cluster(u8),
    Clusters(u8),
    ClusterBlock(u8),
    ClusterSize(u8),
    ClusterRank,
    ClusterBlocks,
    ExplicitCluster,
    /// The rank of the block that a shared address (the source) belongs to.
    RankOf,
    /// Half of the address of a cooperative grid's workspace.
    Workspace,
    WorkspaceHigh,
    Zero,
}
