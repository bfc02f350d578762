//! The work that streams and graphs are made of, and how each kind of it is done.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rekindle_cuda::{
    CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_MISALIGNED_ADDRESS, CuResult,
};
use rekindle_device::{Copy3D, Launch, MemorySet};
use rekindle_ptx as ptx;

use crate::access::{self, Miss, Piece};
use crate::arena::Arena;
use crate::arrays::Storage;
use crate::attributes::{CLOCK_KHZ, SHARED_OPTIN};
use crate::copy_engines::{CopyEngines, nanoseconds};
use crate::function::{Kernel, is_cooperative};
use crate::output::Output;
use crate::space::{AddressKind, Space};
use crate::thread_pool::{Stop, ThreadPool};
use crate::views::Views;

/// What does a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Kernels, fills, and copies inside the device.
    Compute,
    /// Copies from the host.
    Up,
    /// Copies to the host.
    Down,
    /// Calls of the host.
    Host,
    /// Waits for a value in memory.
    Watch,
}

/// A piece of work that can be done many times: what a graph's node holds.
#[derive(Clone)]
pub(crate) enum Op {
    /// On multiprocessors of these units; 0: on all.
    Kernel {
        kernel: Kernel,
        launch: Launch,
        parameters: Arc<[u8]>,
        units: u64,
    },
    /// Keeps the arrays that it copies.
    Copy {
        copy: Copy3D,
        engine: Engine,
        _arrays: Vec<Arc<Storage>>,
    },
    Set(MemorySet),
    WaitValue {
        address: u64,
        value: u64,
        width: u32,
        condition: u32,
    },
    WriteValue {
        address: u64,
        value: u64,
        width: u32,
    },
}

impl Op {
    pub fn engine(&self) -> Engine {
        match self {
            Op::Copy { engine, .. } => *engine,
            Op::WaitValue { .. } => Engine::Watch,
            Op::Kernel { .. } | Op::Set(_) | Op::WriteValue { .. } => Engine::Compute,
        }
    }
}

/// Why work failed: the code that the context answers from then on, and one sentence.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub code: CuResult,
    pub sentence: String,
}

impl Failure {
    pub fn internal() -> Failure {
        let sentence = "the emulated GPU itself failed; its panic message is in the worker's log".to_owned();
        Failure { code: CUDA_ERROR_LAUNCH_FAILED, sentence }
    }
}

/// What kernels ask of the device while they run.
pub(crate) struct Services {
    pub arena: Arc<Arena>,
    pub output: Arc<Output>,
    pub views: Views,
    /// Set to end whatever runs.
    pub cancelled: AtomicBool,
    pub heap_limit: AtomicU64,
    /// By which conditional nodes decide, by their handles.
    pub conditions: Mutex<HashMap<u64, u32>>,
}

/// What doing work needs of the device.
pub(crate) struct Executor {
    pub services: Arc<Services>,
    pub multiprocessors: u32,
    space: Arc<Space>,
    pool: ThreadPool,
    /// Held by the cooperative kernel that runs.
    cooperative: Mutex<()>,
    engines: CopyEngines,
}

impl Executor {
    pub fn new(
        space: Arc<Space>,
        services: Services,
        config: &crate::Config,
        engines: CopyEngines,
    ) -> Executor {
        Executor {
            services: Arc::new(services),
            multiprocessors: config.multiprocessors,
            space,
            pool: ThreadPool::new(config.compute_threads()),
            cooperative: Mutex::new(()),
            engines,
        }
    }

    pub fn cancel(&self) {
        self.services.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.services.cancelled.load(Ordering::Relaxed)
    }

    pub fn execute(&self, op: &Op) -> Result<(), Failure> {
        match op {
            Op::Kernel { kernel, launch, parameters, units } => {
                self.kernel(kernel, launch, parameters, *units)
            }
            Op::Copy { copy, engine, .. } => self.copy(copy, *engine),
            Op::Set(set) => self.set(set),
            Op::WriteValue { address, value, width } => self.write_value(*address, *value, *width),
            Op::WaitValue { .. } => Ok(()),
        }
    }

