//! Daemon ↔ worker. The worker listens on a socket of its own in the run directory, so that the next daemon finds it
//! again.
//!
//! ```text
//!   daemon  Greeting ─ Message { id, client, request } ─────────────────────▶ worker
//!           ◀────────────────────────── Greeting ─ Reply { id, answer } ─ …
//! ```
//!
//! Both sides greet at once, and the worker refuses a daemon of another [`VERSION`] in a sentence. Each [request](ask)
//! has an answer of its own type; one is answered before the next is read. The daemon's end closing in the middle of a
//! checkpoint undoes it: the client resumes.

pub mod ask;
mod departure;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rekindle_device::DeviceInfo;
use serde::{Deserialize, Serialize};

use crate::data::Version;
pub use crate::frame::MOST_DESCRIPTORS;
use crate::frame::{self, FrameError, Limits};
pub use ask::{Ask, Request};
pub use departure::Departure;

/// Of all that daemon and worker say to each other. Raised with every change.
pub const VERSION: u32 = 22;

/// The first thing that either side says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub version: u32,
}

/// By this variable workers are told in which directory the pages are by which those of one GPU share its link.
pub const LINKS_VARIABLE: &str = "REKINDLE_LINKS";

/// The worker's number for a client.
pub type ClientNumber = u32;
/// The client that a worker has from the start.
pub const FIRST_CLIENT: ClientNumber = 0;

/// A request, and for which of the worker's clients.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message {
    /// The daemon's number for it; later ones are higher.
    pub id: u64,
    pub client: ClientNumber,
    pub request: Request,
}

/// The answer to the message with this number, or why there is none: one sentence that says what was found, what was
/// expected and what to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply<T> {
    pub id: u64,
    pub answer: Result<T, String>,
}

/// Why the other side of a connection cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    #[error(
        "the {other} speaks version {found} of the worker's protocol, and this {own} version {VERSION}; what runs \
         since before an upgrade has to be checkpointed or ended by the installation that started it"
    )]
    Version { own: &'static str, other: &'static str, found: u32 },
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Greets the other side, and hears whether it speaks the same version.
pub fn greet(
    stream: &UnixStream,
    own: &'static str,
    other: &'static str,
    limit: Duration,
) -> Result<(), GreetingError> {
    frame::send(stream, &Greeting { version: VERSION }, &[])?;
    let limits = Limits { time: Some(limit), ..Limits::default() };
    let (greeting, _) = frame::receive_within::<Greeting>(stream, &limits)?;
    stream.set_read_timeout(None).map_err(FrameError::from)?;
    match greeting {
        Greeting { version: VERSION } => Ok(()),
        Greeting { version } => Err(GreetingError::Version { own, other, found: version }),
    }
}

/// Socket in the run directory where the worker with this number listens.
pub fn socket_name(worker: u32) -> String {
    format!("worker-{worker}.sock")
}

/// The number of the worker whose socket has this name; none if it is no such socket.
pub fn socket_number(name: &str) -> Option<u32> {
    name.strip_prefix("worker-")?.strip_suffix(".sock")?.parse().ok()
}

/// What becomes of the order in which requests name parts of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recording {
    #[default]
    None,
    /// It is noted to the end, for `Uses`.
    Asked,
    /// It is noted up to the first quiet moment, and added to the image's load order.
    Learned,
}

/// What becomes of the contents of GPU memory in a `Save`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contents {
    /// They are written to the image.
    Saved,
    /// They are copied within the GPU, and written to the image from there beside the program, until `Drain` is answered.
    /// Where there is no room for all of them, that is what the image does not have yet, as far as there is room for it; the
    /// rest is written from where it lies, before requests of the program change it, or at once.
    Shadowed,
    /// They stay where they are: `Sleep` is to follow.
    Left,
}

/// A saved half: parts as the store describes them, and the phases' times.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Saved {
    pub parts: Vec<serde_json::Value>,
    pub phases: Vec<Phase>,
    /// Of a `Save` with [`Contents::Shadowed`].
    #[serde(default)]
    pub memory: Option<TransferReport>,
    /// So, too.
    #[serde(default)]
    pub waited: Option<WorkWait>,
    /// Of a `Drain`: the program has changed memory that no request was known to write to before it was in the image, so that
    /// there is none. Its next image is written while it stands still.
    #[serde(default)]
    pub overwritten: bool,
}

/// A program stood still until its GPU had done what it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkWait {
    /// Why the image could not be made behind that work: a part of a sentence.
    pub why: String,
    pub duration_us: u64,
}

