//! Client ↔ worker, beside the rings.
//!
//! The client finds the run directory in [`RUN_DIRECTORY`], connects to [`ADMISSION_SOCKET`] there, which the daemon listens on,
//! says [`AdmissionRequest::Knock`] and receives one [`Admission`]; with [`Admission::Admitted`] comes one descriptor, a socket to the worker that
//! serves this process. On it the worker sends a [`Welcome`] first; from then on [`ToClient`] and [`ToWorker`] flow. A
//! closed socket means that the other side is dead.

use rekindle_device::{DeviceInfo, Slice};
use serde::{Deserialize, Serialize};

/// Environment variable with the path, as the program sees it, of the sandbox's run directory. It holds ring files,
/// pinned-memory files and the admission socket.
pub const RUN_DIRECTORY: &str = "REKINDLE_RUN";
/// File in the run directory whose size is the number of steps that the program has told.
pub const STEPS: &str = "steps";
/// File in the run directory with the names of functions that the program was refused, a line each. The client appends to it.
pub const REFUSED: &str = "refused";
/// File in the run directory that says whose arrays handed on the program has: the name of the daemon's state, and the owner.
/// Two programs whose files are the same can give each other arrays.
pub const OWNER: &str = "owner";
/// Socket in the run directory where a process of the sandbox asks for a worker.
pub const ADMISSION_SOCKET: &str = "gate.sock";
/// Every file that a client makes in the run directory is named `KIND-PROCESS-N`: `board-1000`, `ring-1000-0`,
/// `pinned-1000-3`, `code-1000-7`. Names stay the same over a restore.
pub fn file_name(kind: &str, process: u32, number: u32) -> String {
    format!("{kind}-{process}-{number}")
}

/// Of all that client and worker say to each other: the messages here, the operations, and how rings, staging areas and
/// boards are laid out. Raised with every change of what there is, operations that come behind all others too. A
/// restored program speaks that of its image.
pub const CLIENT_VERSION: u32 = 12;
/// The oldest client that a worker serves. Version 1 has no waits that give way to a checkpoint, for the GPU or for bytes, and
/// version 2 no CUDA IPC, version 3 does not change nodes of graphs, version 4 does not know [`ToClient::Release`], version 5 has
/// no arrays, nodes of fewer kinds, and no parts of the multiprocessors, version 6 puts no graphs into nodes, version 7 does not
/// ask when requests have waited, version 8 does not say what memory is unused, version 9 does not know
/// [`ToClient::GiveBack`], version 10 gives streams work that are full, and version 11 does not know [`ToClient::Step`]; all that
/// they say is said in the same way since.
pub const OLDEST_CLIENT_VERSION: u32 = 1;
/// The first that knows [`ToClient::Release`].
pub const RELEASING_CLIENT_VERSION: u32 = 5;
/// The first that knows [`ToClient::TellUnused`].
pub const TELLING_CLIENT_VERSION: u32 = 9;
/// The first that knows [`ToClient::GiveBack`].
pub const GIVING_CLIENT_VERSION: u32 = 10;
/// The first that knows [`ToClient::Step`].
pub const STEPPING_CLIENT_VERSION: u32 = 12;

/// Whether a worker of this build serves a client of that [`CLIENT_VERSION`].
pub fn is_served(version: u32) -> bool {
    (OLDEST_CLIENT_VERSION..=CLIENT_VERSION).contains(&version)
}

/// Of what is said at the admission socket. A daemon admits no process that speaks another one.
pub const ADMISSION_VERSION: u32 = 1;
/// The longest message that a process says there, bytes.
pub const LONGEST_ADMISSION: usize = 4096;

/// What a process says at the admission socket.
#[derive(Debug, Serialize, Deserialize)]
pub enum AdmissionRequest {
    /// It wants a GPU, or the one that it has woken. Nothing is done for it before that.
    Knock { version: u32 },
    /// It has taken up with the worker that it was admitted to, which serves it from now on.
    Settled,
}

/// The daemon's answer there.
#[derive(Debug, Serialize, Deserialize)]
pub enum Admission {
    Admitted,
    /// The process has a worker that sleeps; it is being woken. `problem`: why that failed the last time, if it did.
    Waking {
        problem: Option<String>,
    },
    /// Why this process gets no GPU: one sentence.
    Refused(String),
}

