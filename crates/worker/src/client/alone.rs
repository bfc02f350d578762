//! Requests that a driver makes with a GPU to itself: it waits for all that the GPU has to do, and takes nothing more for it
//! meanwhile. To load code is one (`benches/gpu/probes/waiting.py` tells of each call).
//!
//! By itself such a call holds up the thread that makes it, and those that use the same GPU. Here one thread makes the calls of
//! all, also those that the GPU's work [may wait for](Client::work_needs_requests): a kernel on another GPU that was not launched
//! yet, a value that another thread is to write. So where that may be, who asks waits until the GPU has nothing to do, and others
//! go on. And nothing is loaded for a launch: kernels of modules are loaded with these, those of libraries when they are looked up,
//! and those of an image with several GPUs before its program runs. Elsewhere kernels of modules are loaded when they are looked up,
//! for a kernel that runs may wait for what the program does once it has launched another; those of libraries when they are first
//! used, as by a driver.

use std::time::{Duration, Instant};

use rekindle_cuda::CUDA_ERROR_UNKNOWN;
use rekindle_device::{KernelSettings, ModuleKind};
use rekindle_protocol::operation::{
    ContextReset, FunctionGet, FunctionSet, Id, LimitSet, ModuleLoad, ModuleUnload, Origin, Synchronous,
    dispatch, encode_reply,
};
use serde::Deserialize;

use super::{Client, FunctionObject, ModuleObject};

/// A GPU that others give work again and again is not waited for any longer.
const LONGEST: Duration = Duration::from_secs(5);

/// A request that was taken from its ring.
pub(crate) struct Request {
    pub origin: Origin,
    pub opcode: u32,
    pub body: Vec<u8>,
    pub trailer: Vec<u8>,
}

impl Client {
    /// The GPU that a request has to itself, where others of the program must not be held up by that.
    #[inline]
    pub(crate) fn alone_on(&self, opcode: u32, body: &[u8]) -> Option<usize> {
        if self.work_needs_requests() { self.alone_with(opcode, body) } else { None }
    }

    fn alone_with(&self, opcode: u32, body: &[u8]) -> Option<usize> {
        fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Option<T> {
            postcard::from_bytes(body).ok()
        }
        let of_module = |id: Id| self.modules.get(id).ok().map(|module| module.device);
        let device = |device: u8| Some(usize::from(device));
        match opcode {
            ModuleLoad::OPCODE => device(read::<ModuleLoad<'_>>(body)?.device),
            ModuleUnload::OPCODE => of_module(read::<ModuleUnload>(body)?.id),
            FunctionGet::OPCODE => {
                let FunctionGet { module, name, .. } = read(body)?;
                let object = self.modules.get(module).ok()?;
                let is_there = object.body.pieces().is_none_or(|pieces| pieces.piece(name).is_some());
                (!is_there).then_some(object.device)
            }
            FunctionSet::OPCODE => {
                let function = self.functions.get(read::<FunctionSet>(body)?.id).ok()?;
                function.handle.is_none().then_some(function.device)
            }
            LimitSet::OPCODE => device(read::<LimitSet>(body)?.device),
            ContextReset::OPCODE => device(read::<ContextReset>(body)?.device),
            _ => None,
        }
    }

    /// From now on work may wait for what the program asks for next: all is loaded that it may launch.
    pub(super) fn load_what_is_known(&mut self) {
        let modules: Vec<Id> = self.modules.iter().map(|(id, _)| id).collect();
        modules.into_iter().for_each(|module| self.load_kernels(module));
        let not_loaded = |(id, function): (Id, &FunctionObject)| function.handle.is_none().then_some(id);
        for function in self.functions.iter().filter_map(not_loaded).collect::<Vec<_>>() {
            // What keeps it from being loaded is told to who launches it.
            let _ = self.kernel(function);
        }
    }

    /// Loads all kernels of a module; of a library, one is loaded when it is looked up.
    pub(super) fn load_kernels(&mut self, id: Id) {
        let is_apart =
            |module: &ModuleObject| module.kind == ModuleKind::Module && module.body.pieces().is_some();
        if !self.modules.get(id).is_ok_and(is_apart) {
            return;
        }
        let kernels = self.prepared(id).map(|prepared| prepared.kernels()).unwrap_or_default();
        for kernel in kernels {
            let _ = self.piece(id, &kernel, &KernelSettings::default());
        }
    }

    /// Does a request when the GPU has nothing to do. None: its thread is answered later.
    pub(crate) fn do_alone(&mut self, device: usize, request: Request) -> Option<Vec<u8>> {
        self.do_alone_by(device, request, Instant::now() + LONGEST)
    }

    fn do_alone_by(&mut self, device: usize, request: Request, limit: Instant) -> Option<Vec<u8>> {
        match self.marks(device) {
            Err(code) => Some(encode_reply::<()>(&Err(code))),
            Ok(events) if events.is_empty() || Instant::now() >= limit => self.perform(&request),
            // What others enqueue meanwhile is waited for too. What the GPU has now always is: it may take as long as it takes.
            Ok(events) => {
                let origin = request.origin;
                self.wait_for(origin, device, events, move |client, result| match result {
                    Ok(()) => client.do_alone_by(device, request, limit),
                    Err(code) => Some(encode_reply::<()>(&Err(code))),
                });
                None
            }
        }
    }

    fn perform(&mut self, request: &Request) -> Option<Vec<u8>> {
        let Request { origin, opcode, body, trailer } = request;
        let failed = |client: &mut Client, name: &'static str, code| client.asynchronous_failure(name, code);
        dispatch(self, *origin, *opcode, body, trailer, failed).unwrap_or_else(|malformed| {
            log::error!("a request that had waited for its GPU: {malformed}");
            Some(encode_reply::<()>(&Err(CUDA_ERROR_UNKNOWN)))
        })
    }
}
