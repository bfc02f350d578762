//! The GPU halves of a program that is brought back: one for each process that used a GPU, each in a worker of its own.
//!
//! ```text
//! image    half of 12 ─▶ worker ─ Restore ─┐                       ┌ Resume
//!          half of 15 ─▶ worker ─ Restore ─┼─ Adopt 12 ─ Adopt 15 ─┤ Resume
//!          cpu half ───────────── CRIU ────┘      the program runs ┘
//! ```

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rekindle_parallel::go_first;
use rekindle_protocol::client::Quiesced;
use rekindle_sandbox::{ExternalSocket, Restored, Sandbox as CpuHalf};
use rekindle_store::Image;

use super::loading::{self, PendingLoad};
use super::replacement::RecoveryState;
use super::{Attempt, join, load_order};
use crate::caches::CacheLease;
use crate::error::{Error, Result};
use crate::fault;
use crate::images::{code, preflight};
use crate::sandboxes::Sandbox;
use crate::sandboxes::workers::WorkerTake;
use crate::timeline::{CPU, GPU, PINNED};
use crate::workers::{Worker, gpu_half};

/// What one process used of a GPU, on its way back.
pub struct Half<'a> {
    pub client: &'a Quiesced,
    /// The half that it has of the image.
    pub image: Image,
    pub worker: Arc<Worker>,
    /// What takes the place of the client's socket.
    client_end: UnixStream,
    worker_end: UnixStream,
}

/// A GPU half in its place, but for contents.
pub struct GpuHalf {
    /// On the restore's clock.
    pub began_us: u64,
    /// What it reads from caches.
    pub lease: CacheLease,
    pub journal: OwnedFd,
}

/// The halves of a program that runs: the worker of each process, the half that it has of the image that it came of, and what
/// the names of that half's parts begin with in the image.
pub fn running(sandbox: &Sandbox, image: &Image) -> Result<Vec<(Arc<Worker>, Image, String)>> {
    let cpu = sandbox.cpu("profiled")?;
    let halves = &image.manifest().halves;
    let inside: HashMap<i32, i32> = cpu.pids().into_iter().map(|(inside, pid)| (pid, inside)).collect();
    let half = |worker: Arc<Worker>| {
        let process = inside.get(&worker.client()).map(|pid| *pid as u32);
        // One that has begun to use the GPU since has nothing in the image.
        match process.filter(|process| halves.contains(process)) {
            _ if halves.is_empty() => Some(image.half(0).map(|half| (worker, half, String::new()))),
            Some(process) => Some(image.half(process).map(|half| (worker, half, format!("{process}/")))),
            None => None,
        }
    };
    let halves = sandbox.serving_workers()?.into_iter().filter_map(half);
    Ok(halves.collect::<std::result::Result<_, _>>()?)
}

impl<'a> Half<'a> {
    /// The socket of the image that its own takes the place of.
    pub fn socket(&self) -> ExternalSocket<'_> {
        ExternalSocket { inode: self.client.socket_inode as u32, socket: self.client_end.as_fd() }
    }

    /// Gives the worker its client, which is complete and does not run yet, and has this pid.
    pub fn adopt(&self, pid: i32) -> Result<()> {
        let taken = gpu_half::adopt(&self.worker, pid, false, self.worker_end.as_fd());
        taken.map_err(|error| loading::cause(&self.worker, error))?;
        // Before a process can come that has no worker yet, and would be given this one.
        self.worker.set_followed(true);
        self.worker.set_client(pid);
        Ok(())
    }

    /// What is still to come of it.
    pub fn pending(self, gpu: GpuHalf, pid: i32) -> PendingLoad {
        let GpuHalf { began_us, lease, journal } = gpu;
        let recovery = RecoveryState { client: self.worker_end, journal, pid };
        let image = self.image.path().to_path_buf();
        PendingLoad { worker: self.worker, image, began_us, lease, recovery }
    }
}

impl<'a> Attempt<'a> {
    /// A worker for each process that used a GPU; one for the first that will, where none did. If fewer wait than are taken,
    /// those with most to load have them.
    pub fn take_workers(&self) -> Result<Vec<Arc<Worker>>> {
        let clients = &self.metadata.clients;
        self.sandbox.note_image(clients.len());
        let slices = self.metadata.all_slices();
        let slice = |number| slices.get(number).copied().flatten();
        let (gpu, shares_past) = (self.sandbox.record().gpu, code::shares_past(self.image));
        let take = |number| {
            let take = WorkerTake { wanted: None, slice: slice(number), shares_past };
            self.timeline.time("take a worker", || self.sandbox.take_worker_on(&gpu, take))
        };
        let mut order: Vec<usize> = (0..clients.len().max(1)).collect();
        let bytes = |client: &Quiesced| self.image.half_gpu_bytes(client.process);
        order.sort_by_cached_key(|number| Reverse(clients.get(*number).map_or(0, bytes)));
        let taken = order.into_iter().map(|number| Ok((number, take(number)?)));
        let mut taken = taken.collect::<Result<Vec<_>>>()?;
        taken.sort_by_key(|(number, _)| *number);
        Ok(taken.into_iter().map(|(_, worker)| worker).collect())
    }

