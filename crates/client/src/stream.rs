//! Streams: handles to places where work is done in order, and what a stream can be asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY};
use rekindle_device::Capture;
use rekindle_protocol::operation::{
    CaptureStatus, FIRST_STREAM, Id, IpcEventWait, StreamAwait, StreamCreate, StreamDestroy, StreamQuery,
    StreamRoom, StreamSynchronize, StreamWaitEvent,
};

use crate::abi::{Handle, In, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::event::Event;
use crate::export::{PER_THREAD, exports};
use crate::green::Green;
use crate::refusal::refused;
use crate::{capture, context, lane, quiesce, session};

pub struct Stream {
    id: Id,
    device: u8,
    context: Handle,
    flags: u32,
    priority: i32,
    attributes: Mutex<HashMap<u32, [u8; 64]>>,
    /// Whose multiprocessors it has; none: all.
    green: Option<Arc<Green>>,
}

impl Object for Stream {
    const KIND: Kind = Kind::Stream;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

/// Where work goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamTarget {
    pub device: u8,
    pub id: Id,
}

static NEXT: AtomicU32 = AtomicU32::new(FIRST_STREAM);

/// The stream that a handle means; the default streams are those of the current context's device. Fails where the
/// device has a sticky error.
pub fn resolve(handle: Handle) -> Result<StreamTarget> {
    let target = match handle.0 {
        0 | 1 => {
            let context = context::current()?;
            return Ok(StreamTarget { device: context.device, id: context.default_stream() });
        }
        2 => {
            let context = context::current()?;
            return Ok(StreamTarget { device: context.device, id: context.thread_stream() });
        }
        _ => {
            let stream = arena::get::<Stream>(handle)?;
            if let Some(green) = &stream.green {
                green.usable()?;
            }
            StreamTarget { device: stream.device, id: stream.id }
        }
    };
    session::get()?.sticky_error(target.device)?;
    Ok(target)
}

/// As [`resolve`], for work: it waits while the stream has as much to do as it takes, unless the call was made from within another
/// one.
pub fn enter(handle: Handle) -> Result<StreamTarget> {
    let target = resolve(handle)?;
    if session::get()?.board.is_deep(target.id) {
        await_room(target)?;
    }
    Ok(target)
}

#[cold]
fn await_room(target: StreamTarget) -> Result<()> {
    let StreamTarget { device, id: stream } = target;
    lane::be_heard()?;
    // What is captured is not done.
    while session::get()?.board.is_full(stream)
        && quiesce::may_step_outside()
        && capture(target)?.status == 0
        && !lane::ask(&StreamRoom { device, stream })?
    {
        quiesce::step_outside();
    }
    Ok(())
}

/// Whether a handle is that of a stream that was made and is there.
pub fn check(handle: Handle) -> Result<()> {
    arena::get::<Stream>(handle).map(drop)
}

/// Waits for the stream's work; asynchronous errors come out here.
pub fn synchronize(target: StreamTarget) -> Result<()> {
    let StreamTarget { device, id: stream, .. } = target;
    if !lane::is_idle(target)? {
        lane::wait_for(&StreamAwait { device, stream }, &StreamSynchronize { device, stream })?;
    }
    session::get()?.take_error(target.device)
}

/// Whether the stream is being captured. No question to the worker while nothing is.
pub fn capture(target: StreamTarget) -> Result<Capture> {
    if !capture::any() {
        return Ok(Capture { status: 0, id: 0 });
    }
    lane::ask(&CaptureStatus { device: target.device, stream: target.id })
}

/// Nothing of the device's default streams outlives its reset: captures under way there are over.
pub fn forget_device(device: u8) {
    capture::forget_device(device);
}

fn create(out: Out<Handle>, flags: u32, priority: i32) -> Result<()> {
    out.check()?;
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let context = context::current()?;
    if let Some(green) = context.green() {
        if flags != NON_BLOCKING {
            return Err(refused(
                "cuStreamCreate",
                "a stream that waits for the default stream cannot be made in a green context; make it with \
                 CU_STREAM_NON_BLOCKING",
            ));
        }
        return out.put(create_green(green, priority)?);
    }
    let device = context.device;
    let (least, greatest) = session::get()?.device(device.into())?.stream_priorities;
    let priority = priority.clamp(greatest.min(least), least.max(greatest));
    let id = new_id();
    lane::post(&StreamCreate { device, id, flags, priority }, &[])?;
    let attributes = Mutex::default();
    out.put(arena::insert(Stream {
        id,
        device,
        context: context.handle,
        flags,
        priority,
        attributes,
        green: None,
    })?)
}

pub fn new_id() -> Id {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A stream of a green context.
pub fn create_green(green: &Arc<Green>, priority: i32) -> Result<Handle> {
    let (context, device) = (green.context.handle, green.context.device);
    let (least, greatest) = session::get()?.device(device.into())?.stream_priorities;
    let priority = priority.clamp(greatest.min(least), least.max(greatest));
    let id = green.make_stream(priority)?;
    let (attributes, green) = (Mutex::default(), Some(green.clone()));
    arena::insert(Stream { id, device, context, flags: NON_BLOCKING, priority, attributes, green })
}

/// The green context that a stream belongs to.
pub fn green(handle: Handle) -> Result<Option<Arc<Green>>> {
    match handle.0 {
        0..=2 => Ok(context::current()?.green().cloned()),
        _ => Ok(arena::get::<Stream>(handle)?.green.clone()),
    }
}

fn destroy(handle: Handle) -> Result<()> {
    if handle.0 <= 2 {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    if let Some(green) = &arena::get::<Stream>(handle)?.green {
        green.usable()?;
    }
    let stream = arena::remove::<Stream>(handle)?;
    if let Some(green) = &stream.green {
        green.forget_stream(stream.id);
    }
    lane::post(&StreamDestroy { id: stream.id }, &[])
}

/// What is known of a stream: flags, priority, its context's handle, an id that no other stream has.
fn facts(handle: Handle) -> Result<(u32, i32, Handle, u64)> {
    match handle.0 {
        0..=2 => {
            let context = context::current()?;
            Ok((0, 0, context.handle, context.id << 32 | (handle.0 as u64).saturating_sub(1)))
        }
        _ => {
            let stream = arena::get::<Stream>(handle)?;
            Ok((stream.flags, stream.priority, stream.context, u64::from(stream.id) + 1))
        }
    }
}

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

/// `CU_STREAM_ATTRIBUTE_PRIORITY`.
const PRIORITY: u32 = 8;

fn is_attribute(attribute: u32) -> bool {
    matches!(attribute, 1 | 3 | PRIORITY | 9 | 10)
}

exports! {
    call fn cuStreamCreate(out: Out<Handle>, flags: u32) { create(out, flags, 0) }
    call fn cuStreamCreateWithPriority(out: Out<Handle>, flags: u32, priority: i32) { create(out, flags, priority) }
    call fn cuStreamDestroy_v2(handle: Handle) { destroy(handle) }
    call fn cuStreamSynchronize | cuStreamSynchronize_ptsz [stream] (stream: Handle) { synchronize(resolve(stream)?) }
    call fn cuStreamQuery | cuStreamQuery_ptsz [stream] (stream: Handle) {
        let target = resolve(stream)?;
        let done =
            lane::is_idle(target)? || lane::ask(&StreamQuery { device: target.device, stream: target.id })?;
        session::get()?.take_error(target.device)?;
        if done { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    }
    call fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz [stream] (stream: Handle, event: Handle, flags: u32) {
        if flags > 1 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (target, event) = (enter(stream)?, arena::get::<Event>(event)?);
        if event.is_interprocess() {
            return lane::ask(&IpcEventWait { device: target.device, stream: target.id, event: event.id });
        }
        lane::post(&StreamWaitEvent { device: target.device, stream: target.id, event: event.id, flags }, &[])
    }
    ready fn cuStreamGetFlags | cuStreamGetFlags_ptsz [stream] (stream: Handle, out: Out<u32>) { out.put(facts(stream)?.0) }
    ready fn cuStreamGetPriority | cuStreamGetPriority_ptsz [stream] (stream: Handle, out: Out<i32>) { out.put(facts(stream)?.1) }
    ready fn cuStreamGetCtx | cuStreamGetCtx_ptsz [stream] (stream: Handle, out: Out<Handle>) { out.put(facts(stream)?.2) }
    ready fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz [stream] (stream: Handle, out: Out<Handle>, green: Out<Handle>) {
        let (known, of) = (self::green(stream)?, facts(stream)?.2);
        if known.is_some() && stream == PER_THREAD {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        green.offer(known.as_ref().map_or(Handle::NULL, |green| green.handle()));
        out.put(known.map_or(of, |green| green.context.owner().handle))
    }
    ready fn cuStreamGetId | cuStreamGetId_ptsz [stream] (stream: Handle, out: Out<u64>) { out.put(facts(stream)?.3) }
    ready fn cuStreamGetDevice | cuStreamGetDevice_ptsz [stream] (stream: Handle, out: Out<i32>) {
        out.put(resolve(stream)?.device.into())
    }
    ready fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz [stream] (stream: Handle, attribute: u32, out: Out<[u8; 64]>) {
        if !is_attribute(attribute) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut value = [0; 64];
        if stream.0 > 2 {
            let stream = arena::get::<Stream>(stream)?;
            if attribute == PRIORITY {
                value[..4].copy_from_slice(&stream.priority.to_ne_bytes());
            }
            let kept = stream.attributes.lock().unwrap_or_else(PoisonError::into_inner);
            value = kept.get(&attribute).copied().unwrap_or(value);
        }
        out.put(value)
    }
    ready fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz [stream] (stream: Handle, attribute: u32, value: In<[u8; 64]>) {
        if !is_attribute(attribute) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let value = value.get()?;
        if stream.0 > 2 {
            let stream = arena::get::<Stream>(stream)?;
            stream.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(attribute, value);
        }
        Ok(())
    }
    ready fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz [to] (to: Handle, from: Handle) {
        let (to, from) = (arena::get::<Stream>(to)?, arena::get::<Stream>(from)?);
        let values = from.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *to.attributes.lock().unwrap_or_else(PoisonError::into_inner) = values;
        Ok(())
    }
    ready fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz [stream] (stream: Handle, _address: u64, _bytes: usize, flags: u32) {
        if !matches!(flags, 1 | 2 | 4) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        resolve(stream).map(drop)
    }
}
