//! Kernels: what is known of them, what a program sets, and which launches they allow.

use std::sync::Arc;

use rekindle_cuda::{
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CUDA_ERROR_INVALID_CLUSTER_SIZE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
};
use rekindle_device::{FunctionInfo, Launch, Parameter, Result};
use rekindle_ptx::Entry;

use crate::attributes::{CAPABILITY, MAX_BLOCK, MAX_GRID, MAX_THREADS, SHARED, SHARED_OPTIN};
use crate::module::{LoadedModule, constant_bytes};
use crate::occupancy::{self, Need};

// `CUfunction_attribute`.
const DYNAMIC_SHARED: i32 = 8;
const CARVEOUT: i32 = 9;
const CLUSTER_WIDTH: i32 = 11;
const CLUSTER_DEPTH: i32 = 13;
const NON_PORTABLE_CLUSTER: i32 = 14;
const CLUSTER_POLICY: i32 = 15;

// `CUlaunchAttributeID`.
const LAUNCH_COOPERATIVE: u32 = 2;
const LAUNCH_CLUSTER: u32 = 4;

/// Blocks of a cluster on any device of this capability, and what a kernel may have that opted out of that.
const PORTABLE_CLUSTER: u32 = 8;
const LARGEST_CLUSTER: u32 = 16;

/// What a program can set of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    dynamic_shared: u32,
    carveout: i32,
    /// Zeros where the launch says.
    cluster: [u32; 3],
    non_portable: bool,
    policy: i32,
}

/// What the driver says of a kernel.
pub(crate) fn describe(
    module: &rekindle_ptx::Module,
    entry: &Entry,
    settings: &Settings,
    register_limit: u32,
) -> FunctionInfo {
    let version = module.version();
    let clamp = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    FunctionInfo {
        attributes: vec![
            clamp(most_threads(entry)),
            clamp(entry.static_shared),
            clamp(constant_bytes(module.globals())),
            clamp(entry.local),
            clamp(entry.registers.min(register_limit)),
            clamp(version.0 * 10 + version.1),
            clamp(CAPABILITY.0 * 10 + CAPABILITY.1),
            0,
            clamp(settings.dynamic_shared),
            settings.carveout,
            i32::from(entry.cluster.is_some()),
            clamp(settings.cluster[0]),
            clamp(settings.cluster[1]),
            clamp(settings.cluster[2]),
            i32::from(settings.non_portable),
            settings.policy,
        ],
        parameters: entry
            .parameters
            .iter()
            .map(|parameter| Parameter { offset: parameter.offset, size: parameter.size })
            .collect(),
    }
}

impl Settings {
    pub fn new(entry: &Entry) -> Settings {
        Settings {
            dynamic_shared: SHARED.saturating_sub(entry.dynamic_shared_at),
            carveout: -1,
            cluster: entry.cluster.unwrap_or_default(),
            non_portable: false,
            policy: 0,
        }
    }
}

/// A kernel of a loaded module.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub module: Arc<LoadedModule>,
    pub entry: usize,
}

impl Kernel {
    pub fn entry(&self) -> &Entry {
        &self.module.module.entries()[self.entry]
    }

    fn registers(&self) -> u32 {
        self.entry().registers.min(self.module.register_limit)
    }

    fn settings(&self) -> Settings {
        self.module.settings.lock()[self.entry].clone()
    }

    pub fn info(&self) -> FunctionInfo {
        let Kernel { module, .. } = self;
        describe(&module.module, self.entry(), &self.settings(), module.register_limit)
    }

