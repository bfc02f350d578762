//! The GPUs that a worker uses, and the context that it has on each: what all of its clients have in common.
//!
//! A context is made when a client first needs it, and stays until the worker ends. All that a program can name or
//! change in one is its client's ([`crate::client::Context`]).

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_PERMITTED};
use rekindle_device::{Device, DeviceInfo, Placement, Platform, Result, Slice, Stream};
use rekindle_protocol::worker::{Portion, ShareMemory};

use crate::code::CodeCache;
use crate::data::Basin;
use crate::gpu::OpenedDriver;
use crate::gpu_link::GpuLink;
use crate::hashing::Hasher;
use crate::image::BlockPool;
use crate::memory::Regions;
use crate::noted_device::NotedDevice;
use crate::pressure::Pressure;
use crate::shared::{ClientDevice, Common, DivisionMember, LinkSettings, PortionError, Wish};

/// As many as keep both directions of the link busy.
const COPY_STREAMS: usize = 4;
/// `CU_STREAM_NON_BLOCKING`: work of the legacy stream is not waited for.
const NON_BLOCKING: u32 = 1;
/// How often it is looked whether a client has let go of a device.
const LOOK: Duration = Duration::from_micros(200);

pub(crate) struct Gpus {
    source: Source,
    pub platform: Arc<dyn Platform>,
    /// The real driver library, where there is one.
    pub real_driver: Option<String>,
    /// Modules are taken apart where that can be.
    pub in_pieces: bool,
    pub regions: Arc<Regions>,
    slots: Vec<Slot>,
    code: Arc<Mutex<CodeCache>>,
    opening: Mutex<()>,
    basin: OnceLock<Arc<Basin>>,
}

/// Whose the contexts are.
enum Source {
    /// They are made for the one client, or for those that are to share them.
    Own {
        /// How the link is shared with other workers.
        link: Option<LinkSettings>,
        block_pool: Arc<BlockPool>,
    },
    /// Others have them too, and the client has a view of each.
    Shared {
        common: Arc<Common>,
        views: Mutex<Vec<(Arc<ClientDevice>, DivisionMember)>>,
        portion: Mutex<Portion>,
        /// When allocations get memory.
        memory: ShareMemory,
        /// Why it cannot have that.
        refused: OnceLock<PortionError>,
    },
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
    /// Its place at the GPU's link, which other workers have too. A client's view has none: its context has.
    pub link: Option<Arc<GpuLink>>,
    /// Pools of other workers, which give way where this one lacks memory. A client's view has none: its context's pool has.
    pub pressure: Option<Arc<Pressure>>,
    /// The device, where it is a client's view of one that others use too.
    pub view: Option<Arc<ClientDevice>>,
    /// The device, where the one client has it for itself.
    noted: Option<Arc<NotedDevice>>,
}

impl Gpus {
    /// The first GPU's context is made now, for it takes long.
    pub(crate) fn new(opened: OpenedDriver, link: Option<LinkSettings>) -> Result<Gpus> {
        let OpenedDriver { platform, gpus, real_driver, in_pieces, .. } = opened;
        let slot = |(position, index): (usize, &usize)| {
            let info = platform.devices().get(*index).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
            let info = DeviceInfo { index: position as u32, ..info.clone() };
            Ok(Slot { index: *index, info, context: OnceLock::new() })
        };
        let first = platform.open(*gpus.first().ok_or(CUDA_ERROR_INVALID_DEVICE)?)?;
        let gpus = Gpus {
            source: Source::Own { link, block_pool: BlockPool::own(first) },
            slots: gpus.iter().enumerate().map(slot).collect::<Result<_>>()?,
            platform,
            real_driver,
            in_pieces,
            regions: Arc::new(Regions::new()),
            code: Arc::default(),
            opening: Mutex::default(),
            basin: OnceLock::new(),
        };
        // All from the start, so that what a driver takes for contexts never comes between modules whose places have to come
        // out again.
        (0..gpus.count()).try_for_each(|device| gpus.open(device).map(drop))?;
        Ok(gpus)
    }