/// The worker's first message.
#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The worker's [`CLIENT_VERSION`].
    #[serde(default)]
    pub version: u32,
    pub driver_version: i32,
    pub devices: Vec<DeviceInfo>,
    /// Of which devices the first one's kernels may use the second one's memory.
    #[serde(default)]
    pub reaches: Vec<(u8, u8)>,
    /// Path of the real driver library where there is one: the client passes the runtime's genuine tables on from it.
    pub real_driver: Option<String>,
    /// Largest allocation granularity, bytes.
    pub granularity: u64,
    /// Where pinned memory is to lie, if the program may share contexts with others.
    #[serde(default)]
    pub slice: Option<Slice>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum ToWorker {
    /// Files in the run directory; sent before the first request of a ring. With the board comes a descriptor of the
    /// client's process (a pidfd), where the kernel gives one.
    Board {
        name: String,
        /// The client's [`CLIENT_VERSION`].
        #[serde(default)]
        version: u32,
    },
    Ring {
        index: u32,
        name: String,
    },
    /// The host function with this token has returned.
    Called {
        token: u64,
    },
    /// No thread is inside a CUDA call and none will enter one until `Resume`.
    Quiesced(Quiesced),
    /// The process could not be quiesced: one sentence.
    Busy(String),
    /// After a `Resume`: calls run again.
    Resumed,
    /// A new copy of the CUDA runtime starts: the driver half of this process is needed again.
    Attach,
    /// The answer to `Release`: whether the driver half of this process is attached, and nobody uses it any more without
    /// `Attach`.
    Released(bool),
    /// The answer to `TellUnused`; by now it may be used.
    Unused(Vec<UnusedRange>),
}

/// A file of the run directory: which pages a restored program will touch first, one [`TouchedRange`] after the other.
pub const FIRST_PAGES: &str = "first-pages";

/// Pages of a program's memory that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchedRange {
    pub start: u64,
    pub bytes: u64,
    /// They are written to, not only read.
    pub written: bool,
}

impl TouchedRange {
    const BYTES: usize = 24;

    pub fn encode(&self) -> [u8; TouchedRange::BYTES] {
        let mut bytes = [0; TouchedRange::BYTES];
        let words = [self.start, self.bytes, u64::from(self.written)];
        for (word, into) in words.into_iter().zip(bytes.chunks_exact_mut(8)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// All that a file has, as far as it is whole.
    pub fn decode(bytes: &[u8]) -> impl Iterator<Item = TouchedRange> {
        bytes.chunks_exact(TouchedRange::BYTES).map(|bytes| {
            let word = |n: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[n * 8..n * 8 + 8]);
                u64::from_le_bytes(word)
            };
            TouchedRange { start: word(0), bytes: word(1), written: word(2) != 0 }
        })
    }
}

/// What a checkpoint must know of a quiesced client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiesced {
    /// The client's [`CLIENT_VERSION`]. Images from before it was said have the first one.
    #[serde(default = "first_version")]
    pub version: u32,
    /// The pid as the program sees it.
    pub process: u32,
    /// Inode of the client's end of this socket, which CRIU is told about.
    pub socket_inode: u64,
    /// Whether the real driver is open and initialised in the process.
    pub driver_attached: bool,
    /// Board, ring and pinned files that are mapped: (name, bytes).
    pub files: Vec<(String, u64)>,
    /// What is on its way to threads that gave way while they waited for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncollected: Vec<Uncollected>,
    /// GPU memory of the program whose contents nobody will read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<UnusedRange>,
}

/// So many bytes of GPU memory, from the program's address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedRange {
    pub address: u64,
    pub bytes: u64,
}

/// A piece of a ring's staging area that the GPU fills, or has filled, and that its thread has not taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uncollected {
    pub ring: u32,
    /// Offset into the staging area, bytes.
    pub offset: u64,
    pub bytes: u64,
    /// The position that is published when the piece is complete.
    pub end: u64,
}

fn first_version() -> u32 {
    1
}

#[derive(Debug, Serialize, Deserialize)]
pub enum ToClient {
    /// The ring is read from now on.
    RingReady { index: u32 },
    /// Run the host function with this token.
    Call { token: u64 },
    /// Let no thread enter a CUDA call; answer when none is inside one, at the latest after the limit. `unused`: say which memory
    /// is unused then.
    Quiesce {
        limit_ms: u64,
        #[serde(default)]
        unused: bool,
    },
    /// After `Quiesce`: each thread may make so many CUDA calls more, if it makes them now. Answered as `Quiesce` is.
    Step { calls: u32, limit_ms: u64 },
    /// After `Quiesce`: the GPU half goes to sleep. The barrier stays closed, and a thread that comes to it knocks at
    /// [`ADMISSION_SOCKET`] until `Resume`.
    Sleep,
    /// Calls may run again. `restored`: in a new process with new (zeroed) board and ring files, already mapped;
    /// `driver_attached`: whether the driver half of the process is attached now.
    Resume { restored: bool, driver_attached: bool },
    /// The answer to `Attach`: empty when it worked.
    Attached { problem: String },
    /// The driver half of the process is to be detached while it runs.
    Release,
    /// After `Released(true)`: it could not be, and is attached.
    Kept,
    /// Say which memory is unused now, while the program runs.
    TellUnused,
    /// The program rests: have its allocators free what they keep for themselves.
    GiveBack,
}
