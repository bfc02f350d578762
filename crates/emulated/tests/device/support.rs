//! A machine to test on, and memory on it.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rekindle_device::{Access, Code, Device, Function, Launch, Memory, Module, ModuleKind, Platform, Stream};
use rekindle_emulated::{Config, platform_with_output};

pub const MIB: u64 = 1 << 20;

/// What kernels printed.
#[derive(Clone, Default)]
pub struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub struct Machine {
    pub gpu: Arc<dyn Device>,
    pub platform: Arc<dyn Platform>,
    pub printed: Printed,
}

pub fn machine(config: &str) -> Machine {
    let printed = Printed::default();
    let platform = platform_with_output(&Config::parse(config).unwrap(), Box::new(printed.clone())).unwrap();
    Machine { gpu: platform.open(0).unwrap(), platform, printed }
}

/// Device addresses that no other test has.
pub fn addresses(bytes: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x6000_0000_0000);
    NEXT.fetch_add(bytes.next_multiple_of(2 * MIB) + 2 * MIB, Ordering::Relaxed)
}

/// Device memory, mapped read-write.
pub struct Buffer {
    pub address: u64,
    pub bytes: u64,
    pub memory: Memory,
}

pub fn buffer(gpu: &dyn Device, bytes: u64) -> Buffer {
    let bytes = bytes.next_multiple_of(gpu.granularity());
    let address = addresses(bytes);
    let memory = gpu.memory_create(bytes).unwrap();
    gpu.reserve(address, bytes).unwrap();
    gpu.map(address, bytes, memory).unwrap();
    gpu.protect(address, bytes, Access::ReadWrite).unwrap();
    Buffer { address, bytes, memory }
}

/// Registered host memory.
pub struct Pinned {
    pub words: Box<[u32]>,
    gpu: Arc<dyn Device>,
}

impl Pinned {
    pub fn new(gpu: &Arc<dyn Device>, words: impl IntoIterator<Item = u32>) -> Pinned {
        let words: Box<[u32]> = words.into_iter().collect();
        gpu.host_register(words.as_ptr() as u64, words.len() as u64 * 4).unwrap();
        Pinned { words, gpu: Arc::clone(gpu) }
    }

    pub fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * 4
    }

    /// What the device wrote; not for the compiler to guess.
    pub fn read(&self) -> Vec<u32> {
        // SAFETY: each element is a word of the box.
        self.words.iter().map(|word| unsafe { std::ptr::read_volatile(word) }).collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.gpu.host_unregister(self.address());
    }
}

pub fn upload(gpu: &Arc<dyn Device>, to: u64, words: &[u32]) {
    let pinned = Pinned::new(gpu, words.iter().copied());
    gpu.copy(to, pinned.address(), pinned.bytes(), Stream::LEGACY).unwrap();
    gpu.stream_synchronize(Stream::LEGACY).unwrap();
}

pub fn download(gpu: &Arc<dyn Device>, from: u64, count: usize) -> Vec<u32> {
    let pinned = Pinned::new(gpu, std::iter::repeat_n(0, count));
    gpu.copy(pinned.address(), from, pinned.bytes(), Stream::LEGACY).unwrap();
    gpu.stream_synchronize(Stream::LEGACY).unwrap();
    pinned.read()
}

pub fn load(gpu: &Arc<dyn Device>, ptx: &str) -> Module {
    gpu.module_load(Code::new(ptx.as_bytes().to_vec()), ModuleKind::Module, &[]).unwrap().module
}

pub fn function(gpu: &Arc<dyn Device>, ptx: &str, name: &str) -> Function {
    gpu.function(load(gpu, ptx), name).unwrap()
}

pub fn shape(grid: u32, block: u32) -> Launch {
    Launch { grid: [grid, 1, 1], block: [block, 1, 1], ..Launch::default() }
}

pub fn parameters(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// `increment(p)`: adds one to each word. `spin(p)`: runs until the word is not zero, then sets it to 7.
/// `store(p, v)`: stores a word.
pub const PTX: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.visible .entry increment(.param .u64 p)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r5, [%rd3];
    add.s32 %r5, %r5, 1;
    st.global.u32 [%rd3], %r5;
    ret;
}
.visible .entry spin(.param .u64 p)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
$again:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $again;
    mov.u32 %r2, 7;
    st.volatile.global.u32 [%rd1], %r2;
    ret;
}
.visible .entry store(.param .u64 p, .param .u64 v)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    ld.param.u64 %rd2, [v];
    cvt.u32.u64 %r1, %rd2;
    st.global.u32 [%rd1], %r1;
    ret;
}
"#;