    fn kernel(&self, kernel: &Kernel, launch: &Launch, parameters: &[u8], units: u64) -> Result<(), Failure> {
        let name = &kernel.entry().name;
        let launch_failed = |error: ptx::Error| Failure {
            code: CUDA_ERROR_LAUNCH_FAILED,
            sentence: format!("kernel `{name}` cannot be launched: {error}"),
        };
        let cooperative = is_cooperative(launch);
        let ptx_launch = ptx::Launch {
            module: &kernel.module.module,
            entry: kernel.entry,
            grid: launch.grid,
            block: launch.block,
            cluster: kernel.cluster(launch),
            dynamic_shared: launch.shared,
            parameters,
            addresses: &kernel.module.addresses,
            device: ptx::DeviceLimits {
                multiprocessors: self.multiprocessors,
                clock_hz: u64::from(CLOCK_KHZ) * 1000,
                shared_per_block: SHARED_OPTIN,
                workspace: if cooperative { self.services.arena.workspace() } else { 0 },
                units,
                unit: crate::parts::units(self.multiprocessors).multiprocessors,
            },
        };
        let grid = ptx::Grid::new(ptx_launch, &self.space.kernel_ranges()).map_err(launch_failed)?;
        let blocks = launch.grid.iter().map(|size| u64::from(*size)).product::<u64>();
        let alone = cooperative.then(|| self.cooperative.lock());
        let services = Arc::clone(&self.services) as Arc<dyn ptx::Host + Send>;
        let done = self.pool.run(grid, services, blocks);
        drop(alone);
        self.services.output.flush();
        match done {
            Ok(()) => Ok(()),
            Err(Stop::Fault(fault)) => fault_failure(fault).map_or(Ok(()), Err),
            Err(Stop::Panic) => Err(Failure::internal()),
        }
    }

    fn copy(&self, copy: &Copy3D, engine: Engine) -> Result<(), Failure> {
        let since = nanoseconds();
        access::copy(pieces(copy), || self.is_cancelled()).map_err(|miss| copy_failure(miss, "copy"))?;
        let engine = match engine {
            Engine::Up => 0,
            Engine::Down => 1,
            _ => return Ok(()),
        };
        let bytes = copy.width * copy.height * copy.depth;
        self.engines.pass(engine, bytes, since, || self.is_cancelled());
        Ok(())
    }

    fn set(&self, set: &MemorySet) -> Result<(), Failure> {
        let element = u64::from(set.element);
        let row = set.width * element;
        let pattern: Vec<u8> = set
            .value
            .to_le_bytes()
            .into_iter()
            .take(usize::from(set.element))
            .cycle()
            .take(row.min(1 << 20) as usize)
            .collect();
        let pieces = (0..set.height).flat_map(|y| {
            let start = set.address + y * set.pitch;
            (0..row).step_by(pattern.len().max(1)).map(move |at| (start + at, row - at))
        });
        let pieces = pieces.map(|(to, left)| Piece {
            to,
            from: pattern.as_ptr() as u64,
            bytes: left.min(pattern.len() as u64),
        });
        access::copy(pieces, || self.is_cancelled()).map_err(|miss| copy_failure(miss, "fill"))
    }

