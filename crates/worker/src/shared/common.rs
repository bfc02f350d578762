//! What the clients of shared contexts have in common.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_cuda::CUDA_ERROR_OPERATING_SYSTEM;
use rekindle_device::{Device, Result};

use crate::gpu::{OpenError, OpenedDriver};
use crate::gpus::{GpuContext, Gpus};
use crate::image::{BlockPool, stock};

use super::division::Division;
use super::health::Health;
use super::link::Link;
use super::memory_pool::MemoryPool;
use super::piece_cache::PieceCache;
use super::settings::Settings;

pub(crate) struct Common {
    pub gpus: Gpus,
    /// What contents are copied through.
    pub block_pool: Arc<BlockPool>,
    pub health: Arc<Health>,
    /// How copies share the link; none where they do not.
    settings: Option<Settings>,
    /// Of each GPU, by its number.
    links: Mutex<HashMap<usize, Option<Arc<Link>>>>,
    divisions: Mutex<HashMap<usize, Arc<Division>>>,
    pieces: Mutex<HashMap<usize, Arc<PieceCache>>>,
    memory_pools: Mutex<HashMap<usize, Arc<MemoryPool>>>,
}

impl Common {
    /// The first GPU's context is made now.
    pub(super) fn new(opened: OpenedDriver) -> std::result::Result<Arc<Common>, OpenError> {
        let settings = Settings::from_env()?;
        let made = Gpus::new(opened, settings).and_then(|gpus| {
            let device = gpus.open(0)?.device.clone();
            let block_pool = BlockPool::shared(device.clone());
            stock(&block_pool, device);
            Ok(Common {
                gpus,
                block_pool,
                health: Arc::default(),
                settings,
                links: Mutex::default(),
                divisions: Mutex::default(),
                pieces: Mutex::default(),
                memory_pools: Mutex::default(),
            })
        });
        made.map(Arc::new).map_err(OpenError::Context)
    }

    /// How a GPU's multiprocessors are divided.
    pub(crate) fn division(&self, index: usize, device: &Arc<dyn Device>) -> Arc<Division> {
        let mut divisions = self.divisions.lock().unwrap_or_else(PoisonError::into_inner);
        divisions.entry(index).or_insert_with(|| Division::new(device.clone())).clone()
    }

    /// The pieces of code that a GPU's context has.
    pub(crate) fn pieces(&self, index: usize) -> Arc<PieceCache> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.entry(index).or_default().clone()
    }

    /// Memory of a GPU that is ready for first uses.
    pub(crate) fn memory_pool(&self, index: usize, context: &GpuContext) -> Arc<MemoryPool> {
        let mut pools = self.memory_pools.lock().unwrap_or_else(PoisonError::into_inner);
        let (device, pressure) = (&context.device, &context.pressure);
        let make = || MemoryPool::new(device.clone(), self.health.clone(), pressure.clone());
        pools.entry(index).or_insert_with(make).clone()
    }

    /// The scheduler of a GPU's copies; none where there is to be none.
    pub(crate) fn link(&self, index: usize, context: &GpuContext) -> Result<Option<Arc<Link>>> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&index) {
            return Ok(link.clone());
        }
        let link =
            Link::new(context.device.clone(), self.settings, context.link.clone()).map_err(|error| {
                log::error!("the link's thread cannot be started: {error}");
                CUDA_ERROR_OPERATING_SYSTEM
            })?;
        links.insert(index, link.clone());
        Ok(link)
    }
}
