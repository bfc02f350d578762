//! The driver's library, opened at run time, and its checkpoint functions.

use std::ffi::{c_char, c_int, c_uint};
use std::path::Path;
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_NOT_READY, CuResult};
use rekindle_nvidia::{CheckpointLock, CheckpointReserved, CheckpointRestore, release, search};

use crate::error::{Error, Result};
use crate::map::{bytes_of, text_of};
use crate::message::{Gpu, UuidPair};
use crate::nvml::Nvml;
use crate::states::{Driver, State};

/// `CUcheckpointGpuPair`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GpuPair {
    old: [u8; 16],
    new: [u8; 16],
}

macro_rules! functions {
    ($($name:ident($($type:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the driver's own names")]
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) -> CuResult,)*
        }

        #[allow(non_snake_case, reason = "the driver's own names")]
        impl Functions {
            fn find(library: &libloading::Library) -> Result<Functions, &'static str> {
                $(
                    // SAFETY: the signature is that of CUDA 13.0's header.
                    let $name = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    let $name = *$name.map_err(|_| stringify!($name))?;
                )*
                Ok(Functions { $($name),* })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuGetErrorString(CuResult, *mut *const c_char);
    cuCheckpointProcessGetState(c_int, *mut c_int);
    cuCheckpointProcessLock(c_int, *const CheckpointLock);
    cuCheckpointProcessCheckpoint(c_int, *const CheckpointReserved);
    cuCheckpointProcessRestore(c_int, *const CheckpointRestore);
    cuCheckpointProcessUnlock(c_int, *const CheckpointReserved);
}

/// Whether this machine has the driver's library.
pub fn is_here() -> bool {
    search::find().is_ok()
}

/// An initialised driver; it is never unloaded.
pub struct Library {
    functions: Functions,
    nvml: Option<Nvml>,
    driver_version: String,
}

impl Library {
    pub fn open() -> Result<Library> {
        let path = search::find().map_err(|error| Error::Library(error.to_string()))?;
        Library::load(&path)
    }

    fn load(path: &Path) -> Result<Library> {
        let unusable = |reason: String| Error::Library(format!("{}: {reason}", path.display()));
        // SAFETY: opening runs the library's constructors; the file was chosen as the machine's NVIDIA driver.
        let library =
            unsafe { libloading::Library::new(path) }.map_err(|error| unusable(error.to_string()))?;
        let functions = Functions::find(&library)
            .map_err(|name| unusable(format!("it lacks {name}; driver mode needs driver 570 or newer")))?;
        std::mem::forget(library);
        // SAFETY: takes flags only, of which there are none.
        let code = unsafe { (functions.cuInit)(0) };
        if !code.is_success() {
            return Err(unusable(format!("it did not start: {}", describe(&functions, code))));
        }
        let nvml = Nvml::open(path);
        let driver_version = nvml.as_ref().and_then(Nvml::driver_version);
        let kernel_module = || std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        let driver_version =
            driver_version.or_else(|| release(&kernel_module())).unwrap_or_else(|| "unknown".to_string());
        Ok(Library { functions, nvml, driver_version })
    }

    fn check(&self, step: &'static str, pid: i32, code: CuResult) -> Result<()> {
        if code.is_success() {
            return Ok(());
        }
        Err(Error::Step { step, pid, reason: describe(&self.functions, code) })
    }

    fn gpu(&self, index: c_int) -> Result<Gpu> {
        let (mut ordinal, mut name, mut uuid, mut memory) = (0, [0u8; 256], [0u8; 16], 0);
        // SAFETY: each writes one value, or no more than the buffer whose length it is given.
        let codes = unsafe {
            [
                (self.functions.cuDeviceGet)(&mut ordinal, index),
                (self.functions.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, ordinal),
                (self.functions.cuDeviceGetUuid_v2)(&mut uuid, ordinal),
                (self.functions.cuDeviceTotalMem_v2)(&mut memory, ordinal),
            ]
        };
        if let Some(&code) = codes.iter().find(|code| !code.is_success()) {
            return Err(Error::Library(format!("GPU {index}: {}", describe(&self.functions, code))));
        }
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let uuid = text_of(&uuid);
        Ok(Gpu {
            model: String::from_utf8_lossy(&name[..end]).into_owned(),
            memory_bytes: memory as u64,
            free_bytes: self.nvml.as_ref().and_then(|nvml| nvml.free_bytes(&uuid)),
            used_bytes: 0,
            driver_version: self.driver_version.clone(),
            uuid,
        })
    }
}

impl Driver for Library {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        let mut count = 0;
        // SAFETY: writes one integer.
        let code = unsafe { (self.functions.cuDeviceGetCount)(&mut count) };
        if !code.is_success() {
            return Err(Error::Library(format!("no GPUs: {}", describe(&self.functions, code))));
        }
        (0..count).map(|index| self.gpu(index)).collect()
    }

    fn state(&self, pid: i32) -> Option<State> {
        let mut state = -1;
        // SAFETY: writes one integer.
        let code = unsafe { (self.functions.cuCheckpointProcessGetState)(pid, &mut state) };
        match state {
            _ if !code.is_success() => None,
            0 => Some(State::Running),
            1 => Some(State::Locked),
            2 => Some(State::Checkpointed),
            _ => Some(State::Failed),
        }
    }

    fn lock(&self, pid: i32, limit: Duration) -> Result<()> {
        let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
        let arguments = CheckpointLock { timeout_ms, reserved0: 0, reserved1: [0; 7] };
        let began = Instant::now();
        // SAFETY: reads the arguments during the call.
        let code = unsafe { (self.functions.cuCheckpointProcessLock)(pid, &arguments) };
        if code == CUDA_ERROR_NOT_READY || (!code.is_success() && began.elapsed() >= limit) {
            return Err(Error::LockTimeout { pid, limit });
        }
        self.check("lock", pid, code)
    }

    fn checkpoint(&self, pid: i32) -> Result<()> {
        let arguments = CheckpointReserved::default();
        // SAFETY: reads the arguments during the call.
        self.check("checkpoint", pid, unsafe {
            (self.functions.cuCheckpointProcessCheckpoint)(pid, &arguments)
        })
    }

    fn restore(&self, pid: i32, pairs: &[UuidPair]) -> Result<()> {
        let bytes =
            |text: &str| bytes_of(text).ok_or_else(|| Error::GpuMap(format!("{text:?} is no GPU's UUID")));
        let pairs = pairs.iter().map(|pair| Ok(GpuPair { old: bytes(&pair.old)?, new: bytes(&pair.new)? }));
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let first = if pairs.is_empty() { 0 } else { pairs.as_ptr() as u64 };
        let arguments = CheckpointRestore {
            pairs: first,
            pair_count: pairs.len() as c_uint,
            reserved: [0; 44],
            reserved1: 0,
        };
        // SAFETY: reads the arguments and the pairs, which outlive the call.
        self.check("restore", pid, unsafe { (self.functions.cuCheckpointProcessRestore)(pid, &arguments) })
    }

    fn unlock(&self, pid: i32) -> Result<()> {
        let arguments = CheckpointReserved::default();
        // SAFETY: reads the arguments during the call.
        self.check("unlock", pid, unsafe { (self.functions.cuCheckpointProcessUnlock)(pid, &arguments) })
    }

    fn usage(&self) -> Vec<(String, i32, u64)> {
        let (Some(nvml), Ok(gpus)) = (&self.nvml, self.gpus()) else { return Vec::new() };
        let of = |gpu: Gpu| {
            nvml.usage(&gpu.uuid).into_iter().map(move |(pid, used)| (gpu.uuid.clone(), pid, used))
        };
        gpus.into_iter().flat_map(of).collect()
    }
}

fn describe(functions: &Functions, code: CuResult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: writes a pointer to a static string, or null for a code that the driver does not know.
    let known = unsafe { (functions.cuGetErrorString)(code, &mut text) };
    if !known.is_success() || text.is_null() {
        return code.to_string();
    }
    // SAFETY: the driver's strings are static and end in NUL.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    format!("{code}, {}", text.to_string_lossy())
}
