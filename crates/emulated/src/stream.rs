//! Streams and events: who waits for whom.
//!
//! The legacy default stream waits for all work of the blocking streams, and they wait for its; streams made with
//! flag 1 (non-blocking) take no part in that.

use std::collections::{HashMap, VecDeque};

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Event, Result, Stream};

use crate::capture::CaptureId;
use crate::scheduler::{NO_TASK, Record, Scheduler, TaskId};

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`, and all flags there are.
const DISABLE_TIMING: u32 = 2;
const EVENT_FLAGS: u32 = 7;

/// Kernels, copies, fills and values that a stream takes before they are done: as many as one of an NVIDIA driver.
pub(crate) const QUEUE: usize = 1022;

/// Numbers of one device's streams and events.
const DEVICE_SHIFT: u32 = 48;

/// The device that made an event.
pub(crate) fn device_of(event: Event) -> u32 {
    (event.0 >> DEVICE_SHIFT) as u32
}

pub(crate) struct StreamState {
    pub blocking: bool,
    pub priority: i32,
    pub last: TaskId,
    /// Those that take room in it; some may be done.
    pub queue: VecDeque<TaskId>,
    pub capture: Option<CaptureId>,
    /// The units whose multiprocessors its kernels have; 0: all.
    pub units: u64,
}

impl StreamState {
    fn new(blocking: bool, priority: i32, units: u64) -> StreamState {
        StreamState { blocking, priority, last: NO_TASK, queue: VecDeque::new(), capture: None, units }
    }
}

pub(crate) struct EventState {
    pub timed: bool,
    /// The task that reaches it, and when that was.
    pub task: TaskId,
    pub record: Option<Record>,
    /// The capture in which it was recorded last, and the nodes before it.
    pub captured: Option<(CaptureId, Vec<usize>)>,
}

pub(crate) struct Streams {
    streams: HashMap<u64, StreamState>,
    events: HashMap<u64, EventState>,
    next: u64,
    /// Last tasks of blocking streams that were destroyed with work left.
    orphans: Vec<TaskId>,
}

impl Streams {
    /// Those of a device; no two devices number a stream or an event alike.
    pub fn new(device: u32) -> Streams {
        let legacy = StreamState::new(true, 0, 0);
        Streams {
            streams: HashMap::from([(Stream::LEGACY.0, legacy)]),
            events: HashMap::new(),
            next: u64::from(device) << DEVICE_SHIFT,
            orphans: Vec::new(),
        }
    }

    pub fn create(&mut self, flags: u32, priority: i32, units: u64) -> Result<Stream> {
        if flags & !NON_BLOCKING != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (least, greatest) = crate::attributes::PRIORITIES;
        let priority = priority.clamp(greatest, least);
        self.next += 1;
        let blocking = flags & NON_BLOCKING == 0;
        self.streams.insert(self.next, StreamState::new(blocking, priority, units));
        Ok(Stream(self.next))
    }

    pub fn destroy(&mut self, stream: Stream, scheduler: &Scheduler) -> Result<StreamState> {
        if stream == Stream::LEGACY {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let state = self.streams.remove(&stream.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if state.blocking {
            self.orphans.push(state.last);
            scheduler.retain_pending(&mut self.orphans);
        }
        Ok(state)
    }

    pub fn get(&self, stream: Stream) -> Result<&StreamState> {
        self.streams.get(&stream.0).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn get_mut(&mut self, stream: Stream) -> Result<&mut StreamState> {
        self.streams.get_mut(&stream.0).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut StreamState> {
        self.streams.values_mut()
    }

    /// What new work on a stream comes after.
    pub fn before(&self, stream: Stream) -> Result<Vec<TaskId>> {
        let state = self.get(stream)?;
        let mut tasks = vec![state.last];
        if stream == Stream::LEGACY {
            tasks.extend(self.streams.values().filter(|other| other.blocking).map(|other| other.last));
            tasks.extend(&self.orphans);
        } else if state.blocking {
            tasks.extend(self.streams.get(&Stream::LEGACY.0).map(|legacy| legacy.last));
        }
        tasks.retain(|task| *task != NO_TASK);
        tasks.sort_unstable();
        tasks.dedup();
        Ok(tasks)
    }

    /// Whether a stream that takes part in the legacy stream's order is being captured.
    pub fn blocking_capture(&self) -> Option<CaptureId> {
        self.streams.values().filter(|stream| stream.blocking).find_map(|stream| stream.capture)
    }

    pub fn create_event(&mut self, flags: u32) -> Result<Event> {
        if flags & !EVENT_FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.next += 1;
        let timed = flags & DISABLE_TIMING == 0;
        self.events.insert(self.next, EventState { timed, task: NO_TASK, record: None, captured: None });
        Ok(Event(self.next))
    }

    pub fn destroy_event(&mut self, event: Event) -> Result<()> {
        self.events.remove(&event.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn event(&self, event: Event) -> Result<&EventState> {
        self.events.get(&event.0).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    pub fn event_mut(&mut self, event: Event) -> Result<&mut EventState> {
        self.events.get_mut(&event.0).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}
