//! What the client says of itself.

use rekindle_protocol::client::{CLIENT_VERSION, Welcome};
use rekindle_protocol::worker::Status;
use rekindle_ring::Board;

use super::Client;

impl Client {
    pub(crate) fn welcome(&self) -> Welcome {
        let open = self.contexts.iter().flatten();
        Welcome {
            version: CLIENT_VERSION,
            driver_version: self.gpus.platform.driver_version(),
            devices: self.gpus.infos(),
            reaches: self.gpus.pairs(),
            real_driver: self.gpus.real_driver.clone(),
            granularity: open.map(|context| context.heap.granularity()).max().unwrap_or(2 << 20),
            slice: self.gpus.regions.slice(),
        }
    }

    /// The client's pid as the program sees it, 0 without a client.
    pub(crate) fn seen(&self) -> i32 {
        self.board_name.split('-').nth(1).and_then(|pid| pid.parse().ok()).unwrap_or_default()
    }

    /// Of the client's protocol; 0 until it has said so.
    pub(crate) fn version(&self) -> u32 {
        self.board.map_or(0, Board::client_version)
    }

    /// Until the daemon has told the client's pid (`Detach`, `Adopt`) it is the pid that the program itself sees.
    pub(crate) fn status(&mut self) -> Status {
        let free_bytes = (0..self.contexts.len()).map(|device| self.free_bytes(device)).collect();
        let contexts = || self.contexts.iter().flatten();
        let held_bytes: Vec<u64> = (0..self.contexts.len()).map(|device| self.held_bytes(device)).collect();
        let buffers: usize = contexts().map(|context| context.heap.buffers().len()).sum();
        let shared: u64 =
            contexts().map(|context| context.heap.shared_bytes() + context.heap.others_bytes()).sum();
        let (pool_bytes, pool_hits, pool_misses) = self.pool();
        let first = self.gpus.info(0);
        Status {
            asleep: false,
            mended: self.mended,
            held_back: false,
            parted: false,
            fault: self.fault.clone(),
            pid: std::process::id() as i32,
            client: if self.pid != 0 { self.pid } else { self.seen() },
            gpu: first.map(|info| info.name.clone()).unwrap_or_default(),
            gpu_uuid: first.map(|info| info.uuid_text()).unwrap_or_default(),
            driver: self.gpus.platform.driver_name(),
            devices: self.gpus.infos(),
            free_bytes,
            reaches: (0..self.gpus.count()).map(|device| self.reaches(device)).collect(),
            device_bytes: held_bytes.iter().sum(),
            held_bytes,
            shared_bytes: shared,
            declared: self.declared_data(),
            unbacked_bytes: self.unbacked_bytes(),
            pool_bytes,
            pool_hits,
            pool_misses,
            pinned_bytes: self.pinned.iter().map(|pinned| pinned.bytes).sum(),
            buffers: (buffers + self.virtual_memory.physical.len() + self.arrays.len()) as u64,
            modules: self.modules.count() as u64,
            streams: self.streams.count() as u64,
            events: self.events.count() as u64,
            graphs: (self.graphs.count() + self.execs.count()) as u64,
            unmade: self.execs.iter().filter(|(_, exec)| exec.handle.is_none()).count() as u64,
            operations: self.operations,
            to_gpu_bytes: self.transferred.to_gpu,
            from_gpu_bytes: self.transferred.from_gpu,
            portion: self.gpus.portion(),
            link_waited_us: self.gpus.link_waited().as_micros() as u64,
            multiprocessors: self.gpus.multiprocessors(),
        }
    }

    /// Bytes of a device's memory that the program has.
    fn held_bytes(&self, device: usize) -> u64 {
        let heap = self.contexts[device].as_ref().map_or(0, |context| context.heap.bytes());
        let physical = self.virtual_memory.physical.values().filter(|physical| physical.device == device);
        heap + physical.map(|physical| physical.bytes).sum::<u64>() + self.array_bytes(device)
    }

    /// UUIDs of the GPUs whose memory a device can copy from by itself.
    fn reaches(&self, device: usize) -> Vec<String> {
        self.gpus.reaches(device).iter().map(rekindle_device::uuid_text).collect()
    }

    /// Of a device on which neither the program nor the worker has a context, all that it has: asking would take making one.
    fn free_bytes(&mut self, device: usize) -> u64 {
        let known = match self.contexts[device] {
            Some(_) => self.memory_space(device).ok().map(|(free, _)| free),
            None => self.gpus.free_bytes(device),
        };
        known.unwrap_or_else(|| self.gpus.info(device).map_or(0, |info| info.total_memory))
    }

    /// Removes the client's files from the run directory: it has ended.
    pub(crate) fn remove_files(&mut self) {
        let names = self.threads.iter().map(|thread| &thread.name).chain(self.pinned.iter().map(|p| &p.name));
        for path in names.chain([&self.board_name]).filter_map(|name| self.run_file(name)) {
            let _ = std::fs::remove_file(path);
        }
        self.ipc.stop();
    }
}
