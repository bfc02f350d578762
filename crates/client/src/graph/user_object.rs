//! User objects: resources of the program's that live as long as the graphs which use them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;

use crate::abi::{Handle, Out, Result};
use crate::arena::{self, Kind, Object};
use crate::export::exports;

use super::Graph;

/// What is counted: when nobody holds it any more, the program's function is called.
pub struct Resource {
    data: usize,
    destroy: extern "C" fn(*mut c_void),
}

impl Drop for Resource {
    fn drop(&mut self) {
        (self.destroy)(self.data as *mut c_void);
    }
}

struct UserObject {
    resource: Mutex<Option<Arc<Resource>>>,
    /// References of the program's own.
    count: AtomicU32,
}

impl Object for UserObject {
    const KIND: Kind = Kind::UserObject;
    fn device(&self) -> Option<u8> {
        None
    }
}

fn change(handle: Handle, by: impl Fn(u32) -> Option<u32>) -> Result<()> {
    let object = arena::get::<UserObject>(handle)?;
    let changed = object.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, by);
    changed.map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if object.count.load(Ordering::Acquire) == 0 {
        arena::remove::<UserObject>(handle)?;
        // Graphs may hold the resource still.
        let last = object.resource.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(last);
    }
    Ok(())
}

fn release(handle: Handle, count: u32) -> Result<()> {
    change(handle, |n| n.checked_sub(count))
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which must be given.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the references are the caller's own.
const MOVE: u32 = 1;

exports! {
    ready fn cuUserObjectCreate(out: Out<Handle>, data: usize, destroy: Option<extern "C" fn(*mut c_void)>, count: u32, flags: u32) {
        out.check()?;
        let destroy = destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if count == 0 || flags != NO_DESTRUCTOR_SYNC {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let resource = Mutex::new(Some(Arc::new(Resource { data, destroy })));
        out.put(arena::insert(UserObject { resource, count: AtomicU32::new(count) })?)
    }
    ready fn cuUserObjectRetain(handle: Handle, count: u32) {
        change(handle, |n| if n == 0 || count == 0 { None } else { n.checked_add(count) })
    }
    ready fn cuUserObjectRelease(handle: Handle, count: u32) { release(handle, count) }
    ready fn cuGraphRetainUserObject(graph: Handle, handle: Handle, count: u32, flags: u32) {
        if count == 0 || flags & !MOVE != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let graph = arena::get::<Graph>(graph)?;
        let object = arena::get::<UserObject>(handle)?;
        let resource = object.resource.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let resource = resource.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        graph.state().held.objects.push((handle, resource, count));
        if flags == MOVE { release(handle, count) } else { Ok(()) }
    }
    ready fn cuGraphReleaseUserObject(graph: Handle, handle: Handle, count: u32) {
        let graph = arena::get::<Graph>(graph)?;
        let released = {
            let mut state = graph.state();
            let entry = state.held.objects.iter().position(|(held, _, n)| *held == handle && *n >= count);
            let entry = entry.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            state.held.objects[entry].2 -= count;
            (state.held.objects[entry].2 == 0).then(|| state.held.objects.swap_remove(entry))
        };
        drop(released);
        Ok(())
    }
}