    fn write_value(&self, address: u64, value: u64, width: u32) -> Result<(), Failure> {
        let written = self.space.with_mapped(address, u64::from(width), true, || {
            if width == 4 {
                // SAFETY: aligned, as checked when the work was made, and mapped read-write while the closure runs.
                unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value as u32, Ordering::SeqCst);
            } else {
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::SeqCst);
            }
        });
        written.ok_or_else(|| copy_failure(Miss { address, write: true }, "write of a value"))
    }

    /// Whether a wait is over.
    pub fn is_met(&self, address: u64, value: u64, width: u32, condition: u32) -> Result<bool, Failure> {
        let found = self.space.with_mapped(address, u64::from(width), false, || {
            if width == 4 {
                // SAFETY: aligned, as checked when the work was made, and mapped readable while the closure runs.
                u64::from(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::SeqCst))
            } else {
                // SAFETY: as above.
                unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::SeqCst)
            }
        });
        let found = found.ok_or_else(|| copy_failure(Miss { address, write: false }, "wait for a value"))?;
        let mask = if width == 4 { u64::from(u32::MAX) } else { u64::MAX };
        Ok(match condition {
            0 if width == 4 => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
            0 => found.wrapping_sub(value) as i64 >= 0,
            1 => found == value & mask,
            2 => found & value & mask != 0,
            _ => !(found | value) & mask != 0,
        })
    }
}

impl ptx::Host for Services {
    fn printf(&self, text: &[u8]) {
        self.output.print(text);
    }

    fn malloc(&self, bytes: u64) -> u64 {
        self.arena.heap_take(bytes, self.heap_limit.load(Ordering::Relaxed))
    }

    fn free(&self, address: u64) {
        self.arena.heap_give(address);
    }

    fn view(&self, number: u64) -> Option<Arc<ptx::View>> {
        self.views.get(number)
    }

    fn set_conditional(&self, handle: u64, value: u32) {
        self.conditions.lock().insert(handle, value);
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// The engine for a copy between two places.
pub(crate) fn copy_engine(to: AddressKind, from: AddressKind) -> Engine {
    match (to, from) {
        (AddressKind::Device, AddressKind::Device) => Engine::Compute,
        (AddressKind::Host, AddressKind::Device) => Engine::Down,
        (_, AddressKind::Host) => Engine::Up,
    }
}

/// The rows of a copy; rows and slices without gaps between are one.
fn pieces(copy: &Copy3D) -> impl Iterator<Item = Piece> + use<> {
    let mut copy = *copy;
    if copy.width == copy.to_pitch && copy.width == copy.from_pitch {
        copy.width *= copy.height;
        copy.height = 1;
    }
    if copy.height == 1 && copy.width == copy.to_slice && copy.width == copy.from_slice {
        copy.width *= copy.depth;
        copy.depth = 1;
    }
    let copy = copy;
    (0..copy.depth).flat_map(move |z| (0..copy.height).map(move |y| (z, y))).map(move |(z, y)| Piece {
        to: copy.to + z * copy.to_slice + y * copy.to_pitch,
        from: copy.from + z * copy.from_slice + y * copy.from_pitch,
        bytes: copy.width,
    })
}

fn copy_failure(miss: Miss, what: &str) -> Failure {
    let verb = if miss.write { "wrote to" } else { "read from" };
    Failure {
        code: CUDA_ERROR_ILLEGAL_ADDRESS,
        sentence: format!("a {what} {verb} address {:#x}, which is not mapped for that", miss.address),
    }
}

/// The sticky code of a fault; nothing for a launch that was cancelled.
fn fault_failure(fault: ptx::Fault) -> Option<Failure> {
    use ptx::Fault;
    let code = match &fault {
        Fault::IllegalAddress { .. } => CUDA_ERROR_ILLEGAL_ADDRESS,
        Fault::MisalignedAddress { .. } => CUDA_ERROR_MISALIGNED_ADDRESS,
        Fault::Assert { .. } => CUDA_ERROR_ASSERT,
        Fault::IllegalInstruction { .. } => CUDA_ERROR_ILLEGAL_INSTRUCTION,
        Fault::StackOverflow { .. } => CUDA_ERROR_HARDWARE_STACK_ERROR,
        Fault::Deadlock { .. } => CUDA_ERROR_LAUNCH_TIMEOUT,
        Fault::Trap { .. } => CUDA_ERROR_LAUNCH_FAILED,
        Fault::Cancelled => return None,
    };
    Some(Failure { code, sentence: fault.to_string() })
}