/// How GPU memory of a program that goes on came to its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferPath {
    /// All was copied within the GPU.
    Shadow,
    /// It was written before the program stood still, and what was new then was copied within the GPU or written.
    Ahead,
    /// Nothing was written before.
    #[default]
    Still,
}

/// The way that was chosen, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferReport {
    pub way: TransferPath,
    /// A part of a sentence.
    pub why: String,
    pub bytes: u64,
    /// Bytes beside those whose contents nobody will read, as the program's allocator has them free.
    #[serde(default)]
    pub unused_bytes: u64,
    /// Bytes that were looked at before the program stood still, each time that they were.
    pub ahead_bytes: u64,
    /// Bytes that the image did not have then, how many of them were written while the program stood still, and how many
    /// afterwards, before it could change them.
    pub new_bytes: u64,
    pub still_bytes: u64,
    #[serde(default)]
    pub guarded_bytes: u64,
}

/// A memory that a cache is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMemory {
    /// The daemon gives each number once.
    pub number: u32,
    pub bytes: u64,
    /// The program's number of the GPU that it lies on; none for memory of the host.
    pub device: Option<usize>,
}

/// Bytes of each chunk that is cached, but for a part's last one, and of the room that it takes.
pub const CACHE_SLOT: u64 = 2 << 20;

/// Consecutive chunks of a part that lie one after the other in a cache's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    pub part: String,
    /// The number of the first chunk within its part.
    pub first: u64,
    pub count: u64,
    pub memory: u32,
    /// Of the first chunk in the memory, bytes.
    pub offset: u64,
    /// The row is all of the part and all of the memory, and nobody is expected to write there: rather than copied from,
    /// the memory may be mapped, read-only, for as long as the worker likes.
    #[serde(default)]
    pub share: bool,
}

/// A step of a checkpoint or restore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Who works on it; steps of one lane follow each other, lanes go on side by side.
    #[serde(default)]
    pub lane: String,
    pub name: String,
    /// Microseconds since the checkpoint or restore began, where known to the sender; else since its request.
    pub start_us: u64,
    pub duration_us: u64,
    pub bytes: u64,
    /// How many of the bytes came from where, if that was a choice.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub from: BTreeMap<String, u64>,
    /// What it was made of, where that says more than a size.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// The lanes that this step did nothing but wait for.
    #[serde(default)]
    pub waited_for: Vec<String>,
}

/// A worker whose contexts several clients share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    pub pid: i32,
    /// Whose programs share them; none else do.
    pub tenant: String,
    pub gpu: String,
}

/// The weight of a client of which nothing is said.
pub const DEFAULT_LINK_WEIGHT: u32 = 10;

/// What a client has of contexts that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portion {
    /// While several copy, each has bytes by its weight.
    pub link_weight: u32,
    /// How much of a GPU's multiprocessors are its own, in percent; none: those that are nobody's.
    pub sm_share: Option<u32>,
    /// By which it has multiprocessors beyond that, among those that have work.
    pub sm_weight: Option<u32>,
    /// The most that it has of them, in percent.
    pub sm_most: Option<u32>,
}

impl Default for Portion {
    fn default() -> Portion {
        Portion { link_weight: DEFAULT_LINK_WEIGHT, sm_share: None, sm_weight: None, sm_most: None }
    }
}

/// When what a client of shared contexts allocates gets memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareMemory {
    /// At once.
    #[default]
    Eager,
    /// When something names it: until then it has addresses alone.
    Lazy,
}

/// What a worker's sentence names if GPU memory was missing, as the driver does.
pub const NO_GPU_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// What becomes of a client whose shared context has failed: a byte in what it is [watched](ask::Watch) by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContextLost {
    /// It was at rest: its requests wait until it goes on with another worker ([`Leave`](ask::Leave)).
    AtRest = 1,
    /// It had work there, and its program is told of the fault.
    Told = 2,
}

impl ContextLost {
    /// None for a byte that says nothing.
    pub fn of(byte: u8) -> Option<ContextLost> {
        [ContextLost::AtRest, ContextLost::Told].into_iter().find(|lost| *lost as u8 == byte)
    }
}

/// A client that may go on with another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    /// The ticket of its next request.
    pub next: u64,
    /// Whether the driver half of its process is attached, as far as this worker was told.
    pub driver_attached: bool,
}

