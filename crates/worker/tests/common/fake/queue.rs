//! What the fake GPU does: one queue of tasks, and kernels that it knows by name.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use rekindle_cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
use rekindle_device::{MemorySet, Result, Stream};

use super::{FakeDevice, Knobs};

pub type Task = Box<dyn FnOnce(&Shared) + Send>;

#[derive(Default)]
pub struct State {
    pub next: u64,
    /// Last task of each stream.
    pub streams: HashMap<u64, u64>,
    /// The task after which an event is done, and when it was.
    pub events: HashMap<u64, u64>,
    pub times: HashMap<u64, Instant>,
    pub memory: HashMap<u64, (i32, u64)>,
    pub mapped: BTreeMap<u64, u64>,
    pub modules: BTreeMap<u64, u64>,
    pub functions: HashMap<u64, (String, u64)>,
    pub captures: HashMap<u64, (u64, Vec<Node>)>,
    pub graphs: HashMap<u64, Vec<Node>>,
    pub execs: HashMap<u64, Vec<Node>>,
    pub queue: VecDeque<(u64, Task)>,
    pub stop: bool,
    pub arena: u64,
}

#[derive(Clone)]
pub enum Node {
    Kernel(String, u64, Vec<u8>),
    Copy(u64, u64, u64),
    Set(MemorySet),
    Empty,
    Child(Vec<Node>),
}

pub struct Shared {
    pub state: Mutex<State>,
    pub changed: Condvar,
    pub done: AtomicU64,
    pub knobs: Arc<Knobs>,
}

impl Shared {
    pub fn run(&self) {
        loop {
            let mut state = self.state.lock().unwrap();
            let (number, task) = loop {
                if state.stop {
                    return;
                }
                match state.queue.pop_front() {
                    Some(next) => break next,
                    None => state = self.changed.wait(state).unwrap(),
                }
            };
            drop(state);
            task(self);
            let _state = self.state.lock().unwrap();
            self.done.store(number, Ordering::Release);
            self.changed.notify_all();
        }
    }

    pub fn perform(&self, node: &Node) {
        if self.knobs.sticky.load(Ordering::Relaxed) != 0 {
            return;
        }
        match node {
            Node::Empty => {}
            Node::Child(nodes) => nodes.iter().for_each(|node| self.perform(node)),
            // SAFETY: tests pass addresses of their own buffers.
            Node::Copy(to, from, bytes) => unsafe {
                std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes as usize);
            },
            Node::Set(set) => {
                for n in 0..set.width {
                    // SAFETY: as above.
                    unsafe { *((set.address + n) as *mut u8) = set.value as u8 };
                }
            }
            Node::Kernel(name, global, parameters) => self.kernel(name, *global, parameters),
        }
    }

    fn kernel(&self, name: &str, global: u64, parameters: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(parameters[at..at + 8].try_into().unwrap());
        match name {
            "add_one" => {
                let (base, count) = (word(0) as *mut u32, word(8));
                for n in 0..count as usize {
                    // SAFETY: the test's buffer is that long.
                    unsafe { *base.add(n) = (*base.add(n)).wrapping_add(1) };
                }
            }
            // SAFETY: the module's global is mapped as long as the module is loaded.
            "bump" => unsafe { *(global as *mut u32) += 1 },
            "spin" => {
                let flag = word(0) as *const u32;
                // SAFETY: the test's pinned memory.
                while unsafe { flag.read_volatile() } == 0 && !self.state.lock().unwrap().stop {
                    std::thread::yield_now();
                }
            }
            "fault" => self.knobs.sticky.store(CUDA_ERROR_ILLEGAL_ADDRESS.0, Ordering::Relaxed),
            other => panic!("unknown kernel {other}"),
        }
    }
}

impl FakeDevice {
    pub fn submit(&self, stream: Stream, task: Task) -> Result<u64> {
        self.check()?;
        let number = self.number();
        let mut state = self.state();
        state.streams.insert(stream.0, number);
        state.queue.push_back((number, task));
        self.shared.changed.notify_all();
        Ok(number)
    }

    pub fn node(&self, stream: Stream, node: Node) -> Result<()> {
        if let Some((_, nodes)) = self.state().captures.get_mut(&stream.0) {
            nodes.push(node);
            return Ok(());
        }
        self.submit(stream, Box::new(move |shared| shared.perform(&node)))?;
        Ok(())
    }

    pub fn wait_for(&self, number: u64) -> Result<()> {
        let mut state = self.state();
        while self.shared.done.load(Ordering::Acquire) < number {
            state = self.shared.changed.wait(state).unwrap();
        }
        drop(state);
        self.check()
    }

    pub fn is_done(&self, number: u64) -> Result<bool> {
        self.check()?;
        Ok(self.shared.done.load(Ordering::Acquire) >= number)
    }
}