    /// The halves of all processes that used a GPU, each with one of these workers, and the files that they had mapped.
    pub fn halves(&self, workers: Vec<Arc<Worker>>) -> Result<Vec<Half<'a>>> {
        let half = |(client, worker): (&'a Quiesced, Arc<Worker>)| {
            self.make_files(client)?;
            let ends = self.sandbox.network.pair();
            let (client_end, worker_end) =
                ends.map_err(|source| Error::system("make a pair of sockets", source))?;
            let image = self.image.half(client.process)?;
            Ok(Half { client, image, worker, client_end, worker_end })
        };
        self.metadata.clients.iter().zip(workers).map(half).collect()
    }

    /// Restores the GPU halves and the CPU half side by side, up to where the program runs and each worker has its client.
    pub(super) fn all_halves(&self, halves: Vec<Half<'a>>) -> Result<(CpuHalf, Vec<PendingLoad>)> {
        let sockets: Vec<_> = halves.iter().map(Half::socket).collect();
        let paths: Vec<_> = halves.iter().map(|half| (&half.worker, &half.image)).collect();
        let (cpu, adopted) = std::thread::scope(|scope| {
            let gpu = scope.spawn(|| self.restore_gpu(&paths));
            let pinned = scope.spawn(|| {
                // The next daemon is to find the workers before the program can.
                self.sandbox.note_workers();
                go_first();
                let load = |half: &Half<'_>| self.load_pinned(&half.image, half.client);
                self.timeline.lane(PINNED).time("load", || halves.iter().try_for_each(load))
            });
            let mut adopted = None;
            let cpu = self.restore_cpu(&sockets, |restored| {
                let cpu = self.timeline.lane(CPU);
                let gpu = cpu.wait("wait for the other half", &[GPU, PINNED], || {
                    join(pinned).and_then(|()| join(gpu))
                })?;
                fault::point("restore-complete")?;
                let pids = halves.iter().map(|half| self.adopt(half, restored));
                let pids = pids.collect::<Result<Vec<_>>>()?;
                adopted = Some((gpu, pids));
                fault::point("restore-adopted")?;
                self.check_ready()
            })?;
            adopted
                .map(|adopted| (cpu, adopted))
                .ok_or_else(|| self.refused("CRIU brought it back and did not say so"))
        })?;
        drop((sockets, paths));
        let (gpu, pids) = adopted;
        let pending = halves.into_iter().zip(gpu).zip(pids).map(|((half, gpu), pid)| half.pending(gpu, pid));
        Ok((cpu, pending.collect()))
    }

    /// Gives the worker its client. The client's pid as we see it.
    fn adopt(&self, half: &Half<'_>, restored: &Restored) -> Result<i32> {
        let pid = restored.pids().get(&(half.client.process as i32)).copied();
        let pid = pid.ok_or_else(|| self.refused("a process that used the GPU did not come back"))?;
        half.adopt(pid).map(|()| pid)
    }

    /// Brings GPU halves to their places. The program does not run before this has worked, so that the GPU may be checked
    /// beside CRIU's work: for all halves before any of them takes memory.
    pub fn restore_gpu(&self, halves: &[(&Arc<Worker>, &Image)]) -> Result<Vec<GpuHalf>> {
        // That one waited, if any did.
        let largest = halves.iter().max_by_key(|(_, image)| image.manifest().sizes.gpu);
        let Some((worker, _)) = largest else { return Ok(Vec::new()) };
        let start = |worker: &Worker| self.timeline.lane(GPU).time("worker start", || worker.first_status());
        let status = start(worker)?;
        let (caches, gpu) = (self.sandbox.caches(), self.sandbox.record().gpu);
        let (status, _held) =
            preflight::wait_for_room((&self.sandbox.pool, &gpu), worker, self.image, status)?;
        let missing = preflight::missing(&preflight::gpus_bytes(self.image)?, &status);
        let status = caches.make_room(worker, &gpu, missing, status)?;
        preflight::check_gpus(self.image, &status)?;
        let first = worker;
        gpu_half::each(halves, |(worker, image)| {
            if !Arc::ptr_eq(worker, first) {
                start(worker)?;
            }
            self.restore_half(worker, image, &gpu)
        })
    }

    fn restore_half(&self, worker: &Worker, half: &Image, gpu: &str) -> Result<GpuHalf> {
        let began_us = self.timeline.elapsed_us();
        let journal = load_order::tell(worker, half, self.request.order, self.request.record)?;
        let lease = self.sandbox.caches().lend(half, gpu);
        let cached = lease.hand_to(worker)?;
        let phases = gpu_half::restore(worker, half, &self.sandbox.run_directory, cached)?;
        self.timeline.lane(GPU).merge(began_us, phases);
        Ok(GpuHalf { began_us, lease, journal })
    }
}
