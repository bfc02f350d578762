//! Handles: the addresses of slots in one reserved range.
//!
//! A handle that the program makes up, or keeps after destroying its object, is recognised: it lies outside, or between
//! slots, or its slot holds nothing or another kind. A destroyed object's memory and slot are kept back until
//! [`KEPT`] more were destroyed, so that a thread which uses a handle while another destroys it reads a stale object,
//! never freed memory.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_OUT_OF_MEMORY};

use crate::abi::{Handle, Result};

const RANGE: usize = 256 << 20;
const KEPT: usize = 4096;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Stream = 1,
    Event,
    Module,
    Library,
    Kernel,
    Graph,
    Node,
    Exec,
    Physical,
    Pool,
    Link,
    UserObject,
    Array,
    Description,
    Green,
    MipmappedArray,
}

/// Something that the program has a handle of.
pub trait Object: Send + Sync + 'static {
    const KIND: Kind;
    /// The device whose reset ends this object, if any.
    fn device(&self) -> Option<u8>;
}

#[repr(C, align(64))]
struct Slot {
    kind: AtomicU32,
    /// The device plus one; 0 for none.
    device: AtomicU32,
    object: AtomicPtr<()>,
    /// A function that turns `object` back into its box.
    unbox: AtomicPtr<()>,
}

type Unbox = fn(*mut ()) -> Box<dyn Send>;

#[derive(Default)]
struct Store {
    used: usize,
    free: Vec<usize>,
    kept: VecDeque<(usize, Box<dyn Send>)>,
}

static STORE: Mutex<Option<Store>> = Mutex::new(None);

fn store() -> MutexGuard<'static, Option<Store>> {
    STORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The range's base; 0 where the system gave none.
fn base() -> usize {
    static BASE: OnceLock<usize> = OnceLock::new();
    *BASE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), RANGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED { 0 } else { base as usize }
    })
}

fn slot(address: usize) -> Option<&'static Slot> {
    let base = base();
    let offset = address.wrapping_sub(base);
    if base == 0 || offset >= RANGE || !offset.is_multiple_of(size_of::<Slot>()) {
        return None;
    }
    // SAFETY: the address is that of a slot inside the range, which is never unmapped; zero bytes are an empty slot.
    Some(unsafe { &*(address as *const Slot) })
}

fn unbox<T: Object>(object: *mut ()) -> Box<dyn Send> {
    // SAFETY: `insert::<T>` stored this function beside a pointer from `Box::<T>::into_raw`, and `retire` calls it once.
    unsafe { Box::from_raw(object.cast::<T>()) }
}

/// Takes an object in and gives its handle.
pub fn insert<T: Object>(object: T) -> Result<Handle> {
    let address = {
        let mut store = store();
        let store = store.get_or_insert_default();
        match store.free.pop() {
            Some(address) => address,
            None if base() != 0 && (store.used + 1) * size_of::<Slot>() <= RANGE => {
                store.used += 1;
                base() + (store.used - 1) * size_of::<Slot>()
            }
            None => return Err(CUDA_ERROR_OUT_OF_MEMORY),
        }
    };
    let slot = slot(address).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    slot.device.store(object.device().map_or(0, |d| u32::from(d) + 1), Ordering::Relaxed);
    slot.object.store(Box::into_raw(Box::new(object)).cast(), Ordering::Relaxed);
    slot.unbox.store(unbox::<T> as Unbox as *mut (), Ordering::Relaxed);
    slot.kind.store(T::KIND as u32, Ordering::Release);
    Ok(Handle(address))
}

