//! Contexts. The worker has one context for each device; every context of the program's on a device is a name for it.
//!
//! A device is opened with its first context and reset with its last: then everything that the program made on it is
//! gone, and its handles with it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_cuda::types::ContextParams;
use rekindle_cuda::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
};
use rekindle_protocol::operation::{ContextOpen, ContextReset, Id, LEGACY_STREAM, PER_THREAD_STREAM};

use crate::abi::{Handle, In, Out, Result};
use crate::export::exports;
use crate::green::Green;
use crate::{arena, genuine, lane, memory, session, stream, texture, thread};

pub struct Context {
    pub handle: Handle,
    pub id: u64,
    pub device: u8,
    primary: bool,
    active: AtomicBool,
    retained: AtomicU32,
    pub flags: AtomicU32,
    /// `CUfunc_cache` and `CUsharedconfig`: kept for the program to read back.
    pub cache: AtomicU32,
    pub banks: AtomicU32,
    /// Bit per device whose memory this context was allowed to reach.
    pub peers: AtomicU32,
    /// The green context that this is.
    green: OnceLock<Arc<Green>>,
}

static CONTEXTS: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn contexts() -> MutexGuard<'static, Vec<&'static Context>> {
    CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make(device: u8, primary: bool, genuine: Option<Handle>) -> &'static Context {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let context = Box::leak(Box::new(Context {
        handle: Handle::NULL,
        id,
        device,
        primary,
        active: AtomicBool::new(false),
        retained: AtomicU32::new(0),
        flags: AtomicU32::new(0),
        cache: AtomicU32::new(0),
        banks: AtomicU32::new(0),
        peers: AtomicU32::new(0),
        green: OnceLock::new(),
    }));
    context.handle = genuine.unwrap_or_else(|| Handle(std::ptr::from_ref(context) as usize));
    context
}

fn known(handle: Handle) -> Option<&'static Context> {
    contexts().iter().copied().find(|c| c.handle == handle)
}

/// The context with this handle. The runtime knows a primary context's handle from the driver's own table, perhaps
/// before it has asked us for it.
pub fn find(handle: Handle) -> Result<&'static Context> {
    if let Some(context) = known(handle) {
        return Ok(context);
    }
    for device in 0..session::get()?.welcome.devices.len() {
        primary(device as i32)?;
    }
    known(handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)
}

/// The device's primary context; made, but not activated, when it is first asked for.
fn primary(device: i32) -> Result<&'static Context> {
    let number = u8::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
    session::get()?.device(number.into())?;
    let known = contexts().iter().copied().find(|c| c.primary && c.device == number);
    if let Some(context) = known {
        return Ok(context);
    }
    let handle = genuine::primary_context(device)?;
    let mut contexts = contexts();
    if let Some(context) = contexts.iter().copied().find(|c| c.primary && c.device == number) {
        return Ok(context);
    }
    let context = make(number, true, handle);
    contexts.push(context);
    Ok(context)
}

/// The calling thread's current context, if it has one.
pub fn current_if_any() -> Option<&'static Context> {
    thread::current().contexts.borrow().last().copied().flatten()
}

/// The calling thread's current context, alive and without a sticky error.
pub fn current() -> Result<&'static Context> {
    let context = current_if_any().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    context.usable()?;
    Ok(context)
}

/// The current context's device.
pub fn device() -> Result<u8> {
    current().map(|context| context.device)
}

impl Context {
    pub fn green(&self) -> Option<&Arc<Green>> {
        self.green.get()
    }

    pub fn set_green(&self, green: Arc<Green>) {
        let _ = self.green.set(green);
    }

