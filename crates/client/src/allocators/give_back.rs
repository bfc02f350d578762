//! Memory that torch's and CuPy's allocators have free is freed while the program rests, by their own calls: as if the program had
//! asked them to.

use std::ffi::CStr;

use super::{CUPY, TORCH};
use crate::python::{Held, Task, put};
use crate::{context, thread};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: what is freed disturbs no thread that captures a graph.
const RELAXED: u32 = 2;

/// Nothing is loaded that is not, and an allocator that has nothing free makes no CUDA call. CuPy's frees what it has on the current
/// device.
const SCRIPT: &CStr = cr#"
import sys

def give_back():
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.empty_cache()

def give_back_of_cupy():
    pool = getattr(sys.modules.get("cupy"), "get_default_memory_pool", None)
    if pool is not None:
        pool().free_all_blocks()

found = b""
for each in (give_back, give_back_of_cupy):
    try:
        each()
    except Exception:
        pass
"#;

struct GiveBack;

/// Has it done soon, if the program has such an allocator.
pub fn give_back() {
    if TORCH.is_loaded() || CUPY.is_loaded() {
        // Where there can be no thread for it, the memory stays in use.
        let _ = put(GiveBack);
    }
}

impl Task for GiveBack {
    fn run(&self, held: Option<&Held<'_>>) {
        let Some(held) = held else { return };
        thread::current().capture_mode.set(RELAXED);
        context::in_each_primary(|| drop(held.run(SCRIPT)));
    }
}
