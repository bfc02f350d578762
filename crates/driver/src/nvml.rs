//! The part of NVML that tells who has how much of which GPU's memory. It makes no context, and is left out where it
//! is not there.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;

use libloading::Library;

const FILE: &str = "libnvidia-ml.so.1";
const MOST_PROCESSES: usize = 4096;
/// What NVML gives for a number that it does not have.
const UNKNOWN: c_ulonglong = c_ulonglong::MAX;

type DeviceHandle = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_t` of version 2 and newer.
#[repr(C)]
#[derive(Clone, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    instances: [c_uint; 2],
}

pub struct Nvml {
    by_uuid: unsafe extern "C" fn(*const c_char, *mut DeviceHandle) -> c_int,
    memory: unsafe extern "C" fn(DeviceHandle, *mut Memory) -> c_int,
    processes: unsafe extern "C" fn(DeviceHandle, *mut c_uint, *mut ProcessInfo) -> c_int,
    driver_version: unsafe extern "C" fn(*mut c_char, c_uint) -> c_int,
}

impl Nvml {
    /// The one beside the driver's library, else the system's.
    pub fn open(libcuda: &Path) -> Option<Nvml> {
        let beside = libcuda.with_file_name(FILE);
        let path = if beside.exists() { beside } else { FILE.into() };
        // SAFETY: opening runs the library's constructors; it is NVIDIA's, found as its own tools find it.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: the signatures are those of NVML's header, unchanged since version 11.
        let found = unsafe {
            let init: unsafe extern "C" fn() -> c_int = *library.get(b"nvmlInit_v2\0").ok()?;
            if init() != 0 {
                return None;
            }
            Nvml {
                by_uuid: *library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?,
                memory: *library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?,
                processes: *library.get(b"nvmlDeviceGetComputeRunningProcesses_v3\0").ok()?,
                driver_version: *library.get(b"nvmlSystemGetDriverVersion\0").ok()?,
            }
        };
        // The functions are used until this process ends.
        std::mem::forget(library);
        Some(found)
    }

    pub fn driver_version(&self) -> Option<String> {
        let mut text = [0u8; 96];
        // SAFETY: writes at most as many bytes as it is told that there are.
        let code = unsafe { (self.driver_version)(text.as_mut_ptr().cast(), text.len() as c_uint) };
        let end = text.iter().position(|byte| *byte == 0)?;
        (code == 0).then(|| String::from_utf8_lossy(&text[..end]).into_owned())
    }

    pub fn free_bytes(&self, uuid: &str) -> Option<u64> {
        let mut memory = Memory::default();
        // SAFETY: writes one structure.
        let code = unsafe { (self.memory)(self.device(uuid)?, &mut memory) };
        (code == 0).then_some(memory.free)
    }

    /// Processes with their bytes on the GPU.
    pub fn usage(&self, uuid: &str) -> Vec<(i32, u64)> {
        let Some(device) = self.device(uuid) else { return Vec::new() };
        let mut found = vec![ProcessInfo::default(); MOST_PROCESSES];
        let mut count = found.len() as c_uint;
        // SAFETY: writes at most `count` structures, and their number to `count`.
        let code = unsafe { (self.processes)(device, &mut count, found.as_mut_ptr()) };
        found.truncate(if code == 0 { count as usize } else { 0 });
        found.iter().filter(|one| one.used != UNKNOWN).map(|one| (one.pid as i32, one.used)).collect()
    }

    fn device(&self, uuid: &str) -> Option<DeviceHandle> {
        let (text, mut device) = (CString::new(uuid).ok()?, std::ptr::null_mut());
        // SAFETY: reads a string that ends in NUL and writes one pointer.
        let code = unsafe { (self.by_uuid)(text.as_ptr(), &mut device) };
        (code == 0).then_some(device)
    }
}