    /// The context that memory and streams belong to which are made here: of a green one, the primary one.
    pub fn owner(&'static self) -> &'static Context {
        let primary = || contexts().iter().copied().find(|c| c.primary && c.device == self.device);
        if self.green().is_some() { primary().unwrap_or(self) } else { self }
    }

    /// What a null stream means here.
    pub fn default_stream(&self) -> Id {
        self.green().map_or(LEGACY_STREAM, |green| green.default)
    }

    /// What the stream of the calling thread means here. A green context has one for all threads.
    pub fn thread_stream(&self) -> Id {
        self.green().map_or(PER_THREAD_STREAM, |green| green.default)
    }

    pub fn usable(&self) -> Result<()> {
        if !self.active.load(Ordering::Acquire) {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        session::get()?.sticky_error(self.device)
    }

    fn activate(&self) -> Result<()> {
        if !self.active.load(Ordering::Acquire) {
            lane::ask(&ContextOpen { device: self.device })?;
            self.active.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Ends this context, and with the last one of the device all that was made there.
    fn deactivate(&'static self) -> Result<()> {
        self.active.store(false, Ordering::Release);
        memory::forget(|allocation| allocation.context == self.id)?;
        let last = !contexts().iter().any(|c| c.device == self.device && c.active.load(Ordering::Acquire));
        if last {
            reset_device(self.device)?;
        }
        Ok(())
    }
}

fn reset_device(device: u8) -> Result<()> {
    memory::forget(|allocation| allocation.device == device)?;
    arena::remove_device(device);
    stream::forget_device(device);
    texture::forget_device(device);
    lane::ask(&ContextReset { device })
}

/// Does something in each primary context that the program uses, as its current one.
pub fn in_each_primary(body: impl Fn()) {
    let is_used = |context: &&Context| context.primary && context.active.load(Ordering::Acquire);
    let used: Vec<&'static Context> = contexts().iter().copied().filter(is_used).collect();
    for context in used {
        set_top(Some(context));
        body();
    }
    set_top(None);
}

fn set_top(context: Option<&'static Context>) {
    let mut stack = thread::current().contexts.borrow_mut();
    stack.pop();
    stack.push(context);
}

/// `null` means the current context.
pub fn given_or_current(handle: Handle) -> Result<&'static Context> {
    if handle.is_null() { current() } else { find(handle) }
}

/// Multiprocessors that a context is to have are MPS's to give.
fn without_affinities(count: i32) -> Result<()> {
    if count == 0 { Ok(()) } else { Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY) }
}

fn create(out: Out<Handle>, flags: u32, device: i32) -> Result<()> {
    out.check()?;
    let number = u8::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
    session::get()?.device(number.into())?;
    let context = make(number, false, None);
    context.flags.store(flags, Ordering::Relaxed);
    context.activate()?;
    contexts().push(context);
    thread::current().contexts.borrow_mut().push(Some(context));
    out.put(context.handle)
}

fn release_primary(device: i32) -> Result<()> {
    let context = primary(device)?;
    let released = context.retained.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
    match released {
        Err(_) => Err(CUDA_ERROR_INVALID_CONTEXT),
        Ok(1) => context.deactivate(),
        Ok(_) => Ok(()),
    }
}

/// Has the device's memory usable, whatever context is current.
pub fn open(device: u8) -> Result<()> {
    lane::ask(&ContextOpen { device })
}

/// A context for a green one, which keeps the primary one alive.
pub fn retain_for_green(device: u8) -> Result<&'static Context> {
    let primary = primary(device.into())?;
    primary.activate()?;
    primary.retained.fetch_add(1, Ordering::AcqRel);
    let context = make(device, false, None);
    context.active.store(true, Ordering::Release);
    contexts().push(context);
    Ok(context)
}

/// Ends the context of a green one.
pub fn release_green(context: &'static Context) -> Result<()> {
    context.active.store(false, Ordering::Release);
    contexts().retain(|c| c.handle != context.handle);
    release_primary(context.device.into())
}

fn reset_primary(device: i32) -> Result<()> {
    let context = primary(device)?;
    if !context.active.load(Ordering::Acquire) {
        return Ok(());
    }
    for green in contexts().extract_if(.., |c| c.device == context.device && c.green().is_some()) {
        green.active.store(false, Ordering::Release);
        green.green().inspect(|green| green.forget());
    }
    context.retained.store(0, Ordering::Release);
    context.deactivate()
}

fn set_primary_flags(device: i32, flags: u32) -> Result<()> {
    if flags & !0xff != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    primary(device)?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

exports! {
    call fn cuDevicePrimaryCtxRetain(out: Out<Handle>, device: i32) {
        out.check()?;
        let context = primary(device)?;
        context.activate()?;
        session::get()?.sticky_error(context.device)?;
        context.retained.fetch_add(1, Ordering::AcqRel);
        out.put(context.handle)
    }
    call fn cuDevicePrimaryCtxRelease(device: i32) { release_primary(device) }
    call fn cuDevicePrimaryCtxRelease_v2(device: i32) { release_primary(device) }
    call fn cuDevicePrimaryCtxReset(device: i32) { reset_primary(device) }
    call fn cuDevicePrimaryCtxReset_v2(device: i32) { reset_primary(device) }
    ready fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        if primary(device)?.active.load(Ordering::Acquire) && primary(device)?.flags.load(Ordering::Relaxed) != flags {
            return Err(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
        }
        set_primary_flags(device, flags)
    }
    ready fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) { set_primary_flags(device, flags) }
    ready fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let number = u8::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
        session::get()?.device(number.into())?;
        let known = contexts().iter().copied().find(|c| c.primary && c.device == number);
        flags.put(known.map_or(0, |c| c.flags.load(Ordering::Relaxed)))?;
        active.put(known.is_some_and(|c| c.active.load(Ordering::Acquire)).into())
    }

