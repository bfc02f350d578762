//! What a daemon asks a worker, and what each request is answered with.

use rekindle_device::Slice;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    CacheMemory, Cached, Contents, Parted, Phase, Portion, Recording, RequestProfile, Saved, ShareMemory,
    Sharing, Status,
};
use crate::client::Quiesced;
use crate::mending::{MendMode, RetainedItem};

/// A request that has an answer of this type.
pub trait Ask: Into<Request> {
    type Answer: Serialize + DeserializeOwned + Send + 'static;
}

macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[$field_doc:meta])* $field:ident: $type:ty, )* } => $answer:ty;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Serialize, Deserialize)]
            pub struct $name {
                $( $(#[$field_doc])* pub $field: $type, )*
            }

            impl Ask for $name {
                type Answer = $answer;
            }

            impl From<$name> for Request {
                fn from(request: $name) -> Request {
                    Request::$name(request)
                }
            }
        )*

        /// Any of them.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub enum Request {
            $( $name($name), )*
        }
    };
}

requests! {
    GetStatus {} => Status;
    /// With a descriptor for what kernels print: a worker that waited in a pool belongs to a sandbox from now on, and
    /// outlives the daemon. Answered by its state.
    Take {} => Status;
    /// With a descriptor: when the program has ended, and all that it had can be given back so that the context is as it was
    /// before, wait as a spare worker that listens and logs here, and say so there ([`Departure`](super::Departure)). It does so
    /// too when the program falls asleep. Otherwise, and without this, the worker ends with its program.
    ServeAnother {
        socket: String,
        log: String,
    } => ();
    /// Make the contents of this image, which lies in memory of the host, known to the GPU, for the next `Restore`. Goes on
    /// after the answer.
    Register {
        image: String,
    } => ();
    /// With a descriptor: the worker's end of a client's socket. Serve that process; its files are in `run_directory`.
    Serve {
        run_directory: String,
    } => ();
    /// Whose arrays the client is to have and to hand on.
    /// `gpu`: what workers of its GPU are started with.
    Belong {
        owner: String,
        gpu: String,
    } => ();
    /// With two descriptors: copy an array of so many bytes from this GPU's memory, of `room` bytes, to that of the host.
    CopyArray {
        gpu: String,
        bytes: u64,
        room: u64,
    } => ();
    /// Quiesce the client, finish its pending work, and hold everything still until `Resume`. `contents`: what the `Save`
    /// that follows will ask for.
    Quiesce {
        limit_ms: u64,
        contents: Contents,
    } => Quiesced;
    /// After `Quiesce`, for a program whose other processes wait for GPU work of this one: each of the client's threads may make so
    /// many calls more, if it makes them now. Then the client is quiesced as before.
    Step {
        calls: u32,
        limit_ms: u64,
        contents: Contents,
    } => Quiesced;
    /// Detach the driver half of the process with this pid (as this worker sees it). It stays so until the client needs it.
    Detach {
        pid: i32,
        limit_ms: u32,
    } => ();
    /// The same while the program runs, of that of `processes` (pids as the program and as this worker sees them) that is the
    /// client's; whether it was, or else it is to be done when the client is quiesced.
    Release {
        processes: Vec<(i32, i32)>,
        limit_ms: u32,
    } => bool;
    /// Write the code that is loaded into the staged image at this path, for the `Save` into it that is to follow. The program
    /// runs meanwhile.
    SaveCode {
        staging: String,
    } => ();
    /// Write what is in GPU memory into the staged image at this path, for the `Save` into it that is to follow, if that would
    /// not find room for a copy on the GPU. The program runs meanwhile, and what it changes is written once more.
    SaveAhead {
        staging: String,
    } => Vec<Phase>;
    /// Where pinned memory of a client lies that is quiesced: addresses, and bytes. The program writes there as it likes.
    Pinned {} => Vec<(u64, u64)>;
    /// From now on, and until `AwaitCopy` is answered, the daemon knows whether the program writes there, so that the `Save` that
    /// follows may copy it behind the program's work.
    FollowPinned {} => ();
    /// Write the GPU half into the staged image at this path: buffers, modules, globals, streams, events, graphs.
    Save {
        staging: String,
        contents: Contents,
    } => Saved;
    /// After a `Save`, while the program runs: wait for the copy that comes behind the program's work; false if that was done
    /// before.
    AwaitCopy {} => bool;
    /// After a `Save` with [`Contents::Shadowed`], whether the program goes on or not: the parts with the contents of GPU
    /// memory, once they are written. Phases begin with that request. Nothing if they were among its own, or are not
    /// `wanted`: the copy is given up then. The program may have the machine to itself for `catch_up_us` before anything is
    /// written, or for as long as writing what is new takes.
    Drain {
        wanted: bool,
        catch_up_us: u64,
    } => Saved;
    /// Write the pinned memory into the staged image. Only while the program is frozen.
    SavePinned {
        staging: String,
    } => Saved;
    /// How the next `Restore` loads contents of buffers. `order`: names of parts, those first that are loaded first.
    /// `run_ahead`: requests of the program need not wait for all of them, only for those that they name. `record`:
    /// whether to note in which order requests name them. With a descriptor: a file in memory for the worker's journal,
    /// without which no request runs ahead.
    #[derive(Default)]
    OnDemand {
        run_ahead: bool,
        order: Vec<String>,
        record: Recording,
    } => ();
    /// The record that was asked for.
    Uses {} => Vec<String>;
    /// What a request's use of memory was, of each GPU where that comes at its first use, if a record was asked for. The request ends
    /// with it, and the image keeps how much memory it needed.
    Profile {} => Vec<RequestProfile>;
    /// Change all buffers a little: whatever is written to them is seen then. The program is good for nothing else any more.
    Mark {} => ();
    /// Which buffers still hold what the image at this path has of them, or were not written to since they were marked: names of
    /// parts, none where it would have taken long. `cheaply`: only where the device finds out by itself.
    Unwritten {
        image: String,
        cheaply: bool,
    } => Option<Vec<String>>;
    /// Map no memory that other workers have mapped too: copy it.
    Unshare {} => ();
    /// Take the state of the GPU half from the image at this path. `devices[i]` of the image becomes device `i` here.
    /// Answered when all is in its place but the contents of buffers, which go on loading; until they are there,
    /// requests of the program wait.
    Restore {
        image: String,
        run_directory: String,
        /// What of the image lies in memories that came with [`Cache`]; the rest is read from the store.
        cached: Vec<Cached>,
        /// The program's files go on as they are: another worker has the client yet.
        beside: bool,
        /// The program does not stand still meanwhile: its requests wait until `Resume`, which says nothing to it.
        runs: bool,
    } => Vec<Phase>;
    /// With a descriptor for each: memories that caches are kept in. Those of the host are mapped, and with `register`
    /// made known to the GPU, for the life of the worker; those of a GPU are used for the next `Restore` alone.
    Cache {
        memories: Vec<CacheMemory>,
        register: bool,
    } => ();
    /// Make memory for a cache. A descriptor comes with the answer.
    MakeCacheMemory {
        memory: CacheMemory,
    } => ();
    /// With a descriptor: memory from `MakeCacheMemory`. Load chunks of the image, checked, to where they are to lie in it.
    FillCache {
        image: String,
        memory: CacheMemory,
        into: Vec<Cached>,
        /// Where the chunks may be found already.
        cached: Vec<Cached>,
    } => ();
    /// Answered with the phases since [`Restore`] when the contents of buffers are there. The worker ends if they cannot
    /// be loaded.
    Loaded {} => Vec<Phase>;
    /// Take the state as for `Restore`, in place of a worker that was killed before it had loaded all. The program runs
    /// already; its requests wait for `GoOn`.
    Replace {
        image: String,
        run_directory: String,
    } => Vec<Phase>;
    /// After `Replace` and `Loaded`, with two descriptors: the worker's end of the client's socket, and the journal of
    /// the worker before.
    GoOn {
        pid: i32,
    } => ();
    /// With a descriptor, a socket: see to it that another worker can go on in place of this one, and say there what the daemon
    /// is to hold for that ([`RetainedItem`](crate::mending::RetainedItem)). `store`: where to write the state of the GPU half.
    Mend {
        store: String,
        name: String,
    } => ();
    /// With descriptors: the worker's end of the client's socket, and what was held for a worker that has died, as it is
    /// described here, in the same order. Take its place: the program, which runs, sees a delay.
    TakeUp {
        run_directory: String,
        pid: i32,
        store: String,
        name: String,
        how: MendMode,
        kept: Vec<RetainedItem>,
    } => Vec<Phase>;
    /// With a descriptor, after `Restore`: the client's socket, as CRIU has restored its other end.
    Adopt {
        pid: i32,
        driver_attached: bool,
    } => ();
    /// After [`ContextLost::AtRest`](super::ContextLost): the client is to go on with another worker, while its program runs
    /// and its requests wait. From now on nothing is read of what it says. `Save`, with [`Contents::Left`], `HandOver` and
    /// `Part` may follow; with `Resume`, or when the connection is closed before `Part`, the client goes on here and is told.
    Leave {} => ();
    /// After `Quiesce` and `Save`, or `Leave` and `Save`, with a descriptor to read from: the client may go on with another
    /// worker. Its socket comes with the answer, and is read no more by this worker. What becomes of the client is told by the
    /// descriptor: at a byte, the other worker has it, and this one ends; where all who could write one have closed it, the
    /// client goes on here. With a second descriptor, of a program with several processes that use the GPU, the client goes on
    /// here only where that has been closed too, and no byte came: a byte in it says that all of them go on with others.
    Part {} => Parted;
    /// After `Restore` of a program whose client another worker has yet, with two descriptors: its client's socket, and what a byte is to
    /// be written to before `Resume` lets it go on. `next` is the ticket of its next request. A worker that loses its daemon
    /// before `Resume` ends. With a third descriptor, to read from, it goes on only once there is a byte in that, which says it
    /// of all processes of the program; then also without `Resume`.
    TakeOver {
        pid: i32,
        driver_attached: bool,
        next: u64,
    } => ();
    /// Give the GPU back, after `Quiesce` and `Save`: the process goes on without it as a keeper of the client's socket
    /// and of the memory that was left. Its connections end; those made then are answered by the keeper.
    Sleep {} => ();
    /// To a keeper, or after a `Save` that left memory where it is: what it keeps, from so many descriptors on. With the answer comes a descriptor for each name, at most
    /// [`MOST_DESCRIPTORS`](super::MOST_DESCRIPTORS); none when there are no more. The one without a name is the client's
    /// socket, which a keeper alone gives.
    HandOver {
        from: usize,
    } => Vec<String>;
    /// To a keeper: let go of the memory, which lies elsewhere by now. The client sleeps on.
    LetGo {} => ();
    /// After `Restore` and `Loaded` of a half whose client sleeps, and is not to come: stand still for the `Save` that follows.
    StandStill {} => ();
    /// With descriptors: memory for the next `Restore`, by the names of the parts that it is in place of. With `copy` it is another
    /// worker's, which is to be copied from; but for that of the devices in `stays` (the program's numbers), which lies where it is
    /// to lie.
    Memory {
        names: Vec<String>,
        copy: bool,
        stays: Vec<usize>,
    } => ();
    /// To a worker whose contexts are shared: serve one client more, whose own requests come to the socket that is made at
    /// this path, whose failure is said in this log, and which has this of the contexts. False if it takes no client with these addresses: one has them, or
    /// the contexts have failed.
    Admit {
        listen: String,
        log: String,
        slice: Slice,
        portion: Portion,
        memory: ShareMemory,
    } => bool;
    /// What the client has of the contexts that it shares from now on. It is refused if others have so much that there is no
    /// room for its share of the multiprocessors.
    SetPortion {
        portion: Portion,
    } => ();
    /// To a worker whose contexts are shared: who shares them.
    GetSharing {} => Sharing;
    /// With a descriptor, which is closed when all that the client had is given back. A byte in it says what becomes of the
    /// client when its context has failed: [`ContextLost`](super::ContextLost).
    Watch {} => ();
    /// Wait until the client's GPUs have nothing to do; false if that is not so within the limit.
    AwaitMoment {
        limit_ms: u64,
    } => bool;
    /// Let the client go on.
    Resume {
        restored: bool,
        driver_attached: bool,
    } => ();
    Shutdown {} => ();
}
