//! `cuLink*`: inputs are collected here and linked by the device in one step.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{
    CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CuResult,
};
use rekindle_protocol::operation::{Link, LinkPart};

use crate::abi::{Handle, In, Out, Result, Text};
use crate::arena::{self, Kind, Object};
use crate::export::exports;
use crate::{context, lane, session};

use super::options::Options;
use super::{IN_RING, code};

struct Linker {
    device: u8,
    state: Mutex<State>,
}

struct State {
    options: Options,
    parts: Vec<LinkPart>,
    bytes: Vec<u8>,
    /// The result, which the program may read until it destroys the linker.
    linked: Option<Box<[u8]>>,
}

// SAFETY: the addresses in `options` are the program's log buffers, written only within calls that it makes.
unsafe impl Send for State {}

impl Object for Linker {
    const KIND: Kind = Kind::Link;
    fn device(&self) -> Option<u8> {
        Some(self.device)
    }
}

fn state(handle: Handle) -> Result<MutexGuard<'static, State>> {
    Ok(arena::get::<Linker>(handle)?.state.lock().unwrap_or_else(PoisonError::into_inner))
}

fn add(handle: Handle, kind: u32, name: &str, bytes: &[u8]) -> Result<()> {
    let mut state = state(handle)?;
    if bytes.is_empty() || state.linked.is_some() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    state.parts.push(LinkPart { kind, name: name.to_owned(), bytes: bytes.len() as u64 });
    state.bytes.extend_from_slice(bytes);
    Ok(())
}

fn complete(device: u8, state: &mut State) -> Result<()> {
    let parts = std::mem::take(&mut state.parts);
    let options = state.options.scalars().to_vec();
    let bytes = std::mem::take(&mut state.bytes);
    let linked = if bytes.len() <= IN_RING {
        lane::ask_with(&Link { device, parts, shared: "", options }, &bytes)?
    } else {
        let shared = code::write_shared(&bytes)?;
        lane::ask(&Link { device, parts, shared: &shared, options })?
    };
    let result = CuResult(linked.status).ok();
    state.options.answer(result.is_ok(), &linked.log);
    result?;
    let path = session::get()?.directory.join(&linked.name);
    let code = std::fs::read(&path).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    let _ = std::fs::remove_file(&path);
    state.linked = Some(code.into_boxed_slice());
    Ok(())
}

exports! {
    ready fn cuLinkCreate_v2(count: u32, options: In<i32>, values: In<usize>, out: Out<Handle>) {
        out.check()?;
        let device = context::device()?;
        let options = Options::new(count, options, values)?;
        let state = State { options, parts: Vec::new(), bytes: Vec::new(), linked: None };
        out.put(arena::insert(Linker { device, state: Mutex::new(state) })?)
    }
    ready fn cuLinkAddData_v2(linker: Handle, kind: u32, data: In<u8>, size: usize, name: Text, _count: u32, _options: In<i32>, _values: In<usize>) {
        add(linker, kind, name.or_empty(), data.slice(size)?)
    }
    ready fn cuLinkAddFile_v2(linker: Handle, kind: u32, path: Text, _count: u32, _options: In<i32>, _values: In<usize>) {
        let path = path.get()?;
        add(linker, kind, path, &std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?)
    }
    call fn cuLinkComplete(linker: Handle, out: Out<*const u8>, size: Out<usize>) {
        out.check()?;
        let device = arena::get::<Linker>(linker)?.device;
        let mut state = state(linker)?;
        if state.linked.is_none() {
            complete(device, &mut state)?;
        }
        let linked = state.linked.as_deref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        size.offer(linked.len());
        out.put(linked.as_ptr())
    }
    ready fn cuLinkDestroy(linker: Handle) { arena::remove::<Linker>(linker).map(drop) }
}
