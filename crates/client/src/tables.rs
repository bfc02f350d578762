//! Entries of the driver's private tables that are ours: those about objects that the real driver does not know.
//!
//! | table | who asks for it | entries that are ours |
//! | --- | --- | --- |
//! | `c693336e` | the CUDA runtime | context-local storage: put, delete, get |
//! | `6e163fbe` | cuFFT | 7: the functions of a module |
//! | `21318c60` | cuBLAS, cuBLASLt | 51: what tells a stream from others, default streams too |
//! | `cd3ea2c6` | cuSPARSELt | 1: what a device has, which the driver wants a context for: the worker's is asked |
//! | `69a28e9f` | NVML | 24, 25: a lock of the driver's, for which that is [attached](nvml) |
//!
//! All other entries stay the driver's own. What these do was measured on driver 580.
//!
//! CUPTI, by which profilers see kernels, asks for four more tables. A program that has them can no longer be detached
//! from the driver, and sees no kernels all the same, since those run in the worker: they [are not given](is_profilers), and
//! CUPTI does not find the driver [by itself](crate::found_first).

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_HANDLE};
use rekindle_protocol::operation::DeviceFeature;

use crate::abi::{Handle, Out};
use crate::genuine::TableId;
use crate::{context, device, export, lane, module, nvml, stream, thread};

type Table = *const *const c_void;

/// How the ids of CUPTI's own tables begin.
const PROFILERS: [[u8; 4]; 4] =
    [[0x2c, 0x8e, 0x0a, 0xd8], [0xb1, 0x05, 0x41, 0xe1], [0xd7, 0xbd, 0x8a, 0xf8], [0xf6, 0xd3, 0xf4, 0xd9]];

/// Whether the table is one by which profilers attach themselves to the driver.
pub fn is_profilers(id: &TableId) -> bool {
    PROFILERS.iter().any(|begin| id.starts_with(begin))
}

/// Whether the table is the one by which NVML and the driver know of each other.
pub fn is_nvmls(id: &TableId) -> bool {
    id.starts_with(&[0x69, 0xa2, 0x8e, 0x9f])
}

/// Its entries. What they are in one that has others is not known.
const NVMLS: usize = 34;

/// The driver's table, or a copy of it in which some entries are ours.
pub fn with_ours(id: &TableId, genuine: Table) -> Table {
    static LOCAL_STORAGE: OnceLock<Vec<usize>> = OnceLock::new();
    static MODULES: OnceLock<Vec<usize>> = OnceLock::new();
    static STREAMS: OnceLock<Vec<usize>> = OnceLock::new();
    static FEATURES: OnceLock<Vec<usize>> = OnceLock::new();
    static LOCKS: OnceLock<Vec<usize>> = OnceLock::new();
    match id[..4] {
        // Its entries begin at once: it does not say how many there are.
        [0xc6, 0x93, 0x33, 0x6e] => replaced(
            &LOCAL_STORAGE,
            genuine,
            8,
            &[
                (0, local_put as *const () as usize),
                (1, local_delete as *const () as usize),
                (2, local_get as *const () as usize),
            ],
        ),
        [0x6e, 0x16, 0x3f, 0xbe] => {
            replaced(&MODULES, genuine, entries(genuine), &[(7, module_functions as *const () as usize)])
        }
        [0x21, 0x31, 0x8c, 0x60] => {
            replaced(&STREAMS, genuine, entries(genuine), &[(51, stream_identity as *const () as usize)])
        }
        [0xcd, 0x3e, 0xa2, 0xc6] => {
            replaced(&FEATURES, genuine, entries(genuine), &[(1, device_feature as *const () as usize)])
        }
        [0x69, 0xa2, 0x8e, 0x9f] if entries(genuine) == NVMLS => {
            // SAFETY: the table has these entries, which are functions of such types.
            let [take, give_back] =
                [24, 25].map(|index| unsafe { std::mem::transmute(genuine.add(index).read()) });
            nvml::know_drivers(take, give_back);
            let ours = [
                (24, nvml::take_drivers as *const () as usize),
                (25, nvml::give_back_drivers as *const () as usize),
            ];
            replaced(&LOCKS, genuine, NVMLS, &ours)
        }
        _ => genuine,
    }
}

/// How many entries a table has that says so.
fn entries(genuine: Table) -> usize {
    // SAFETY: the table is the driver's own, and its first word is its size in bytes.
    unsafe { genuine.cast::<usize>().read() / size_of::<usize>() }
}