    call fn cuCtxCreate_v2(out: Out<Handle>, flags: u32, device: i32) { create(out, flags, device) }
    call fn cuCtxCreate_v3(out: Out<Handle>, _affinity: Handle, affinities: i32, flags: u32, device: i32) {
        without_affinities(affinities)?;
        create(out, flags, device)
    }
    call fn cuCtxCreate_v4(out: Out<Handle>, parameters: In<ContextParams>, flags: u32, device: i32) {
        if !parameters.is_null() {
            let given = parameters.get()?;
            without_affinities(given.affinity_count)?;
            if !given.graphics.is_null() {
                return Err(rekindle_cuda::CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        create(out, flags, device)
    }
    call fn cuCtxDestroy_v2(handle: Handle) {
        let context = find(handle)?;
        if context.primary || context.green().is_some() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        contexts().retain(|c| c.handle != handle);
        let mut stack = thread::current().contexts.borrow_mut();
        if stack.last().copied().flatten().is_some_and(|c| c.handle == handle) {
            stack.pop();
        }
        drop(stack);
        context.deactivate()
    }
    ready fn cuCtxPushCurrent_v2(handle: Handle) {
        let context = find(handle)?;
        thread::current().contexts.borrow_mut().push(Some(context));
        Ok(())
    }
    ready fn cuCtxPopCurrent_v2(out: Out<Handle>) {
        let popped = thread::current().contexts.borrow_mut().pop().flatten().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        out.offer(popped.handle);
        Ok(())
    }
    ready fn cuCtxSetCurrent(handle: Handle) {
        if handle.is_null() {
            thread::current().contexts.borrow_mut().pop();
        } else if current_if_any().is_none_or(|c| c.handle != handle) {
            set_top(Some(find(handle)?));
        }
        Ok(())
    }
    ready fn cuCtxGetCurrent(out: Out<Handle>) {
        out.put(current_if_any().map_or(Handle::NULL, |c| c.handle))
    }
    ready fn cuCtxGetDevice(out: Out<i32>) {
        out.put(current_if_any().ok_or(CUDA_ERROR_INVALID_CONTEXT)?.device.into())
    }
    ready fn cuCtxGetDevice_v2(out: Out<i32>, handle: Handle) {
        let context = match current_if_any() {
            Some(context) if handle.is_null() || context.handle == handle => context,
            None if handle.is_null() => return Err(CUDA_ERROR_INVALID_CONTEXT),
            _ => find(handle)?,
        };
        out.put(context.device.into())
    }
    ready fn cuCtxGetId(handle: Handle, out: Out<u64>) { out.put(given_or_current(handle)?.id) }
    ready fn cuCtxGetApiVersion(handle: Handle, out: Out<u32>) {
        given_or_current(handle)?;
        out.put(3020)
    }
    ready fn cuCtxAttach(out: Out<Handle>, flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        out.put(current()?.handle)
    }
    ready fn cuCtxDetach(handle: Handle) { find(handle).map(drop) }
}
