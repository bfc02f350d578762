//! One launch: validated, then worked off by any number of threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::block::Cluster;
use super::schedule::Progress;
use crate::alu::Lanes;
use crate::launch::{AddressRange, DeviceLimits, Host, Launch};
use crate::program::{Constant, ConstantRows, Program};
use crate::{Error, Fault};

const MAX_THREADS: u32 = 1024;
const MAX_CLUSTER: u32 = 16;
/// Threads that a multiprocessor holds at once, and blocks.
const RESIDENT_THREADS: u32 = 2048;
const RESIDENT_BLOCKS: u32 = 32;

static NEXT_GRID: AtomicU64 = AtomicU64::new(1);

/// One launch of a kernel, ready to run once.
pub struct Grid {
    pub(crate) program: Arc<Program>,
    pub(crate) constants: Arc<Vec<Lanes>>,
    pub(crate) kernel: String,
    pub(crate) function: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Blocks of a cluster along each axis.
    pub(crate) cluster: [u32; 3],
    pub(crate) explicit_cluster: bool,
    /// Clusters along each axis.
    pub(crate) clusters: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) shared: u32,
    pub(crate) parameters: Vec<u8>,
    pub(crate) ranges: Vec<AddressRange>,
    pub(crate) device: DeviceLimits,
    pub(crate) id: u64,
    pub(crate) begun: Instant,
    next: AtomicU64,
    stopped: AtomicBool,
    fault: Mutex<Option<Fault>>,
}

impl Grid {
    /// Checks the launch against the kernel and the device. `ranges` are the addresses that the kernel may touch.
    pub fn new(launch: Launch, ranges: &[AddressRange]) -> Result<Grid, Error> {
        let program = Arc::clone(&launch.module.program);
        let Some(entry) = program.entries.get(launch.entry).cloned() else {
            let message = format!("the module has {} kernels", program.entries.len());
            return Err(Error::Launch { kernel: format!("#{}", launch.entry), message });
        };
        let kernel = entry.name.clone();
        let fail = |message: String| Err(Error::Launch { kernel: kernel.clone(), message });
        if !program.unresolved.is_empty() {
            return fail(format!(
                "the module's symbols are not all defined: {}",
                program.unresolved.join(", ")
            ));
        }
        let product =
            |dimensions: [u32; 3]| dimensions.iter().fold(1u64, |all, n| all.saturating_mul(u64::from(*n)));
        let threads = product(launch.block);
        if threads == 0 || product(launch.grid) == 0 {
            return fail(format!("the grid {:?} of blocks {:?} is empty", launch.grid, launch.block));
        }
        let most = u64::from(entry.max_threads.min(MAX_THREADS));
        if threads > most || launch.block[2] > 64 {
            return fail(format!("a block of {threads} threads; at most {most} are allowed, 64 along z"));
        }
        if let Some(required) = entry.required_threads.filter(|required| *required != launch.block) {
            return fail(format!("blocks of {:?} threads; the kernel requires {required:?}", launch.block));
        }
        let asked = (product(launch.cluster) != 0 && launch.cluster != [1; 3]).then_some(launch.cluster);
        let explicit = asked.or(entry.cluster);
        let cluster = explicit.unwrap_or([1; 3]);
        if product(cluster) == 0 || product(cluster) > u64::from(MAX_CLUSTER) {
            return fail(format!("clusters of {cluster:?} blocks; at most {MAX_CLUSTER} are allowed"));
        }
        if (0..3).any(|axis| !launch.grid[axis].is_multiple_of(cluster[axis])) {
            return fail(format!("the grid {:?} is not made of clusters of {cluster:?}", launch.grid));
        }
        let shared = match launch.dynamic_shared {
            0 => entry.static_shared,
            bytes => entry.dynamic_shared_at.saturating_add(bytes),
        };
        if shared > launch.device.shared_per_block {
            return fail(format!(
                "{shared} bytes of shared memory; a block may have {}",
                launch.device.shared_per_block
            ));
        }
        if launch.addresses.len() != program.globals.len() {
            return fail(format!(
                "{} addresses for {} globals",
                launch.addresses.len(),
                program.globals.len()
            ));
        }
        let size =
            entry.parameters.iter().map(|parameter| parameter.offset + parameter.size).max().unwrap_or(0);
        let mut parameters = launch.parameters.to_vec();
        parameters.resize(parameters.len().max(size as usize), 0);
        Ok(Grid {
            constants: constant_rows(&program, launch.addresses, entry.dynamic_shared_at),
            function: program.entry_functions[launch.entry],
            program,
            kernel,
            grid: launch.grid,
            block: launch.block,
            cluster,
            explicit_cluster: explicit.is_some(),
            clusters: [0, 1, 2].map(|axis| launch.grid[axis] / cluster[axis]),
            dynamic_shared: launch.dynamic_shared,
            shared,
            parameters,
            ranges: ranges.to_vec(),
            device: launch.device,
            id: NEXT_GRID.fetch_add(1, Ordering::Relaxed),
            begun: Instant::now(),
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            fault: Mutex::new(None),
        })
    }

