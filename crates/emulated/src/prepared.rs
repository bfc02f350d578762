//! PTX that is loaded a kernel at a time, its variables wherever a buffer lies: as an NVIDIA GPU's machine code is.

use rekindle_cuda::CUDA_ERROR_NOT_FOUND;
use rekindle_device::{Code, Constants, FunctionInfo, Piece, PreparedCode, Result};
use rekindle_ptx as ptx;

use crate::arena::OPTION_GLOBALS_ADDRESS;
use crate::function::{Settings, describe};
use crate::image;
use crate::module::{LARGEST_ALIGNMENT, Layout, initial, is_constant, layout, registers_of_thread};

pub(crate) struct EmulatedCode {
    code: Code,
    options: Vec<(i32, u64)>,
    module: ptx::Module,
    layout: Layout,
}

impl EmulatedCode {
    /// None for what cannot be loaded, which loading says more of.
    pub fn prepare(code: &Code, options: &[(i32, u64)]) -> Option<EmulatedCode> {
        let module = image::module(&image::texts(code.bytes()).ok()?).ok()?;
        let layout = layout(module.globals()).ok()?;
        Some(EmulatedCode { code: code.clone(), options: options.to_vec(), module, layout })
    }

    fn entry(&self, kernel: &str) -> Option<&ptx::Entry> {
        self.module.entries().iter().find(|entry| entry.name == kernel)
    }
}

impl PreparedCode for EmulatedCode {
    fn globals_bytes(&self) -> u64 {
        self.layout.bytes()
    }

    fn globals_alignment(&self) -> u64 {
        let all = self.module.globals().iter();
        all.map(|variable| variable.align.clamp(16, LARGEST_ALIGNMENT).next_power_of_two()).max().unwrap_or(1)
    }

    fn global(&self, name: &str) -> Option<(u64, u64)> {
        let at = self.module.globals().iter().position(|variable| variable.name == name)?;
        Some((self.layout.offsets[at], self.module.globals()[at].size))
    }

    fn initial(&self, address: u64) -> Vec<u8> {
        initial(self.module.globals(), &self.layout.offsets, address)
    }

    fn constants(&self) -> Option<Constants> {
        let first = self.module.globals().iter().find(|variable| is_constant(variable))?;
        Some(Constants { range: self.layout.constants.clone(), name: first.name.clone() })
    }

    fn kernels(&self) -> Vec<String> {
        self.module.entries().iter().map(|entry| entry.name.clone()).collect()
    }

    fn info(&self, kernel: &str) -> Option<FunctionInfo> {
        let entry = self.entry(kernel)?;
        let limit = registers_of_thread(self.code.bytes(), &self.options);
        Some(describe(&self.module, entry, &Settings::new(entry), limit))
    }

    fn piece(&self, kernel: &str, globals: u64) -> Result<Piece> {
        self.entry(kernel).ok_or(CUDA_ERROR_NOT_FOUND)?;
        let mut options = self.options.clone();
        options.push((OPTION_GLOBALS_ADDRESS, globals));
        Ok(Piece { code: self.code.clone(), options, is_sharable: self.constants().is_none() })
    }
}
