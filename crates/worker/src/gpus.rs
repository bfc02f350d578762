//! The GPUs that a worker uses, and the context that it has on each: what all of its clients have in common.
//!
//! A context is made when a client first needs it, and stays until the worker ends. All that a program can name or
//! change in one is its client's ([`crate::client::Context`]).

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_DEVICE;
use rekindle_device::{Device, DeviceInfo, Platform, Result, Stream};

use crate::code::CodeCache;
use crate::gpu::Opened;
use crate::hashing::Hasher;
use crate::memory::Regions;

/// As many as keep both directions of the link busy.
const COPY_STREAMS: usize = 4;
/// `CU_STREAM_NON_BLOCKING`: work of the legacy stream is not waited for.
const NON_BLOCKING: u32 = 1;

pub(crate) struct Gpus {
    pub platform: Arc<dyn Platform>,
    /// The real driver library, where there is one.
    pub real_driver: Option<String>,
    /// Modules are taken apart where that can be.
    pub in_pieces: bool,
    pub regions: Arc<Regions>,
    slots: Vec<Slot>,
    code: Mutex<CodeCache>,
    opening: Mutex<()>,
}

/// One GPU, as programs number them.
struct Slot {
    /// The platform's number.
    index: usize,
    info: DeviceInfo,
    context: OnceLock<Arc<GpuContext>>,
}

/// A context of this process on a GPU.
pub(crate) struct GpuContext {
    pub device: Arc<dyn Device>,
    pub info: DeviceInfo,
    /// Streams for what a checkpoint and a restore copy. Made with the context: streams take room in the driver's heaps,
    /// where one that came and went would move the globals of later modules.
    pub copies: Vec<Stream>,
    /// Hashes what is copied, where the device does that.
    pub hasher: Option<Arc<Hasher>>,
}

impl Gpus {
    /// The first GPU's context is made now, for it takes long.
    pub(crate) fn new(opened: Opened) -> Result<Gpus> {
        let Opened { platform, gpus, real_driver, in_pieces, .. } = opened;
        let slot = |(position, index): (usize, &usize)| {
            let info = platform.devices().get(*index).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
            let info = DeviceInfo { index: position as u32, ..info.clone() };
            Ok(Slot { index: *index, info, context: OnceLock::new() })
        };
        let gpus = Gpus {
            slots: gpus.iter().enumerate().map(slot).collect::<Result<_>>()?,
            platform,
            real_driver,
            in_pieces,
            regions: Arc::new(Regions::new()),
            code: Mutex::default(),
            opening: Mutex::default(),
        };
        gpus.open(0)?;
        Ok(gpus)
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// What is known of a GPU; more once it has a context.
    pub(crate) fn info(&self, device: usize) -> Option<&DeviceInfo> {
        let slot = self.slots.get(device)?;
        Some(slot.context.get().map_or(&slot.info, |context| &context.info))
    }

    pub(crate) fn infos(&self) -> Vec<DeviceInfo> {
        (0..self.count()).filter_map(|device| self.info(device).cloned()).collect()
    }

    /// The context on a GPU, made now if it is not there yet. It need not be current on this thread.
    pub(crate) fn open(&self, device: usize) -> Result<Arc<GpuContext>> {
        let slot = self.slots.get(device).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = slot.context.get() {
            return Ok(context.clone());
        }
        let context = Arc::new(GpuContext::new(self.platform.open(slot.index)?, device)?);
        Ok(slot.context.get_or_init(|| context).clone())
    }

    /// Files that code was mapped from.
    pub(crate) fn code(&self) -> MutexGuard<'_, CodeCache> {
        self.code.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GpuContext {
    fn new(device: Arc<dyn Device>, index: usize) -> Result<GpuContext> {
        device.bind()?;
        // What is hashed behind copies is not to wait for the program's kernels.
        let (_, greatest) = device.info().stream_priorities;
        let copies =
            (0..COPY_STREAMS).map(|_| device.stream_create(NON_BLOCKING, greatest)).collect::<Result<_>>()?;
        let hasher = Hasher::open(device.clone());
        let info = DeviceInfo { index: index as u32, ..device.info().clone() };
        Ok(GpuContext { info, copies, hasher, device })
    }
}
