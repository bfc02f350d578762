//! A device of one memory range, to run kernels on.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rekindle_ptx::{
    AddressRange, DeviceLimits, Error, Fault, Grid, Host, Launch, Module, View, install_fault_handler,
};

static NEXT: AtomicU64 = AtomicU64::new(0x6000_0000_0000);

/// Mapped memory, with an unmapped page after it.
pub struct Memory {
    pub start: u64,
    pub size: usize,
}

impl Memory {
    pub fn new(size: usize) -> Self {
        install_fault_handler();
        let size = size.next_multiple_of(4096);
        let start = NEXT.fetch_add(size as u64 + 0x10_0000, Ordering::Relaxed).next_multiple_of(4096);
        // SAFETY: a fresh mapping at an address that nothing else uses.
        let at = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(at as u64, start, "mapping device memory");
        Self { start, size }
    }

    pub fn protect(&self, protection: i32) {
        // SAFETY: the range is this mapping.
        assert_eq!(unsafe { libc::mprotect(self.start as *mut libc::c_void, self.size, protection) }, 0);
    }

    pub fn put<T: Copy>(&self, at: usize, values: &[T]) {
        assert!(at + std::mem::size_of_val(values) <= self.size);
        // SAFETY: in bounds, as just checked.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), (self.start as usize + at) as *mut T, values.len())
        };
    }

    pub fn get<T: Copy>(&self, at: usize, count: usize) -> Vec<T> {
        assert!(at + count * std::mem::size_of::<T>() <= self.size);
        // SAFETY: in bounds, as just checked; tests read plain numbers.
        unsafe { std::slice::from_raw_parts((self.start as usize + at) as *const T, count) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping and nothing uses it any more.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.size) };
    }
}

#[derive(Default)]
pub struct TestHost {
    pub printed: Mutex<Vec<u8>>,
    pub conditions: Mutex<Vec<(u64, u32)>>,
    pub heap: AtomicU64,
    pub polls: AtomicU64,
    /// Cancels after so many polls, if not zero.
    pub patience: u64,
    /// Textures and surfaces.
    pub views: BTreeMap<u64, Arc<View>>,
}

impl Host for TestHost {
    fn printf(&self, text: &[u8]) {
        self.printed.lock().unwrap().extend_from_slice(text);
    }

    fn malloc(&self, bytes: u64) -> u64 {
        self.heap.fetch_add(bytes.next_multiple_of(16), Ordering::Relaxed)
    }

    fn free(&self, _: u64) {}

    fn view(&self, number: u64) -> Option<Arc<View>> {
        self.views.get(&number).cloned()
    }

    fn set_conditional(&self, handle: u64, value: u32) {
        self.conditions.lock().unwrap().push((handle, value));
    }

    fn cancelled(&self) -> bool {
        self.patience != 0 && self.polls.fetch_add(1, Ordering::Relaxed) > self.patience
    }
}

pub struct Run {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub cluster: [u32; 3],
    pub dynamic_shared: u32,
    pub threads: usize,
    pub globals: Vec<u64>,
    /// Of a cooperative grid.
    pub workspace: u64,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            grid: [1; 3],
            block: [32, 1, 1],
            cluster: [0; 3],
            dynamic_shared: 0,
            threads: 1,
            globals: Vec::new(),
            workspace: 0,
        }
    }
}

impl Run {
    pub fn shape(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], ..Self::default() }
    }

    pub fn prepare(&self, module: &Module, kernel: &str, parameters: &[u64]) -> Result<Grid, Error> {
        let entry = module.entries().iter().position(|entry| entry.name == kernel).expect("the kernel");
        let mut bytes = vec![0; 4096];
        for (parameter, value) in module.entries()[entry].parameters.iter().zip(parameters) {
            let at = parameter.offset as usize;
            let size = (parameter.size as usize).min(8);
            bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        Grid::new(
            Launch {
                module,
                entry,
                grid: self.grid,
                block: self.block,
                cluster: self.cluster,
                dynamic_shared: self.dynamic_shared,
                parameters: &bytes,
                addresses: &self.globals,
                device: DeviceLimits { workspace: self.workspace, ..DeviceLimits::default() },
            },
            &[AddressRange { start: 0x6000_0000_0000, end: 0x7000_0000_0000 }],
        )
    }

    pub fn on(
        &self,
        host: &TestHost,
        module: &Module,
        kernel: &str,
        parameters: &[u64],
    ) -> Result<(), Fault> {
        let grid = self.prepare(module, kernel, parameters).unwrap_or_else(|error| panic!("{error}"));
        grid.run(host, self.threads)
    }

    pub fn go(&self, module: &Module, kernel: &str, parameters: &[u64]) {
        self.on(&TestHost::default(), module, kernel, parameters).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

pub fn parse(source: &str) -> Module {
    Module::parse(source).unwrap_or_else(|error| panic!("{error}\n{source}"))
}

/// A module of one kernel `k` with pointer parameters `p0`, `p1`... loaded into `%p0`..., the thread's number in
/// `%tid32` and its global number in `%gid`.
pub fn kernel(pointers: usize, declarations: &str, body: &str) -> Module {
    let parameters: Vec<String> = (0..pointers).map(|i| format!(".param .u64 k{i}")).collect();
    let loads: String = (0..pointers).map(|i| format!("ld.param.u64 %p{i}, [k{i}];\n")).collect();
    parse(&format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n{declarations}\n.visible .entry k({})\n{{\n\
         .reg .pred %q<32>;\n.reg .b16 %h<32>;\n.reg .b32 %r<64>;\n.reg .b64 %d<64>;\n.reg .f32 %f<32>;\n\
         .reg .f64 %e<32>;\n.reg .b64 %p<{}>;\n.reg .b32 %tid32, %gid, %ntid32, %cta;\n\
         {loads}mov.u32 %tid32, %tid.x;\nmov.u32 %ntid32, %ntid.x;\nmov.u32 %cta, %ctaid.x;\n\
         mad.lo.u32 %gid, %cta, %ntid32, %tid32;\n{body}\nret;\n}}\n",
        parameters.join(", "),
        pointers.max(1),
    ))
}

/// Places the module's variables in memory, as a device does.
pub fn place(module: &Module, memory: &Memory) -> Vec<u64> {
    let mut at = 0;
    let addresses: Vec<u64> = module
        .globals()
        .iter()
        .map(|global| {
            let address = (memory.start + at).next_multiple_of(global.align);
            at = address + global.size - memory.start;
            address
        })
        .collect();
    for (global, address) in module.globals().iter().zip(&addresses) {
        let offset = (address - memory.start) as usize;
        memory.put(offset, &global.init);
        for relocation in &global.relocations {
            let value = addresses[relocation.global].wrapping_add_signed(relocation.addend);
            memory.put(offset + relocation.offset as usize, &[value]);
        }
    }
    addresses
}
