//! What can go wrong in the daemon, each as one sentence.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rekindle_protocol::fault::Injected;
use rekindle_protocol::frame::FrameError;
use rekindle_protocol::mounts::Volume;
use rekindle_protocol::network::Port;
use rekindle_protocol::worker::NO_GPU_MEMORY;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },

    #[error("{} is too long for what is made there (at most {most} bytes); choose a shorter path", path.display())]
    PathTooLong { path: PathBuf, most: usize },

    #[error("{} belongs to user {owner}; choose a directory of your own", path.display())]
    ForeignDirectory { path: PathBuf, owner: u32 },

    #[error("another daemon ({holder}) uses {}; talk to that one, or give this one another --state", state.display())]
    AlreadyRunning { state: PathBuf, holder: String },

    #[error("{} belongs to another daemon that runs; it is left alone", path.display())]
    Foreign { path: PathBuf },

    #[error("another daemon answers on {}; give this one another --socket", socket.display())]
    SocketInUse { socket: PathBuf },

    #[error("there is no sandbox named {name:?}; `rekindle ps -a` lists them")]
    UnknownSandbox { name: String },

    #[error("a sandbox named {name:?} exists; choose another name, or end that one first")]
    NameInUse { name: String },

    #[error("a sandbox cannot be named {shown:?}: {reason}")]
    BadName { shown: String, reason: &'static str },

    #[error("the sandbox {name:?} is not running ({state}); only a running one can be {wanted}")]
    NotRunning { name: String, state: String, wanted: &'static str },

    #[error("the sandbox {name:?} is {state}; only an ended one can be removed: `rekindle stop` ends it")]
    StillRuns { name: String, state: String },

    #[error(
        "there is no sandbox and no image named {name:?}; `rekindle ps -a` and `rekindle images` list them"
    )]
    UnknownName { name: String },

    #[error(
        "a sandbox and an image are named {name:?}; `rekindle rm --sandbox` removes the sandbox, `rekindle rmi` the image"
    )]
    TwoNamed { name: String },

    #[error("the command could not be run in {name:?}: {}", why.cause)]
    Exec { name: String, why: rekindle_sandbox::NotStarted },

    #[error("files of {name:?} could not be copied: {reason}")]
    Copy { name: String, reason: String },

    #[error(
        "the request came without the {expected} descriptors that belong to it; is `rekindle` of another version?"
    )]
    Descriptors { expected: usize },

    #[error("which buffers the program of {name:?} writes to cannot be told: {reason}")]
    NotLearned { name: String, reason: String },

    #[error("no load order is known of the sandbox {name:?}: {reason}; use `rekindle profile`")]
    NoLoadOrder { name: String, reason: String },

    #[error("the sandbox {name:?} is {state} just now; try again when that is done")]
    Occupied { name: String, state: String },

    #[error("the program of {name:?} ended while it was to be {wanted}")]
    EndedMeanwhile { name: String, wanted: &'static str },

    #[error(
        "process {pid} is an ancestor of the command that asks for its checkpoint; ask from outside of it, such as another terminal"
    )]
    OfTheAsker { pid: i32 },

    #[error("process {pid} ended while it was to be checkpointed")]
    ProcessEnded { pid: i32 },

    #[error("process {pid} of the program ended while that was to be {wanted}: {cause}")]
    MemberEnded { pid: i32, wanted: &'static str, cause: Box<Error> },

    #[error("process {pid} ended while the program, of which it used a GPU, was to be checkpointed")]
    UserEnded { pid: i32 },

    #[error(
        "no GPU is named {given:?}; use `emulated`, `nvidia`, `nvidia:INDEX` or, for several, `nvidia:0,1`"
    )]
    BadGpu { given: String },

    #[error("this machine has no NVIDIA GPU for {gpu:?}; use `emulated`, or see `rekindle doctor`")]
    NoGpu { gpu: String },

    #[error("{gpu:?} is no GPU of the driver's; use `--mode sandbox`, or leave --gpu out")]
    EmulatedDriver { gpu: String },

    #[error(
        "process {pid} was started without Rekindle, so that it can only be taken by the driver; use `--mode driver`"
    )]
    NotSandboxed { pid: i32 },

    #[error("process {pid} belongs to the sandbox {name:?}; checkpoint it by that name")]
    InSandbox { pid: i32, name: String },

    #[error(
        "no process of {name} uses a GPU, so that there is nothing for the driver to take; `--mode auto` takes its CPU half alone"
    )]
    NoGpuProcess { name: String },

    #[error("{engine} could not {action}: {reason}")]
    Engine { engine: &'static str, action: &'static str, reason: String },

    #[error(
        "containers are run by {wanted}, which is not installed here (Debian: podman and runc, containerd)"
    )]
    NoEngine { wanted: String },

    #[error("there is no container {name}; asked: {asked}")]
    UnknownContainer { name: String, asked: String },

    #[error(
        "there are several containers {name} ({places}); say which with `--engine`, or CONTAINERD_NAMESPACE"
    )]
    SeveralContainers { name: String, places: String },

    #[error(
        "{gpu:?} is no GPU for a container; containers get real ones from their engine (`--device nvidia.com/gpu=all`)"
    )]
    RealContainerGpu { gpu: String },

    #[error(
        "a container's GPU cannot be named {shown:?}; use letters, digits, `-`, `_` and `.`, a letter or digit first"
    )]
    BadDeviceName { shown: String },

    #[error(
        "{name:?} is a container's GPU, so that it cannot be {wanted}; that is for the container and its engine"
    )]
    ContainerDevice { name: String, wanted: &'static str },

    #[error(
        "the container {name} has the GPU {device:?} of Rekindle's; only Podman's containers are taken with such"
    )]
    ForeignDevice { name: String, device: String },

    #[error(
        "the container {name} was restored, so that its connection to its GPU is not in its network namespace, where CRIU looks for it; only one with the host's network (`--network host`) can be checkpointed again"
    )]
    RestoredContainer { name: String },

    #[error("the container {name} is {found}, not running; start it first")]
    ContainerNotRunning { name: String, found: String },

    #[error(
        "there is a container {name} already; give another with `--name`, or remove it (`podman rm {name}`, `ctr containers rm {name}`)"
    )]
    ContainerExists { name: String },

    #[error("process {pid} is being checkpointed just now; try again when that is done")]
    PidOccupied { pid: i32 },

    #[error(
        "an image named {name:?} is being made just now; choose another name, or try again when that is done"
    )]
    ImageOccupied { name: String },

    #[error(
        "a network of the program's own cannot be made: {source}; the daemon needs CAP_SYS_ADMIN and a kernel with CONFIG_NET_NS, and `--network host` needs neither"
    )]
    NoNetwork { source: io::Error },

    #[error(
        "ports can only be published of a program with a network of its own: add `--network private`, or leave `-p` out, and the program's ports are the machine's"
    )]
    PortsOfHost,

    #[error("there is no service named {name:?}; `rekindle services` lists them")]
    UnknownService { name: String },

    #[error(
        "a service cannot be named {name:?}: expected 1 to 64 letters, digits, '.', '-' and '_', the first a letter or digit"
    )]
    BadServiceName { name: String },

    #[error("the service {name:?} is being changed by another command; try again when that is done")]
    ServiceOccupied { name: String },

    #[error("the image {image:?} cannot be served: {reason}")]
    CannotServe { image: String, reason: String },

    #[error("the service {name:?} cannot be as asked: {reason}")]
    BadPlan { name: String, reason: String },

    #[error("the service {name:?} is not there yet; say by `--port [ADDRESS:]PORT` where it is to be found")]
    NoServicePort { name: String },

    #[error("the service {name:?} cannot have port {port}: {why}; choose another by `--port [ADDRESS:]PORT`")]
    NoPortForService { name: String, port: u16, why: String },

    #[error(
        "the page cannot be at {address}: {why}; choose another place by `rekindled --page-port [ADDRESS:]PORT`"
    )]
    NoPagePort { address: SocketAddr, why: String },

    #[error(
        "spans cannot be sent to {endpoint:?}: {reason}; give the address of a collector, as \
         `rekindled --otlp-endpoint http://localhost:4318`"
    )]
    NoCollector { endpoint: String, reason: String },

    #[error("{why}")]
    NoPage { why: String },

    #[error(
        "the page is switched off; start rekindled with `--page-port 7070`, or put `port = \"7070\"` below `[page]` into \
         rekindled.toml"
    )]
    PageOff,

    #[error("there is no tenant named {tenant:?}; `rekindle tenant ls` lists them")]
    UnknownTenant { tenant: String },

    #[error(
        "there is a tenant named {tenant:?} already; change it by `rekindle tenant set`, or choose another name"
    )]
    TenantExists { tenant: String },

    #[error(
        "the tenant {tenant:?} has services ({}); remove them by `rekindle unserve` first", services.join(", ")
    )]
    TenantHasServices { tenant: String, services: Vec<String> },

    #[error("the tenant {tenant:?} has no token {id:?}; `rekindle tenant ls` lists them")]
    UnknownToken { tenant: String, id: String },

    #[error(
        "the tenant {tenant:?} has {most} tokens, as many as it may; revoke one by `rekindle tenant token {tenant} --revoke ID`"
    )]
    TooManyTokens { tenant: String, most: usize },

    #[error("the certificate of the service {name:?} cannot be used: {reason}")]
    NoCertificate { name: String, reason: String },

    #[error("the service {name:?} {reason}")]
    Service { name: String, reason: String },

    #[error("the volume {volume} cannot be mounted: {why}")]
    NoVolume { volume: Volume, why: String },

    #[error("{} cannot have a private layer: {why}", directory.display())]
    NoOverlay { directory: PathBuf, why: String },

    #[error(
        "port {port} cannot be published: {by} listens on it; choose another (`-p PORT:PORT`), or end that one"
    )]
    PortTaken { port: u16, by: String },

    #[error(
        "port {port} is published by the sandbox {name:?}; choose another (`-p PORT:PORT`), or end that one"
    )]
    PortPublished { port: u16, name: String },

    #[error("port {port} cannot be published: {source}; choose another (`-p [ADDRESS:]PORT:PORT`)")]
    CannotPublish { port: Port, source: io::Error },

    #[error(
        "`--network`, `-p`, `--memory`, `--cpus` and `--volume` are for sandboxes; a container has its network, its limits and its volumes from its engine"
    )]
    NotOfContainers,

    #[error(
        "memory and processors cannot be limited here: {source}; that needs control groups of the kernel's that the daemon may make (/sys/fs/cgroup), or leave `--memory` and `--cpus` out"
    )]
    NoLimits { source: io::Error },

    #[error(
        "{tenant:?} is no tenant's name: expected 1 to {most} letters, digits, dots, dashes or underscores, the first a letter or digit; choose such a one"
    )]
    BadTenant { tenant: String, most: usize },

    #[error(
        "the image {image:?} cannot share a context: its program was started without `--share TENANT`, so that its addresses may be another's too; restore it without, or make the image anew of a program started with it"
    )]
    CannotShare { image: String },

    #[error(
        "a program of mode driver has a context of its own; leave `--share` out, or run it with `--mode sandbox`"
    )]
    OwnContext,

    #[error(
        "`--link-weight`, `--sm-share` and `--share-memory` say what a program has of GPU contexts that it shares with \
         others; say with whose programs it does by `--share TENANT`"
    )]
    NoPortion,

    #[error("{reason}")]
    Unmended { reason: String },

    #[error(
        "`--mend` keeps a program from seeing the loss of a worker of its own; {why}; leave one of the two away"
    )]
    NoMending { why: &'static str },

    #[error(
        "{name:?} cannot have {wanted} % of the multiprocessors: of the programs that share as {tenant:?} {others}; take \
         some from them by `rekindle limits NAME --sm-share`, or give it less"
    )]
    NoRoomForShare { name: String, tenant: String, wanted: u32, others: String },

    #[error(
        "the sandbox {name:?} has a GPU context of its own, and nothing to divide; run it with `--share TENANT`"
    )]
    NotShared { name: String },

    #[error(
        "{name:?} shares its context with other programs and cannot be put to sleep; stop it and restore it instead"
    )]
    SharesContext { name: String },

    #[error("the command is empty; give a program after `--`")]
    NoCommand,

    #[error("{given:?} is no signal number; use 1 to 64")]
    BadSignal { given: i32 },

    #[error(
        "the GPU worker of {name:?} is gone ({how}), so its GPU memory is lost; start or restore the program anew"
    )]
    WorkerDead { name: String, how: String },

    #[error("the GPU worker did not start: {reason}; see {}", log.display())]
    WorkerStart { reason: String, log: PathBuf },

    #[error("the GPU worker ended while it was to {action}: {how}; see {}", log.display())]
    WorkerEnded { action: &'static str, how: String, log: PathBuf },

    #[error("the GPU worker could not {action}: {reason}")]
    Worker { action: &'static str, reason: String },

    #[error("the connection to the GPU worker failed while it was to {action}: {source}")]
    WorkerConnection { action: &'static str, source: FrameError },

    #[error("the GPU half of {name:?} sleeps already; `rekindle wake` wakes it")]
    AlreadyAsleep { name: String },

    #[error("the GPU half of {name:?} is awake")]
    NotAsleep { name: String },

    #[error("no process of {name:?} uses a GPU through Rekindle, so that there is nothing to put to sleep")]
    NothingToSleep { name: String },

    #[error(
        "{name:?} cannot sleep at level {level}: that takes {needed} MB and {free} MB are free; free some or choose another level"
    )]
    NoRoomToSleep { name: String, level: &'static str, needed: u64, free: u64 },

    #[error("{name:?} cannot be migrated: {reason}")]
    CannotMove { name: String, reason: String },

    #[error("node {name:?}: {reason}")]
    Node { name: String, reason: String },

    #[error(
        "there is no node named {name:?}; `rekindle node ls` lists those that are known, `rekindle node add` adds one"
    )]
    UnknownNode { name: String },

    #[error("the node that the program comes from has given its migration up")]
    GivenUp,

    #[error(
        "{name:?} is to go on at node {node:?} if that has accepted it, and waits for it to say so: {reason}; `rekindle migrate {name} --take-back` has it go on here, at the risk that it runs at both"
    )]
    Held { name: String, node: String, reason: String },

    #[error(
        "other nodes cannot be heard at {address}: {source}; give --node-port a port of this machine's that is free"
    )]
    CannotHear { address: String, source: io::Error },

    #[error("the program {name:?} was given to node {node:?} meanwhile; end it there")]
    GivenAway { name: String, node: String },

    #[error("a program named {name:?} comes there already from a node; try again when that is over")]
    ComesAlready { name: String },

    #[error(
        "no image can be named {name:?}: names that begin with \"migration:\" are those of programs that move to other nodes"
    )]
    PassingName { name: String },

    #[error("the program {name:?} waits for no other node")]
    NotHeld { name: String },

    #[error("the node cannot be added: {reason}")]
    BadNode { reason: String },

    #[error("the GPU half of {name:?} could not be woken and sleeps on: {reason}")]
    CannotWake { name: String, reason: String, missing: Option<u64> },

    #[error(
        "{what}, and CRIU's plugin for that, {}, is not in {places}; install it, or name its directory in {}",
        rekindle_sandbox::amd::PLUGIN,
        rekindle_sandbox::amd::PLUGINS_VARIABLE
    )]
    NoAmdPlugin { what: String, places: String },

    #[error(
        "the image would not have come back: {what}; there is none, and the program goes on; that is a fault of Rekindle's or of CRIU's"
    )]
    Unsound { what: String },

    #[error(
        "the image did not come back when it was proven, and there is none: {reason}; the program goes on"
    )]
    Unproven { reason: String },

    #[error(
        "the image of the container {name:?} cannot be proven, for containerd runs it, whose restores nobody can hold before they run; leave --prove out"
    )]
    NoProof { name: String },

    #[error("the image {image:?} cannot be restored here: {reason}")]
    CannotRestore { image: String, reason: String },

    #[error(
        "the image {image:?} cannot be restored here: {}",
        no_memory(*needed, *free, gpu)
    )]
    NoGpuMemory { image: String, needed: u64, free: u64, gpu: String },

    #[error(
        "the program's pages could not be taken into the image: {what}; make room if that is the reason, and checkpoint again"
    )]
    Pages { what: String },

    #[error("the image {image:?} is damaged, and nothing was restored: {problems}")]
    Damaged { image: String, problems: String },

    #[error(
        "{source}; it is also that of the image {image:?}, so that all images made from that one are damaged: take it anew"
    )]
    SharedPages { image: String, source: rekindle_store::Error },

    #[error(
        "the program of the framework image did not get ready: {reason}; `rekindle logs {name}` shows what it printed"
    )]
    NotReady { name: String, reason: String },

    #[error("the program that was to become an app did not: {reason}")]
    NoApp { reason: String },

    #[error(
        "{image:?} is no framework image, so that no app can start from it; `rekindle image framework` makes one"
    )]
    NoFramework { image: String },

    #[error("the checkpoint was cancelled: the program goes on, and there is no image")]
    Cancelled,

    #[error("the migration was cancelled: the program goes on where it was")]
    MoveCancelled,

    #[error(
        "the daemon on {} has the {what} {}, and not {}; give that one's --socket, or another one to start a daemon there",
        socket.display(), found.display(), wanted.display()
    )]
    OtherDaemon { socket: PathBuf, what: &'static str, found: PathBuf, wanted: PathBuf },

    #[error("the image in the making is gone; try again")]
    NoDraft,

    #[error(transparent)]
    Injected(#[from] Injected),

    #[error(transparent)]
    Driver(#[from] rekindle_driver::Error),

    #[error("the client library libcuda.so.1 was not found beside {} or in ../lib/rekindle; build or install it", executable.display())]
    NoClientLibrary { executable: PathBuf },

    #[error("several failed: {}", .0.join("; "))]
    Several(Vec<String>),

    #[error(transparent)]
    Sandbox(#[from] rekindle_sandbox::Error),

    #[error(transparent)]
    Store(#[from] rekindle_store::Error),

    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// That too little of a GPU's memory is free, in a sentence.
pub fn no_memory(needed: u64, free: u64, gpu: &str) -> String {
    let (needed, free) = (needed >> 20, free >> 20);
    format!(
        "it needs {needed} MB of GPU memory and {free} MB are free on {gpu}; free some or give another --gpu"
    )
}

impl Error {
    /// Whether a program that ends can be behind it, which workers, CRIU and the driver have no word for. A refusal of what
    /// was asked is none of these.
    pub fn may_come_of_an_end(&self) -> bool {
        use rekindle_sandbox::Error as Sandbox;
        if let Error::Sandbox(
            Sandbox::DiskFull { .. }
            | Sandbox::Refused { .. }
            | Sandbox::NoCriu { .. }
            | Sandbox::Start { .. },
        ) = self
        {
            return false;
        }
        matches!(
            self,
            Error::Io { .. }
                | Error::System { .. }
                | Error::NotRunning { .. }
                | Error::WorkerDead { .. }
                | Error::WorkerStart { .. }
                | Error::WorkerEnded { .. }
                | Error::Worker { .. }
                | Error::WorkerConnection { .. }
                | Error::NothingToSleep { .. }
                | Error::NoGpuProcess { .. }
                | Error::Engine { .. }
                | Error::CannotRestore { .. }
                | Error::NoGpuMemory { .. }
                | Error::Unsound { .. }
                | Error::Unproven { .. }
                | Error::Pages { .. }
                | Error::Driver(_)
                | Error::Sandbox(_)
                | Error::Frame(_)
        )
    }

    /// Whether GPU memory is what was missing: how many bytes, 0 if that is not known.
    pub fn missing_gpu_memory(&self) -> Option<u64> {
        match self {
            Error::NoGpuMemory { needed, free, .. } => Some(needed.saturating_sub(*free)),
            Error::CannotWake { missing, .. } => *missing,
            Error::Worker { reason, .. } | Error::WorkerStart { reason, .. } => {
                reason.contains(NO_GPU_MEMORY).then_some(0)
            }
            _ => None,
        }
    }

    /// How the command that asked is to end, where that is not with 1.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            // As a command that SIGINT ends.
            Error::Cancelled | Error::MoveCancelled => Some(130),
            Error::PortsOfHost => Some(2),
            Error::Sandbox(rekindle_sandbox::Error::Start { shell_code, .. }) => *shell_code,
            Error::Exec { why, .. } => why.shell_code,
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn system(action: &'static str, source: impl Into<io::Error>) -> Error {
        Error::System { action, source: source.into() }
    }
}
