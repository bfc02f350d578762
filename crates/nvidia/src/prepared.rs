//! Machine code that was taken apart, as the device's trait has it.

use rekindle_code::{Preparation, Prepared, prepare};
use rekindle_cuda::{CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NOT_FOUND};
use rekindle_device::{Code, Piece, PreparedCode, Result};

pub struct NvidiaCode(Prepared);

impl NvidiaCode {
    /// None where the driver has to load it whole; it then also says what is wrong with what cannot be read.
    pub fn prepare(code: &Code, capability: u32) -> Option<NvidiaCode> {
        match prepare(code.bytes(), capability) {
            Ok(Preparation::Prepared(prepared)) => Some(NvidiaCode(prepared)),
            Ok(Preparation::Whole(whole)) => {
                log::debug!("a module of {} bytes is loaded whole: {whole}", code.bytes().len());
                None
            }
            Err(error) => {
                log::debug!("a module of {} bytes is left to the driver: {error}", code.bytes().len());
                None
            }
        }
    }
}

impl PreparedCode for NvidiaCode {
    fn globals_bytes(&self) -> u64 {
        self.0.globals.bytes
    }

    fn globals_alignment(&self) -> u64 {
        self.0.globals.alignment
    }

    fn global(&self, name: &str) -> Option<(u64, u64)> {
        let all = &self.0.globals.all;
        let first = all.partition_point(|global| global.name.as_str() < name);
        all.get(first).filter(|global| global.name == name).map(|global| (global.offset, global.bytes))
    }

    fn initial(&self, address: u64) -> Vec<u8> {
        self.0.globals.initial(address)
    }

    fn kernels(&self) -> Vec<String> {
        self.0.kernels.keys().cloned().collect()
    }

    fn piece(&self, kernel: &str, globals: u64) -> Result<Piece> {
        if !self.0.kernels.contains_key(kernel) {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        match self.0.piece(kernel, globals) {
            Ok(code) => Ok(Piece { code: Code::new(code), options: Vec::new() }),
            Err(error) => {
                log::error!("kernel {kernel} cannot be cut out of its module: {error}");
                Err(CUDA_ERROR_INVALID_IMAGE)
            }
        }
    }
}