    /// Runs what is left of the grid on up to `threads` threads, this one among them. Returns when all blocks
    /// have ended, or with the first fault.
    pub fn run(&self, host: &dyn Host, threads: usize) -> Result<(), Fault> {
        let clusters = self.cluster_count();
        let extra =
            threads.saturating_sub(1).min(usize::try_from(clusters.saturating_sub(1)).unwrap_or(usize::MAX));
        if extra == 0 {
            self.work(host);
        } else {
            std::thread::scope(|scope| {
                for _ in 0..extra {
                    scope.spawn(|| self.work(host));
                }
                self.work(host);
            });
        }
        match &*self.fault.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    fn cluster_count(&self) -> u64 {
        self.clusters.iter().map(|n| u64::from(*n)).product()
    }

    /// Blocks that a device of this size would hold at once: so many may wait for each other.
    fn resident_clusters(&self) -> usize {
        let threads: u32 = self.block.iter().product();
        let blocks = (RESIDENT_THREADS / threads.max(1)).clamp(1, RESIDENT_BLOCKS)
            * self.device.multiprocessors.max(1);
        (blocks / self.cluster.iter().product::<u32>()).max(1) as usize
    }

    fn claim(&self) -> Option<Cluster> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.cluster_count()).then(|| Cluster::new(self, number))
    }

    /// Takes clusters until none is left. One that does not end in its share of time is set aside for others.
    fn work(&self, host: &dyn Host) {
        let mut waiting: VecDeque<Cluster> = VecDeque::new();
        let mut rest = Rest::default();
        let limit = self.resident_clusters();
        while !self.stopped.load(Ordering::Relaxed) {
            if host.cancelled() {
                return self.stop(Fault::Cancelled);
            }
            let fresh = if waiting.len() < limit { self.claim() } else { None };
            let Some(mut cluster) = fresh.or_else(|| waiting.pop_front()) else {
                return;
            };
            match cluster.run(self, host) {
                Ok(Progress::Done) => rest = Rest::default(),
                Ok(Progress::More) => {
                    waiting.push_back(cluster);
                    rest = Rest::default();
                }
                Ok(Progress::Spins(until)) => {
                    waiting.push_back(cluster);
                    rest.take(until, waiting.len());
                }
                Err(fault) => return self.stop(*fault),
            }
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn stop(&self, fault: Fault) {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Clusters that had nothing to do, one after the other, as a thread took them in turn.
#[derive(Default)]
struct Rest {
    count: usize,
    asleep: usize,
    /// When the first of those that sleep wakes.
    first: Option<Instant>,
}

/// How often all are looked at before each look is followed by a nap, and how long that is.
const EAGER: usize = 64;
const NAP: Duration = Duration::from_micros(50);

impl Rest {
    /// One more of `clusters` has nothing to do, or sleeps until then. Leaves the processor to others: until the first wakes
    /// where all sleep, for a nap where all have waited for long.
    fn take(&mut self, until: Option<Instant>, clusters: usize) {
        self.count += 1;
        let Some(until) = until else {
            (self.asleep, self.first) = (0, None);
            if self.count > EAGER * clusters {
                std::thread::sleep(NAP);
            } else {
                std::thread::yield_now();
            }
            return;
        };
        self.asleep += 1;
        self.first = Some(self.first.map_or(until, |first| first.min(until)));
        if self.asleep >= clusters {
            if let Some(first) = self.first.take() {
                std::thread::sleep(first.saturating_duration_since(Instant::now()));
            }
            self.asleep = 0;
        }
    }
}

/// The program's constants as rows, kept for launches alike.
fn constant_rows(program: &Program, addresses: &[u64], dynamic_shared_at: u32) -> Arc<Vec<Lanes>> {
    let mut kept = program.rows.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = &*kept
        && kept.addresses == addresses
        && kept.dynamic_shared_at == dynamic_shared_at
    {
        return Arc::clone(&kept.rows);
    }
    let row = |constant: &Constant| {
        let bits = match *constant {
            Constant::Bits(bits) => bits,
            Constant::Global(index, addend) => addresses[index as usize].wrapping_add_signed(addend),
            Constant::DynamicShared(addend) => u64::from(dynamic_shared_at).wrapping_add_signed(addend),
        };
        [bits; 32]
    };
    let rows = Arc::new(program.constants.iter().map(row).collect::<Vec<_>>());
    *kept = Some(ConstantRows { addresses: addresses.to_vec(), dynamic_shared_at, rows: Arc::clone(&rows) });
    rows
}
