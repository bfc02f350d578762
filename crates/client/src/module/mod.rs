//! Code that the program loads: modules of one device, libraries of all, and the kernels in them.

mod code;
mod function;
mod kernel;
mod library;
mod link;
mod options;
mod single;

pub use kernel::{DEVICES, Found, Kernel};
pub use link::{cuLinkAddData_v2, cuLinkAddFile_v2, cuLinkCreate_v2};
pub use single::functions;

use std::sync::atomic::{AtomicU32, Ordering};

use rekindle_cuda::{CUDA_ERROR_FILE_NOT_FOUND, CuResult};
use rekindle_device::ModuleKind;
use rekindle_protocol::operation::{CodeSource, Id, ModuleLoad};

use crate::abi::Result;
use crate::lane;

use code::Code;
use options::Options;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Code up to this size travels in the ring.
const IN_RING: usize = 64 << 10;

/// Loads code on a device; the module gets a new id.
fn load(device: u8, kind: ModuleKind, code: &Code, options: &Options) -> Result<Id> {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let ask = |source: CodeSource<'_>, trailer: &[u8]| {
        lane::ask_with(&ModuleLoad { device, id, kind, source, options: options.scalars().to_vec() }, trailer)
    };
    let bytes = code.bytes();
    let in_file = code.file().map(|file| {
        ask(CodeSource::File { path: &file.path, offset: file.offset, bytes: bytes.len() as u64 }, &[])
    });
    let loaded = match in_file {
        // The worker may not see the program's files: then it gets the bytes.
        Some(Ok(loaded)) if CuResult(loaded.status) != CUDA_ERROR_FILE_NOT_FOUND => loaded,
        Some(Err(code)) if code != CUDA_ERROR_FILE_NOT_FOUND => return Err(code),
        _ if bytes.len() <= IN_RING => ask(CodeSource::Trailer, bytes)?,
        _ => {
            let name = code::write_shared(bytes)?;
            ask(CodeSource::Shared { name: &name, bytes: bytes.len() as u64 }, &[])?
        }
    };
    let result = CuResult(loaded.status).ok();
    options.answer(result.is_ok(), &loaded.log);
    result.map(|()| id)
}