/// An object of a store in memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredData {
    pub url: String,
    /// None while it is on its way.
    pub version: Option<Version>,
    /// Of the memory.
    pub bytes: u64,
    /// Another program has made it.
    pub is_shared: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// It is a keeper: the GPU half of its client sleeps.
    #[serde(default)]
    pub asleep: bool,
    /// It has started again after a fault of its program's that was to be mended.
    #[serde(default)]
    pub mended: bool,
    /// It was restored, and its client was not let go on yet.
    #[serde(default)]
    pub held_back: bool,
    /// Its client may go on with another worker, which is to be known within moments.
    #[serde(default)]
    pub parted: bool,
    /// What has ended a context of its program's, which was told of that: whatever it asks of the GPU fails.
    #[serde(default)]
    pub fault: Option<String>,
    pub pid: i32,
    /// The client's pid as the worker sees it, 0 without a client.
    pub client: i32,
    pub gpu: String,
    pub gpu_uuid: String,
    pub driver: String,
    /// The GPUs that the program sees, in its order, and the free memory of each in bytes.
    #[serde(default)]
    pub devices: Vec<DeviceInfo>,
    #[serde(default)]
    pub free_bytes: Vec<u64>,
    /// UUIDs of the GPUs whose memory each of these can copy from by itself.
    #[serde(default)]
    pub reaches: Vec<Vec<String>>,
    /// Bytes of device memory that the program holds on each of these.
    #[serde(default)]
    pub held_bytes: Vec<u64>,
    /// Bytes of device memory that the program holds, how many of them are a cache's, mapped, and of pinned memory.
    pub device_bytes: u64,
    #[serde(default)]
    pub shared_bytes: u64,
    /// Bytes that it has allocated and that have no memory, since nothing has named them yet.
    #[serde(default)]
    pub unbacked_bytes: u64,
    /// Bytes that the contexts which it shares have ready for first uses of all their programs; how often its own found memory
    /// there, and how often it had to be made.
    #[serde(default)]
    pub pool_bytes: u64,
    #[serde(default)]
    pub pool_hits: u64,
    #[serde(default)]
    pub pool_misses: u64,
    pub pinned_bytes: u64,
    /// Declared data that it has on its GPU and cannot write to, which other programs may have there, too.
    #[serde(default)]
    pub declared: Vec<DeclaredData>,
    pub buffers: u64,
    pub modules: u64,
    pub streams: u64,
    pub events: u64,
    pub graphs: u64,
    /// Instances of them that the device does not have yet, since a restore.
    #[serde(default)]
    pub unmade: u64,
    pub operations: u64,
    /// What the program has had copied to its GPUs and from them since this worker has it; not what graphs copy.
    #[serde(default)]
    pub to_gpu_bytes: u64,
    #[serde(default)]
    pub from_gpu_bytes: u64,
    /// What the client has of contexts that it shares, where it does.
    #[serde(default)]
    pub portion: Option<Portion>,
    /// How long copies of its program have waited for their turn there.
    #[serde(default)]
    pub link_waited_us: u64,
    /// How many multiprocessors its work has there now; 0 while it rests and others may have them.
    #[serde(default)]
    pub multiprocessors: u32,
}

/// What one request needed of one GPU's memory, where that comes at the first use. Launches are numbered from 1 on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestProfile {
    pub launches: u32,
    /// The most bytes that the program had allocated at once, with memory or without.
    pub allocated_bytes: u64,
    /// Bytes that had memory when the request began.
    pub resident_bytes: u64,
    /// By launches, how many bytes more than then had memory, whenever that changed.
    pub held: Vec<(u32, i64)>,
    /// The same of what was between its first and its last use.
    pub used: Vec<(u32, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_greets_with_another_version_is_told_so_in_a_sentence() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        frame::send(&theirs, &Greeting { version: VERSION + 8 }, &[]).unwrap();
        let refused = greet(&ours, "daemon", "worker", Duration::from_secs(10)).unwrap_err().to_string();
        let expected = format!(
            "the worker speaks version {} of the worker's protocol, and this daemon version",
            VERSION + 8
        );
        assert!(refused.starts_with(&expected), "{refused}");
        frame::send(&ours, &Greeting { version: VERSION }, &[]).unwrap();
        assert!(greet(&theirs, "worker", "daemon", Duration::from_secs(10)).is_ok());
        drop(theirs);
        let gone = greet(&ours, "daemon", "worker", Duration::from_secs(10));
        assert!(matches!(gone, Err(GreetingError::Frame(_))), "{gone:?}");
    }
}