    pub fn set(&self, attribute: i32, value: i32) -> Result<()> {
        let entry = self.entry();
        let mut all = self.module.settings.lock();
        let settings = &mut all[self.entry];
        let count = u32::try_from(value).map_err(|_| CUDA_ERROR_INVALID_VALUE);
        match attribute {
            DYNAMIC_SHARED => {
                let most = SHARED_OPTIN.saturating_sub(entry.dynamic_shared_at);
                settings.dynamic_shared =
                    count.ok().filter(|v| *v <= most).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            }
            CARVEOUT if (-1..=100).contains(&value) => settings.carveout = value,
            CLUSTER_WIDTH..=CLUSTER_DEPTH if entry.cluster.is_none() => {
                settings.cluster[(attribute - CLUSTER_WIDTH) as usize] = count?;
            }
            NON_PORTABLE_CLUSTER => settings.non_portable = value != 0,
            CLUSTER_POLICY if (0..=2).contains(&value) => settings.policy = value,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// The cluster of a launch: `[1, 1, 1]` where there is none.
    pub fn cluster(&self, launch: &Launch) -> [u32; 3] {
        let row = launch.attributes.0.iter().find(|row| row.0 == LAUNCH_CLUSTER && row.1.len() >= 12);
        let asked = row.map(|(_, value)| {
            std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|byte| value[i * 4 + byte])))
        });
        asked.filter(|cluster| *cluster != [0; 3]).unwrap_or(self.settings().cluster).map(|size| size.max(1))
    }

    /// Refuses what CUDA refuses, with its code.
    pub fn check(&self, launch: &Launch, parameters: &[u8], multiprocessors: u32) -> Result<()> {
        let (entry, settings) = (self.entry(), self.settings());
        let within = |found: [u32; 3], most: [u32; 3]| (0..3).all(|i| (1..=most[i]).contains(&found[i]));
        let threads = launch.block.iter().map(|size| u64::from(*size)).product::<u64>();
        let shape = entry.required_threads.is_none_or(|required| required == launch.block);
        if !within(launch.grid, MAX_GRID)
            || !within(launch.block, MAX_BLOCK)
            || threads > u64::from(most_threads(entry))
            || !shape
            || launch.shared > settings.dynamic_shared
            || parameters.len()
                < entry.parameters.iter().map(|p| (p.offset + p.size) as usize).max().unwrap_or(0)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let held = occupancy::blocks(self.need(threads as u32, u64::from(launch.shared)));
        if held == 0 {
            return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        let cluster = self.cluster(launch);
        let size = cluster.iter().map(|size| u64::from(*size)).product::<u64>();
        let most = if settings.non_portable { LARGEST_CLUSTER } else { PORTABLE_CLUSTER };
        if size > u64::from(most) || (0..3).any(|i| !launch.grid[i].is_multiple_of(cluster[i])) {
            return Err(CUDA_ERROR_INVALID_CLUSTER_SIZE);
        }
        self.check_cooperative(launch, multiprocessors)
    }

    /// Refuses a cooperative launch whose blocks are not all there at once.
    pub fn check_cooperative(&self, launch: &Launch, multiprocessors: u32) -> Result<()> {
        if !is_cooperative(launch) {
            return Ok(());
        }
        let threads = launch.block.iter().product::<u32>();
        let held = u64::from(occupancy::blocks(self.need(threads, u64::from(launch.shared))));
        let blocks = launch.grid.iter().map(|size| u64::from(*size)).product::<u64>();
        match blocks <= held * u64::from(multiprocessors) {
            true => Ok(()),
            false => Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE),
        }
    }

    pub fn occupancy_blocks(&self, threads: i32, shared: u64) -> Result<i32> {
        let threads =
            u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if threads > most_threads(self.entry()) {
            return Ok(0);
        }
        Ok(occupancy::blocks(self.need(threads, shared)) as i32)
    }

    pub fn occupancy_shared(&self, blocks: i32, threads: i32) -> Result<u64> {
        let count = u32::try_from(blocks).ok().filter(|count| *count > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if self.occupancy_blocks(threads, 0)? < blocks {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(occupancy::shared_for(count, self.entry().static_shared))
    }

    pub fn occupancy_clusters(&self, launch: &Launch, multiprocessors: u32) -> i32 {
        let threads = launch.block.iter().product::<u32>();
        let held = occupancy::blocks(self.need(threads, u64::from(launch.shared)));
        let size = self.cluster(launch).iter().product::<u32>().max(1);
        i32::try_from(held * multiprocessors / size).unwrap_or(i32::MAX)
    }

    pub fn occupancy_cluster_size(&self) -> i32 {
        if self.settings().non_portable { LARGEST_CLUSTER as i32 } else { PORTABLE_CLUSTER as i32 }
    }

    fn need(&self, threads: u32, dynamic_shared: u64) -> Need {
        let entry = self.entry();
        let shared = u64::from(entry.static_shared).saturating_add(dynamic_shared);
        Need { threads, registers: self.registers(), shared }
    }
}

fn most_threads(entry: &Entry) -> u32 {
    entry.max_threads.min(MAX_THREADS)
}

pub(crate) fn is_cooperative(launch: &Launch) -> bool {
    let row = launch.attributes.0.iter().find(|row| row.0 == LAUNCH_COOPERATIVE);
    launch.cooperative || row.is_some_and(|(_, value)| value.iter().take(4).any(|byte| *byte != 0))
}