/// The handle's object, if it is one of this kind. Not to be kept beyond the call.
pub fn get<T: Object>(handle: Handle) -> Result<&'static T> {
    let slot = slot(handle.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    if slot.kind.load(Ordering::Acquire) != T::KIND as u32 {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    // SAFETY: the kind says that `insert::<T>` stored this pointer; the object outlives its removal by far (see above).
    Ok(unsafe { &*slot.object.load(Ordering::Relaxed).cast::<T>() })
}

/// A handle of an object of this kind of which `which` says yes.
pub fn search<T: Object>(which: impl Fn(&T) -> bool) -> Option<Handle> {
    let used = store().get_or_insert_default().used;
    let handles = (0..used).map(|index| Handle(base() + index * size_of::<Slot>()));
    handles.into_iter().find(|handle| get::<T>(*handle).is_ok_and(&which))
}

/// Ends the handle. The object is there for this call still.
pub fn remove<T: Object>(handle: Handle) -> Result<&'static T> {
    let object = get::<T>(handle)?;
    let slot = slot(handle.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let ended = slot.kind.compare_exchange(T::KIND as u32, 0, Ordering::AcqRel, Ordering::Relaxed);
    ended.map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
    retire(handle.0, slot);
    Ok(object)
}

/// Ends every handle whose object belongs to the device.
pub fn remove_device(device: u8) {
    let used = store().get_or_insert_default().used;
    for index in 0..used {
        let address = base() + index * size_of::<Slot>();
        let Some(slot) = slot(address) else { return };
        if slot.device.load(Ordering::Relaxed) == u32::from(device) + 1
            && slot.kind.swap(0, Ordering::AcqRel) != 0
        {
            retire(address, slot);
        }
    }
}

fn retire(address: usize, slot: &Slot) {
    // SAFETY: `insert` stored a function of this type; only the caller, who has just ended the slot, comes here.
    let unbox: Unbox = unsafe { std::mem::transmute(slot.unbox.load(Ordering::Relaxed)) };
    let object = unbox(slot.object.load(Ordering::Relaxed));
    let mut store = store();
    let store = store.get_or_insert_default();
    store.kept.push_back((address, object));
    let oldest = if store.kept.len() > KEPT { store.kept.pop_front() } else { None };
    if let Some((address, _object)) = oldest {
        store.free.push(address);
    }
}

#[cfg(test)]
mod tests {
    use rekindle_cuda::CUDA_ERROR_INVALID_HANDLE;

    use super::*;

    struct Thing(u64);
    impl Object for Thing {
        const KIND: Kind = Kind::Pool;
        fn device(&self) -> Option<u8> {
            None
        }
    }
    struct Other;
    impl Object for Other {
        const KIND: Kind = Kind::Link;
        fn device(&self) -> Option<u8> {
            Some(7)
        }
    }

    #[test]
    fn bad_handles_are_recognised() {
        let handle = insert(Thing(5)).unwrap();
        assert_eq!(get::<Thing>(handle).unwrap().0, 5);
        assert_eq!(get::<Other>(handle).err(), Some(CUDA_ERROR_INVALID_HANDLE));
        for bad in [0, 1, 2, handle.0 + 8, handle.0 + 64 * 100_000, usize::MAX] {
            assert_eq!(get::<Thing>(Handle(bad)).err(), Some(CUDA_ERROR_INVALID_HANDLE));
        }
        assert_eq!(remove::<Thing>(handle).unwrap().0, 5);
        assert!(remove::<Thing>(handle).is_err());
        assert!(get::<Thing>(handle).is_err());
    }

    #[test]
    fn a_device_takes_its_objects_along() {
        let (mine, other) = (insert(Other).unwrap(), insert(Thing(1)).unwrap());
        remove_device(7);
        assert!(get::<Other>(mine).is_err());
        assert!(get::<Thing>(other).is_ok());
    }

    #[test]
    fn slots_are_used_again_after_many_more() {
        let first = insert(Thing(0)).unwrap();
        remove::<Thing>(first).unwrap();
        let later: Vec<Handle> = (0..2 * KEPT as u64)
            .map(|n| {
                let handle = insert(Thing(n)).unwrap();
                remove::<Thing>(handle).unwrap();
                handle
            })
            .collect();
        assert!(later[..KEPT - 64].iter().all(|handle| *handle != first));
    }
}
