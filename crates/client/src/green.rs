//! Green contexts: parts of a device's multiprocessors, divided by the program.
//!
//! ```text
//!   device ── cuDeviceGetDevResource ─▶ resource ── split ─▶ resources ── description ─▶ green context ─▶ streams
//! ```
//!
//! A resource is a set of the [`Units`] that the worker can divide the device into. A green context has one such part of the
//! device in the worker; its default stream, and all that it makes, are streams there. It belongs to the primary context, as
//! do memory and code.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rekindle_cuda::types::DevResource;
use rekindle_cuda::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
    CUDA_ERROR_INVALID_RESOURCE_TYPE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CuResult,
};
use rekindle_device::Units;
use rekindle_protocol::operation::{Id, PartCreate, PartDestroy, PartUnits, StreamCreateOn};

use crate::abi::{Handle, In, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::context::{self, Context};
use crate::export::exports;
use crate::refusal::refused;
use crate::stream::{self, StreamTarget};
use crate::{event, lane, session};

/// `CU_DEV_RESOURCE_TYPE_SM`.
const MULTIPROCESSORS: u32 = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which must be given.
const DEFAULT_STREAM: u32 = 1;
/// `CUdevSmResourceSplit_flags`. Neither changes what a group is: units are not divided, and lie together where they can.
const SPLIT_FLAGS: u32 = 3;

static NEXT_PART: AtomicU32 = AtomicU32::new(0);
static NEXT_SPLIT: AtomicU64 = AtomicU64::new(1);

pub struct Green {
    /// The worker's number of the part.
    pub id: Id,
    pub context: &'static Context,
    handle: Mutex<Handle>,
    device: u8,
    units: u64,
    /// What the null stream means where this is current.
    pub default: Id,
    /// Its streams that the program has, by their ids; the default one too.
    streams: Mutex<Vec<Id>>,
    destroyed: AtomicBool,
}

impl Object for Arc<Green> {
    const KIND: Kind = Kind::Green;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

/// `CUdevResourceDesc`. The driver's interface has no way to end one.
struct Description {
    device: u8,
    units: u64,
}

impl Object for Description {
    const KIND: Kind = Kind::Description;
    fn device(&self) -> Option<u8> {
        None
    }
}

impl Green {
    pub fn usable(&self) -> Result<()> {
        match self.destroyed.load(Ordering::Acquire) {
            true => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
            false => session::get()?.sticky_error(self.device),
        }
    }

    pub fn handle(&self) -> Handle {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream on its multiprocessors.
    pub fn make_stream(&self, priority: i32) -> Result<Id> {
        let id = stream::new_id();
        lane::post(&StreamCreateOn { part: self.id, id, priority }, &[])?;
        self.change_streams(|streams| streams.push(id));
        Ok(id)
    }

    pub fn forget_stream(&self, id: Id) {
        self.change_streams(|streams| streams.retain(|stream| *stream != id));
    }

    fn change_streams<T>(&self, change: impl FnOnce(&mut Vec<Id>) -> T) -> T {
        change(&mut self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the work of its streams.
    pub fn synchronize(&self) -> Result<()> {
        let streams = self.change_streams(|streams| streams.clone());
        streams.into_iter().try_for_each(|id| stream::synchronize(StreamTarget { device: self.device, id }))
    }

    /// It is gone with its device's contents.
    pub fn forget(&self) {
        self.destroyed.store(true, Ordering::Release);
    }
}

/// How the device can be divided; refused in a sentence where it cannot.
fn units(function: &'static str, device: u8) -> Result<Units> {
    match lane::ask(&PartUnits { device }) {
        Err(CUDA_ERROR_NOT_SUPPORTED) => Err(refused(
            function,
            "the multiprocessors cannot be divided by the program: it shares its context with others (--share), whose \
             shares are set by `rekindle limits`, or the GPU's driver has no green contexts (CUDA 12.5)",
        )),
        answer => answer,
    }
}

/// The resource that a set of units is. `split`: the division that it comes from; 0: it can be divided.
fn resource(device: u8, units: &Units, set: u64, split: u64) -> DevResource {
    let count = units.multiprocessors_of(set);
    let mut resource = DevResource {
        kind: 0,
        device: 0,
        units: 0,
        split: 0,
        padding: [0; 72],
        multiprocessors: 0,
        least: 0,
        aligned: 0,
        more: [0; 36],
    };
    if count > 0 {
        resource = DevResource {
            kind: MULTIPROCESSORS,
            device: device.into(),
            units: set,
            split,
            multiprocessors: count,
            least: units.multiprocessors,
            aligned: units.multiprocessors,
            ..resource
        };
    }
    resource
}

/// The units of a resource that the program hands in.
fn set_of(resource: &DevResource, units: &Units) -> Result<u64> {
    let set = resource.units;
    let known =
        set != 0 && set & !units.whole() == 0 && units.multiprocessors_of(set) == resource.multiprocessors;
    if known { Ok(set) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn device_of(resource: &DevResource) -> Result<u8> {
    if resource.kind != MULTIPROCESSORS {
        return Err(CUDA_ERROR_INVALID_RESOURCE_TYPE);
    }
    let device = u8::try_from(resource.device).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    session::get()?.device(device.into()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    Ok(device)
}

/// What a device, or a green context on it, has.
fn put(function: &'static str, device: u8, own: Option<u64>, out: Out<DevResource>, kind: u32) -> Result<()> {
    out.check()?;
    if kind != MULTIPROCESSORS {
        return Err(CUDA_ERROR_INVALID_RESOURCE_TYPE);
    }
    let units = units(function, device)?;
    out.put(resource(device, &units, own.unwrap_or(units.whole()), 0))
}

fn split(
    groups: Out<DevResource>,
    count: Out<u32>,
    input: In<DevResource>,
    remaining: Out<DevResource>,
    flags: u32,
    least: u32,
) -> Result<()> {
    let wanted = count.current()?;
    let input = input.get()?;
    let device = device_of(&input)?;
    let units = units("cuDevSmResourceSplitByCount", device)?;
    let set = set_of(&input, &units)?;
    if input.split != 0 {
        return Err(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    if flags & !SPLIT_FLAGS != 0 || least > input.multiprocessors || wanted == 0 && !groups.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let most = if groups.is_null() { usize::MAX } else { wanted as usize };
    let (made, left) = units.split(set, least, most);
    if made.is_empty() {
        return Err(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    count.put(made.len() as u32)?;
    let split = NEXT_SPLIT.fetch_add(1, Ordering::Relaxed);
    let made: Vec<DevResource> = made.iter().map(|group| resource(device, &units, *group, split)).collect();
    if !groups.is_null() {
        groups.fill(made.len(), made);
    }
    remaining.offer(resource(device, &units, left, split));
    Ok(())
}

fn describe(out: Out<Handle>, resources: In<DevResource>, count: u32) -> Result<()> {
    out.check()?;
    let resources = resources.slice(count as usize)?;
    let first = resources.first().ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let device = device_of(first)?;
    let units = units("cuDevResourceGenerateDesc", device)?;
    let mut all = 0;
    for resource in resources {
        let is_of_first = device_of(resource)? == device && resource.split == first.split;
        let set = set_of(resource, &units)?;
        if !is_of_first || all & set != 0 {
            return Err(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        all |= set;
    }
    out.put(arena::insert(Description { device, units: all })?)
}

fn create(out: Out<Handle>, description: Handle, device: i32, flags: u32) -> Result<()> {
    out.check()?;
    let description = arena::get::<Description>(description).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if flags != DEFAULT_STREAM || i32::from(description.device) != device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (device, units) = (description.device, description.units);
    let context = context::retain_for_green(device)?;
    let id = NEXT_PART.fetch_add(1, Ordering::Relaxed);
    let made = lane::ask(&PartCreate { device, id, units }).and_then(|()| {
        let default = stream::new_id();
        lane::post(&StreamCreateOn { part: id, id: default, priority: 0 }, &[])?;
        Ok(default)
    });
    let default = made.inspect_err(|_| {
        let _ = context::release_green(context);
    })?;
    let green = Arc::new(Green {
        id,
        context,
        handle: Mutex::default(),
        device,
        units,
        default,
        streams: Mutex::new(vec![default]),
        destroyed: AtomicBool::new(false),
    });
    context.set_green(green.clone());
    let handle = arena::insert(green.clone())?;
    *green.handle.lock().unwrap_or_else(PoisonError::into_inner) = handle;
    out.put(handle)
}

fn get(handle: Handle) -> Result<Arc<Green>> {
    arena::get::<Arc<Green>>(handle).cloned().map_err(not_a_context)
}

fn not_a_context(_: CuResult) -> CuResult {
    CUDA_ERROR_INVALID_CONTEXT
}

fn destroy(handle: Handle) -> Result<()> {
    let green = get(handle)?;
    // Its multiprocessors go back with its streams, so what they have comes to its end first.
    let waited = green.synchronize();
    arena::remove::<Arc<Green>>(handle).map_err(not_a_context)?;
    green.forget();
    lane::post(&PartDestroy { id: green.id }, &[])?;
    context::release_green(green.context)?;
    waited
}

fn create_stream(out: Out<Handle>, green: Handle, flags: u32, priority: i32) -> Result<()> {
    out.check()?;
    if flags != stream::NON_BLOCKING {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let green = get(green)?;
    green.usable()?;
    out.put(stream::create_green(&green, priority)?)
}

exports! {
    call fn cuDeviceGetDevResource(device: i32, out: Out<DevResource>, kind: u32) {
        crate::device::info(device)?;
        put("cuDeviceGetDevResource", device as u8, None, out, kind)
    }
    call fn cuCtxGetDevResource(handle: Handle, out: Out<DevResource>, kind: u32) {
        let context = context::given_or_current(handle)?;
        put("cuCtxGetDevResource", context.device, context.green().map(|green| green.units), out, kind)
    }
    call fn cuGreenCtxGetDevResource(handle: Handle, out: Out<DevResource>, kind: u32) {
        let green = get(handle)?;
        put("cuGreenCtxGetDevResource", green.device, Some(green.units), out, kind)
    }
    call fn cuDevSmResourceSplitByCount(groups: Out<DevResource>, count: Out<u32>, input: In<DevResource>, remaining: Out<DevResource>, flags: u32, least: u32) {
        split(groups, count, input, remaining, flags, least)
    }
    call fn cuDevResourceGenerateDesc(out: Out<Handle>, resources: In<DevResource>, count: u32) { describe(out, resources, count) }
    call fn cuGreenCtxCreate(out: Out<Handle>, description: Handle, device: i32, flags: u32) { create(out, description, device, flags) }
    call fn cuGreenCtxDestroy(handle: Handle) { destroy(handle) }
    ready fn cuCtxFromGreenCtx(out: Out<Handle>, handle: Handle) { out.put(get(handle)?.context.handle) }
    call fn cuGreenCtxStreamCreate(out: Out<Handle>, green: Handle, flags: u32, priority: i32) { create_stream(out, green, flags, priority) }
    call fn cuGreenCtxRecordEvent(handle: Handle, event: Handle) {
        let green = get(handle)?;
        event::record_all(green.device, Some(green.id), event)
    }
    call fn cuGreenCtxWaitEvent(handle: Handle, event: Handle) {
        let green = get(handle)?;
        event::wait_in_all(green.device, Some(green.id), event)
    }
    ready fn cuGreenCtxGetId(handle: Handle, out: Out<u64>) {
        let green = match handle.is_null() {
            true => context::current()?.green().cloned().ok_or(CUDA_ERROR_INVALID_CONTEXT)?,
            false => get(handle)?,
        };
        out.put(green.context.id)
    }
    ready fn cuStreamGetGreenCtx(stream: Handle, out: Out<Handle>) {
        out.put(stream::green(stream)?.map_or(Handle::NULL, |green| green.handle()))
    }
    call fn cuCtxRecordEvent(handle: Handle, event: Handle) {
        let context = context::given_or_current(handle)?;
        context.usable()?;
        event::record_all(context.device, context.green().map(|green| green.id), event)
    }
    call fn cuCtxWaitEvent(handle: Handle, event: Handle) {
        let context = context::given_or_current(handle)?;
        context.usable()?;
        event::wait_in_all(context.device, context.green().map(|green| green.id), event)
    }
}