/// A copy of the first `count` entries; none are ours where the table is too short for them.
fn replaced(kept: &OnceLock<Vec<usize>>, genuine: Table, count: usize, ours: &[(usize, usize)]) -> Table {
    let table = kept.get_or_init(|| {
        // SAFETY: the driver's table has that many entries, each of a word.
        let mut table = unsafe { std::slice::from_raw_parts(genuine.cast::<usize>(), count) }.to_vec();
        for &(index, function) in ours {
            if let Some(entry) = table.get_mut(index) {
                *entry = function;
            }
        }
        table
    });
    table.as_ptr().cast()
}

/// Values that the runtime keeps under a context and a key.
static LOCAL: Mutex<Option<HashMap<(usize, usize), usize>>> = Mutex::new(None);

fn local() -> MutexGuard<'static, Option<HashMap<(usize, usize), usize>>> {
    LOCAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The context that a null handle means.
fn meant(context: Handle) -> usize {
    if context.is_null() { context::current_if_any().map_or(0, |c| c.handle.0) } else { context.0 }
}

extern "C" fn local_put(context: Handle, key: usize, value: usize, _destructor: usize) -> i32 {
    local().get_or_insert_default().insert((meant(context), key), value);
    0
}

extern "C" fn local_delete(context: Handle, key: usize) -> i32 {
    local().get_or_insert_default().remove(&(meant(context), key));
    0
}

extern "C" fn local_get(out: Out<usize>, context: Handle, key: usize) -> i32 {
    let value = local().get_or_insert_default().get(&(meant(context), key)).copied();
    match value {
        Some(value) => {
            out.offer(value);
            0
        }
        None => CUDA_ERROR_INVALID_HANDLE.0,
    }
}

/// Calls `found` with each function of a module, and returns how many there are.
extern "C" fn module_functions(
    _context: Handle,
    handle: Handle,
    found: extern "C" fn(*mut c_void, Handle),
    argument: *mut c_void,
) -> i32 {
    let mut functions = Vec::new();
    export::call("the driver's list of a module's functions", || {
        functions = module::functions(handle)?;
        Ok(())
    });
    for &function in &functions {
        found(argument, function);
    }
    functions.len() as i32
}

/// Gives a number that no other stream has at the time: a library keeps what belongs to a stream under it.
extern "C" fn stream_identity(context: Handle, stream: Handle, out: Out<usize>) -> i32 {
    export::ready("the driver's identity of a stream", || {
        let identity = match stream {
            export::PER_THREAD => ptr::from_ref(thread::current()).addr(),
            Handle(..=1) => meant(context),
            created => stream::check(created).map(|()| created.0)?,
        };
        if identity == 0 { Err(CUDA_ERROR_INVALID_HANDLE) } else { out.put(identity) }
    })
}

/// What the driver in the worker says; no, where nobody can be asked.
extern "C" fn device_feature(device: i32, feature: u32, _reserved: usize) -> i32 {
    let mut found = 0;
    export::call("the driver's features of a device", || {
        device::info(device)?;
        let device = u8::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
        context::open(device)?;
        found = lane::ask(&DeviceFeature { device, feature })?;
        Ok(())
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_profilers_are_told_from_others() {
        let mut id = [0; 16];
        assert!(!is_profilers(&id));
        id[..4].copy_from_slice(&[0xd7, 0xbd, 0x8a, 0xf8]);
        assert!(is_profilers(&id));
        id[0] ^= 1;
        assert!(!is_profilers(&id));
    }

    /// Which entries of a table that says its size are ours.
    fn ours(begin: [u8; 4], count: usize) -> Vec<usize> {
        let mut genuine: Vec<usize> = (1000..1000 + count).collect();
        genuine[0] = genuine.len() * size_of::<usize>();
        let mut id = [0; 16];
        id[..4].copy_from_slice(&begin);
        let given = with_ours(&id, genuine.as_ptr().cast());
        // SAFETY: the table, or the copy of it, has as many words.
        let given = unsafe { std::slice::from_raw_parts(given.cast::<usize>(), genuine.len()) };
        (0..genuine.len()).filter(|&index| given[index] != genuine[index]).collect()
    }

    #[test]
    fn only_the_entries_about_objects_of_ours_are_ours() {
        assert_eq!(ours([0x6e, 0x16, 0x3f, 0xbe], 99), [7]);
        assert_eq!(ours([0x21, 0x31, 0x8c, 0x60], 99), [51]);
        assert_eq!(ours([0xcd, 0x3e, 0xa2, 0xc6], 99), [1]);
        assert!(ours([0; 4], 99).is_empty());
        assert_eq!(ours([0x69, 0xa2, 0x8e, 0x9f], NVMLS), [24, 25]);
        assert!(ours([0x69, 0xa2, 0x8e, 0x9f], NVMLS + 1).is_empty());
    }
}
