//! What a program does, in the protocol's words.

use std::path::Path;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU32;

use rekindle_device::ModuleKind;
use rekindle_protocol::operation::*;
use rekindle_ring::Spin;
use tempfile::TempDir;

use super::{Client, Daemon, Lane, Worker, alone};

/// A program with one thread, a context and a module with kernel 1, `add_one`.
pub struct Program {
    pub worker: Worker,
    pub daemon: Daemon,
    pub client: Client,
    pub lane: Lane,
}

impl Program {
    pub fn start(directory: &Path) -> Program {
        let worker = Worker::start(directory);
        let daemon = worker.daemon();
        let (mut client, _) = Client::connect(&worker, &daemon);
        let mut lane = begin(&mut client);
        load(&mut lane, 1);
        kernel(&mut lane, 1, 1, "add_one");
        Program { worker, daemon, client, lane }
    }

    /// The client dies, and the worker with it.
    pub fn end(self) {
        self.client.die();
        self.worker.end();
    }
}

/// A worker of its own with a client that has opened the GPU; the first of the five is to be held to the end.
pub fn session() -> ((MutexGuard<'static, ()>, TempDir), Worker, Daemon, Client, Lane) {
    let alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let worker = Worker::start(directory.path());
    let daemon = worker.daemon();
    let (mut client, _) = Client::connect(&worker, &daemon);
    let lane = begin(&mut client);
    ((alone, directory), worker, daemon, client, lane)
}

pub fn begin(client: &mut Client) -> Lane {
    let mut lane = client.lane();
    lane.ask(ContextOpen { device: 0 }).unwrap();
    lane
}

pub fn load(lane: &mut Lane, module: u32) {
    let request = ModuleLoad {
        device: 0,
        id: module,
        kind: ModuleKind::Module,
        source: CodeSource::Trailer,
        options: vec![],
    };
    let loaded = lane.ask_with(request, b"fake code").unwrap();
    assert_eq!((loaded.status, loaded.log.as_str()), (0, "loaded"));
}

pub fn kernel(lane: &mut Lane, module: u32, id: u32, name: &str) {
    lane.ask(FunctionGet { module, id, name }).unwrap();
}

pub fn launch(lane: &mut Lane, stream: u32, function: u32, parameters: &[u64]) {
    let bytes: Vec<u8> = parameters.iter().flat_map(|word| word.to_le_bytes()).collect();
    let request = LaunchKernel { device: 0, stream, function, grid: [1; 3], block: [1; 3], shared: 0 };
    lane.post_with(request, &bytes);
}

pub fn upload(lane: &mut Lane, stream: u32, to: u64, bytes: &[u8]) {
    let spin = Spin(100);
    for (n, piece) in bytes.chunks(1 << 20).enumerate() {
        let transfer =
            lane.staging.allocate(piece.len() as u64, true, spin, || true, || false).unwrap().unwrap();
        // SAFETY: just allocated, and not yet announced.
        unsafe { lane.staging.bytes(transfer) }.copy_from_slice(piece);
        let to = to + ((n as u64) << 20);
        let (offset, end) = (transfer.offset, transfer.end);
        lane.post(Upload { device: 0, stream, to, offset, bytes: piece.len() as u64, end });
    }
}

pub fn download(lane: &mut Lane, stream: u32, from: u64, bytes: usize) -> Vec<u8> {
    let spin = Spin(100);
    let mut all = Vec::new();
    while all.len() < bytes {
        let piece = (bytes - all.len()).min(1 << 20) as u64;
        let transfer = lane.staging.allocate(piece, true, spin, || true, || false).unwrap().unwrap();
        let (offset, end) = (transfer.offset, transfer.end);
        lane.post(Download { device: 0, stream, from: from + all.len() as u64, offset, bytes: piece, end });
        assert!(lane.staging.wait(end, spin, || true, || false).unwrap());
        // SAFETY: complete, as the wait said.
        all.extend_from_slice(unsafe { lane.staging.bytes(transfer) });
    }
    all
}

pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

pub fn pinned(lane: &mut Lane, client: &Client, name: &str, address: u64) -> &'static AtomicU32 {
    let path = client.directory.join(name);
    std::fs::write(&path, vec![0; 4096]).unwrap();
    let request = PinnedRegister { device: 0, name, address, bytes: 4096 };
    lane.ask(request).unwrap();
    // SAFETY: worker and test are one process, so the worker's mapping is the test's; it lives until unregistered.
    unsafe { &*(address as *const AtomicU32) }
}

pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
