//! Machine code that was taken apart, as the device's trait has it.

use rekindle_code::{Global, Limits, Preparation, Prepared, prepare};
use rekindle_cuda::{CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NOT_FOUND};
use rekindle_device::{Code, Constants, DeviceInfo, FunctionInfo, Parameter, Piece, PreparedCode, Result};

// `CUdevice_attribute`.
const THREADS_OF_BLOCK: i32 = 1;
const SHARED_OF_BLOCK: i32 = 8;
const REGISTERS_OF_MULTIPROCESSOR: i32 = 82;
const RESERVED_SHARED_OF_BLOCK: i32 = 111;

pub struct NvidiaCode {
    prepared: Prepared,
    limits: Limits,
}

impl NvidiaCode {
    /// A word for the reason where the driver has to load it whole; it then also says what is wrong with what cannot be
    /// read.
    pub fn prepare(code: &Code, gpu: &DeviceInfo) -> std::result::Result<NvidiaCode, &'static str> {
        let (major, minor) = gpu.compute_capability;
        match prepare(code.bytes(), major * 10 + minor) {
            Ok(Preparation::Prepared(prepared)) => Ok(NvidiaCode { prepared, limits: limits(gpu) }),
            Ok(Preparation::Whole(whole)) => {
                log::info!("a module of {} bytes is loaded whole: {whole}", code.bytes().len());
                Err(whole.word())
            }
            Err(error) => {
                log::info!("a module of {} bytes is left to the driver: {error}", code.bytes().len());
                Err("unreadable")
            }
        }
    }

    fn find(&self, name: &str) -> Option<&Global> {
        let all = &self.prepared.globals.all;
        let first = all.partition_point(|global| global.name.as_str() < name);
        all.get(first).filter(|global| global.name == name)
    }
}

/// What kernels may have of a GPU.
pub fn limits(gpu: &DeviceInfo) -> Limits {
    let of = |attribute| u32::try_from(gpu.attribute(attribute).unwrap_or_default()).unwrap_or_default();
    Limits {
        registers: of(REGISTERS_OF_MULTIPROCESSOR),
        threads: of(THREADS_OF_BLOCK),
        shared: of(SHARED_OF_BLOCK),
        reserved_shared: of(RESERVED_SHARED_OF_BLOCK),
    }
}

impl PreparedCode for NvidiaCode {
    fn globals_bytes(&self) -> u64 {
        self.prepared.globals.bytes
    }

    fn globals_alignment(&self) -> u64 {
        self.prepared.globals.alignment
    }

    fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.find(name).map(|global| (global.offset, global.bytes))
    }

    fn initial(&self, address: u64) -> Vec<u8> {
        self.prepared.globals.initial(address)
    }

    fn constants(&self) -> Option<Constants> {
        let globals = &self.prepared.globals;
        let first = globals.all.iter().find(|global| globals.constants.contains(&global.offset))?;
        Some(Constants { range: globals.constants.clone(), name: first.name.clone() })
    }

    fn kernels(&self) -> Vec<String> {
        self.prepared.kernels.keys().cloned().collect()
    }

    fn info(&self, kernel: &str) -> Option<FunctionInfo> {
        let kernel = self.prepared.kernels.get(kernel)?;
        let attributes = kernel.attributes(&self.limits).into_iter().collect::<Option<_>>()?;
        let parameters = kernel.parameters.as_ref()?.iter();
        let parameters = parameters.map(|row| Parameter { offset: row.offset, size: row.bytes }).collect();
        Some(FunctionInfo { attributes, parameters })
    }

    fn piece(&self, kernel: &str, globals: u64) -> Result<Piece> {
        if !self.prepared.kernels.contains_key(kernel) {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        match self.prepared.piece(kernel, globals) {
            Ok(code) => Ok(Piece {
                code: Code::new(code),
                options: Vec::new(),
                is_sharable: self.prepared.globals.constants.is_empty(),
            }),
            Err(error) => {
                log::error!("kernel {kernel} cannot be cut out of its module: {error}");
                Err(CUDA_ERROR_INVALID_IMAGE)
            }
        }
    }
}