    /// The same GPU, with its context as it was before a client whose all is gone had it, for the next client; none where it
    /// cannot be that, so that it goes with its process. There is one GPU: what may come between heaps of several is not known.
    pub(crate) fn renew(self, until: Instant) -> Option<Gpus> {
        let Source::Own { link, block_pool } = self.source else { return None };
        let [Slot { index, info, context }] = <[Slot; 1]>::try_from(self.slots).ok()?;
        drop(self.basin);
        let context = renew(context.into_inner()?, until)?;
        self.platform.renew_placements();
        Some(Gpus {
            source: Source::Own { link, block_pool },
            slots: vec![Slot { index, info, context: OnceLock::from(Arc::new(context)) }],
            platform: self.platform,
            real_driver: self.real_driver,
            in_pieces: self.in_pieces,
            regions: Arc::new(Regions::new()),
            code: Arc::default(),
            opening: Mutex::default(),
            basin: OnceLock::new(),
        })
    }

    /// Why its contexts cannot be as they were before the client.
    pub(crate) fn lasting_trace(&self) -> Option<&'static str> {
        match &self.slots[..] {
            [slot] => match slot.context.get().and_then(|context| context.noted.as_ref()) {
                Some(noted) => noted.lasting_trace(),
                None => Some("others have its context"),
            },
            _ => Some("it had several GPUs"),
        }
    }

    /// The same GPUs for a client that shares their contexts with others.
    pub(crate) fn for_client(
        common: &Arc<Common>,
        slice: Slice,
        portion: Portion,
        memory: ShareMemory,
    ) -> Gpus {
        let all = &common.gpus;
        let regions = Arc::new(Regions::new());
        regions.confine(slice);
        let slot =
            |slot: &Slot| Slot { index: slot.index, info: slot.info.clone(), context: OnceLock::new() };
        let (common, views, portion) = (common.clone(), Mutex::default(), Mutex::new(portion));
        Gpus {
            source: Source::Shared { common, views, portion, memory, refused: OnceLock::new() },
            slots: all.slots.iter().map(slot).collect(),
            platform: all.platform.clone(),
            real_driver: all.real_driver.clone(),
            in_pieces: all.in_pieces,
            regions,
            code: all.code.clone(),
            opening: Mutex::default(),
            basin: OnceLock::new(),
        }
    }

    /// Whether other clients use the same contexts.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.source, Source::Shared { .. })
    }

    /// Whether allocations get their memory at their first use.
    pub(crate) fn waits_for_uses(&self) -> bool {
        matches!(self.source, Source::Shared { memory: ShareMemory::Lazy, .. })
    }

    /// Where memory to copy through is to be had.
    pub(crate) fn block_pool(&self) -> &Arc<BlockPool> {
        match &self.source {
            Source::Own { block_pool, .. } => block_pool,
            Source::Shared { common, .. } => &common.block_pool,
        }
    }

    /// What data is copied through to a GPU that cannot be copied from where it is. Registered memory is known to all contexts of
    /// the process.
    pub(crate) fn basin(&self, device: usize) -> Result<Arc<Basin>> {
        if let Source::Shared { common, .. } = &self.source {
            return common.gpus.basin(device);
        }
        let gpu = self.open(device)?.device.clone();
        Ok(self.basin.get_or_init(|| Basin::new(gpu)).clone())
    }

    /// What a client has of contexts that it shares.
    pub(crate) fn portion(&self) -> Option<Portion> {
        match &self.source {
            Source::Own { .. } => None,
            Source::Shared { portion, .. } => Some(*portion.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// How many multiprocessors its work has now, of all GPUs together.
    pub(crate) fn multiprocessors(&self) -> u32 {
        match &self.source {
            Source::Own { .. } => 0,
            Source::Shared { views, .. } => {
                let views = views.lock().unwrap_or_else(PoisonError::into_inner);
                views.iter().map(|(_, member)| member.multiprocessors()).sum()
            }
        }
    }

    /// How long copies of its program have waited there for their turn.
    pub(crate) fn link_waited(&self) -> Duration {
        self.views().iter().map(|view| view.link_waited()).sum()
    }

    /// Has the client have this of them from now on.
    pub(crate) fn set_portion(&self, wanted: Portion) -> std::result::Result<(), PortionError> {
        let Source::Shared { portion, views, .. } = &self.source else {
            return Err(PortionError::NotShared);
        };
        let mut portion = portion.lock().unwrap_or_else(PoisonError::into_inner);
        let views = views.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, (view, member)) in views.iter().enumerate() {
            if let Err(problem) =
                view.bind().map_err(PortionError::Context).and_then(|()| member.set(wish(&wanted)))
            {
                views.iter().take(number).for_each(|(_, member)| drop(member.set(wish(&portion))));
                return Err(problem);
            }
        }
        views.iter().for_each(|(view, _)| view.set_link_weight(wanted.link_weight));
        *portion = wanted;
        Ok(())
    }

    /// Why the client cannot have what it is to have of a context.
    pub(crate) fn refused(&self) -> Option<&PortionError> {
        match &self.source {
            Source::Own { .. } => None,
            Source::Shared { refused, .. } => refused.get(),
        }
    }

    /// Gives back all that a client has in contexts that it shares; false if its work is not done within the limit. It
    /// asks for nothing any more.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        let closed: Vec<bool> = self.views().iter().map(|view| view.close(limit)).collect();
        let is_closed = !closed.contains(&false);
        if let (true, Source::Shared { views, .. }) = (is_closed, &self.source) {
            let left = std::mem::take(&mut *views.lock().unwrap_or_else(PoisonError::into_inner));
            drop(left);
        }
        is_closed
    }

    /// Readies what a client that has come to rest has in contexts that it shares, to outlive them, for so long: true once all
    /// is.
    pub(crate) fn keep(&self, until: Instant) -> Result<bool> {
        self.views().iter().try_fold(true, |all, view| Ok(view.keep(until)? && all))
    }

    /// An error if one of the contexts that a client shares has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.views().iter().try_for_each(|view| view.check())
    }

    /// Whether a client leaves contexts that have failed: nothing is asked of them from then on.
    pub(crate) fn set_leaving(&self, leaving: bool) {
        self.views().iter().for_each(|view| view.set_leaving(leaving));
    }

    /// What a client has of contexts that it shares.
    fn views(&self) -> Vec<Arc<ClientDevice>> {
        match &self.source {
            Source::Own { .. } => Vec::new(),
            Source::Shared { views, .. } => {
                let views = views.lock().unwrap_or_else(PoisonError::into_inner);
                views.iter().map(|(view, _)| view.clone()).collect()
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// What is known of a GPU; more once it has a context.
    pub(crate) fn info(&self, device: usize) -> Option<&DeviceInfo> {
        let slot = self.slots.get(device)?;
        Some(slot.context.get().map_or(&slot.info, |context| &context.info))
    }

    /// The free memory of a GPU whose context is there, which becomes current.
    pub(crate) fn free_bytes(&self, device: usize) -> Option<u64> {
        let gpu = &self.slots.get(device)?.context.get()?.device;
        let (free, _) = gpu.bind().and_then(|()| gpu.memory_info()).ok()?;
        Some(free)
    }

    /// UUIDs of the GPUs whose memory this one can have mapped.
    pub(crate) fn reaches(&self, device: usize) -> Vec<[u8; 16]> {
        self.slots.get(device).map_or_else(Vec::new, |slot| self.platform.reaches(slot.index))
    }

    /// Of which of the client's GPUs the first one's kernels may use the second one's memory.
    pub(crate) fn pairs(&self) -> Vec<(u8, u8)> {
        let mut pairs = Vec::new();
        for (from, slot) in self.slots.iter().enumerate().filter(|_| self.count() > 1) {
            let reached = self.platform.reaches(slot.index);
            let others = self.slots.iter().enumerate().filter(|(to, _)| *to != from);
            let others = others.filter(|(_, other)| reached.contains(&other.info.uuid));
            pairs.extend(others.map(|(to, _)| (from as u8, to as u8)));
        }
        pairs
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
        let context = Arc::new(match &self.source {
            Source::Own { link, .. } => GpuContext::new(self.platform.open(slot.index)?, device, *link)?,
            Source::Shared { common, views, portion, refused, memory } => {
                let portion = portion.lock().unwrap_or_else(PoisonError::into_inner);
                let shared = common.gpus.open(device)?;
                shared.device.bind()?;
                let link = common.link(device, &shared)?;
                let pieces = common.pieces(device);
                let pool = common.memory_pool(device, &shared);
                let view =
                    ClientDevice::new(shared.device.clone(), link, pieces, pool, common.health.clone())?;
                if *memory == ShareMemory::Lazy {
                    view.recycle()?;
                }
                view.set_link_weight(portion.link_weight);
                let division = common.division(device, &shared.device);
                let member = division.join(&view, wish(&portion)).map_err(|problem| {
                    log::error!("a client has no place on GPU {device}: {problem}");
                    let _ = refused.set(problem);
                    view.close(Duration::ZERO);
                    CUDA_ERROR_NOT_PERMITTED
                })?;
                views.lock().unwrap_or_else(PoisonError::into_inner).push((view.clone(), member));
                GpuContext::of_client(&shared, view)?
            }
        });
        Ok(slot.context.get_or_init(|| context).clone())
    }

    /// Where the driver has put its own heaps, which other clients shape too where contexts are shared.
    pub(crate) fn placements(&self) -> Vec<Placement> {
        if self.is_shared() { Vec::new() } else { self.platform.placements() }
    }

    /// Has the driver put its heaps where an earlier process had them.
    pub(crate) fn expect_placements(&self, earlier: &[Placement]) {
        if !self.is_shared() {
            self.platform.expect_placements(earlier);
        }
    }

    /// Files that code was mapped from.
    pub(crate) fn code(&self) -> MutexGuard<'_, CodeCache> {
        self.code.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GpuContext {
    fn new(device: Arc<dyn Device>, index: usize, link: Option<LinkSettings>) -> Result<GpuContext> {
        device.bind()?;
        let copies = copy_streams(&*device)?;
        let hasher = Hasher::open(device.clone());
        let info = DeviceInfo { index: index as u32, ..device.info().clone() };
        let link = GpuLink::open(&device, link);
        let pressure = Pressure::open(&*device);
        let noted = NotedDevice::new(device);
        Ok(GpuContext {
            device: noted.clone(),
            info,
            copies,
            hasher,
            link,
            pressure,
            noted: Some(noted),
            view: None,
        })
    }

    /// The same context as one of its clients has it.
    fn of_client(shared: &GpuContext, view: Arc<ClientDevice>) -> Result<GpuContext> {
        let copies = copy_streams(&*view)?;
        copies.iter().for_each(|stream| view.set_background(*stream));
        let hasher = shared.hasher.as_ref().map(|hasher| Arc::new(hasher.through(view.clone())));
        Ok(GpuContext {
            info: shared.info.clone(),
            copies,
            hasher,
            device: view.clone(),
            link: None,
            pressure: None,
            view: Some(view),
            noted: None,
        })
    }
}

/// The context for the next client. Threads of the one before may take a moment to let go of the device.
fn renew(context: Arc<GpuContext>, until: Instant) -> Option<GpuContext> {
    let GpuContext { device, info, copies, hasher, link, pressure, noted, view: _ } =
        Arc::into_inner(context)?;
    drop(device);
    let noted = alone(noted?, until)?;
    let raw = noted.lasting_trace().is_none().then(|| noted.give_back())??;
    let noted = NotedDevice::new(raw);
    Some(GpuContext {
        device: noted.clone(),
        info,
        copies,
        hasher,
        link,
        pressure,
        noted: Some(noted),
        view: None,
    })
}

/// What is shared, once nobody else has it.
pub(crate) fn alone<T>(mut shared: Arc<T>, until: Instant) -> Option<T> {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(own) => return Some(own),
            Err(others) if Instant::now() < until => shared = others,
            Err(_) => return None,
        }
        std::thread::sleep(LOOK);
    }
}

/// What a client is to have of the multiprocessors.
fn wish(portion: &Portion) -> Wish {
    Wish { share: portion.sm_share, weight: portion.sm_weight, most: portion.sm_most }
}

/// What is hashed behind copies is not to wait for the program's kernels.
fn copy_streams(device: &dyn Device) -> Result<Vec<Stream>> {
    let (_, greatest) = device.info().stream_priorities;
    (0..COPY_STREAMS).map(|_| device.stream_create(NON_BLOCKING, greatest)).collect()
}
