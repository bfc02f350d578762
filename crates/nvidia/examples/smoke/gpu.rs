//! What every check needs: the GPU with memory of its own, kernels, and a place for results.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use rekindle_device::{
    Access, Code, DEVICE_RANGE, Device, Function, Launch, Memory, Module, ModuleKind, PINNED_RANGE, Platform,
    Stream,
};

use crate::kernels;

/// Why a check failed.
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}

/// A check's answer: a few words on success.
pub type Outcome = Result<String, Failure>;

/// Fails with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)*) => {
        let holds: bool = $condition;
        if !holds {
            return Err($crate::gpu::Failure(format!($($words)*)));
        }
    };
}
pub(crate) use ensure;

/// GPU memory mapped for reading and writing.
#[derive(Clone, Copy)]
pub struct Buffer {
    pub address: u64,
    pub bytes: u64,
    pub memory: Memory,
}

pub struct Gpu {
    pub device: Arc<dyn Device>,
    pub module: Module,
    pub stream: Stream,
    /// Pinned host memory, at one address for CPU and GPU.
    pub host: *mut u32,
    next: std::cell::Cell<u64>,
}

pub const HOST_BYTES: u64 = 1 << 30;
const RESERVED: u64 = 1 << 40;

impl Gpu {
    /// Opens the first GPU, reserves addresses, pins host memory and loads the kernels.
    pub fn open(platform: &dyn Platform, host_bytes: u64) -> Result<Gpu, Failure> {
        let device = platform.open(0)?;
        device.bind()?;
        device.reserve(DEVICE_RANGE.start, RESERVED)?;
        let host = shared_memory(host_bytes)?;
        device.host_register(host as u64, host_bytes)?;
        let module = device.module_load(Code::new(kernels::MAIN), ModuleKind::Module, &[])?.module;
        let stream = device.stream_create(1, 0)?;
        Ok(Gpu { device, module, stream, host, next: std::cell::Cell::new(DEVICE_RANGE.start) })
    }

    /// The next free addresses.
    pub fn addresses(&self, bytes: u64) -> u64 {
        let address = self.next.get();
        self.next.set(address + bytes.next_multiple_of(self.device.granularity()));
        address
    }

    pub fn buffer(&self, bytes: u64) -> Result<Buffer, Failure> {
        let bytes = bytes.next_multiple_of(self.device.granularity());
        let address = self.addresses(bytes);
        let memory = self.device.memory_create(bytes)?;
        self.device.map(address, bytes, memory)?;
        self.device.protect(address, bytes, Access::ReadWrite)?;
        Ok(Buffer { address, bytes, memory })
    }

    pub fn free(&self, buffer: Buffer) -> Result<(), Failure> {
        self.device.unmap(buffer.address, buffer.bytes)?;
        Ok(self.device.memory_release(buffer.memory)?)
    }

    pub fn function(&self, name: &str) -> Result<Function, Failure> {
        Ok(self.device.function(self.module, name)?)
    }

    /// Runs `store`: one thread that writes `value` at `to`.
    pub fn store(&self, to: u64, value: u32) -> Result<(), Failure> {
        let parameters = [to.to_le_bytes().as_slice(), &value.to_le_bytes()].concat();
        Ok(self.device.launch(self.function("store")?, &shape(1, 1), self.stream, &parameters)?)
    }

    /// Words at `address` of the GPU, by way of the pinned memory.
    pub fn words(&self, address: u64, count: usize) -> Result<Vec<u32>, Failure> {
        self.device.copy(self.host as u64, address, 4 * count as u64, self.stream)?;
        self.device.stream_synchronize(self.stream)?;
        Ok(self.host_words(count))
    }

    /// The first words of the pinned memory.
    pub fn host_words(&self, count: usize) -> Vec<u32> {
        // SAFETY: the pinned memory is larger than any check's need, and the GPU is done with it.
        (0..count).map(|index| unsafe { self.host.add(index).read_volatile() }).collect()
    }

    pub fn set_host_words(&self, words: impl IntoIterator<Item = u32>) {
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.host.add(index).write_volatile(word) };
        }
    }
}

pub fn shape(blocks: u32, threads: u32) -> Launch {
    Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], ..Default::default() }
}

/// A shared mapping at the start of the pinned range.
fn shared_memory(bytes: u64) -> Result<*mut u32, Failure> {
    // SAFETY: a new descriptor, owned here; the fixed address replaces nothing.
    let mapped = unsafe {
        let file = OwnedFd::from_raw_fd(libc::memfd_create(c"smoke".as_ptr(), libc::MFD_CLOEXEC));
        libc::ftruncate(file.as_raw_fd(), bytes as i64);
        libc::mmap(
            PINNED_RANGE.start as *mut _,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(mapped != libc::MAP_FAILED, "no memory at the pinned range: {}", std::io::Error::last_os_error());
    Ok(mapped.cast())
}
