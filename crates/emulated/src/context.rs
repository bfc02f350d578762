//! What a context's calls on streams, events, captures and graphs do: they turn into tasks of the scheduler, or into
//! nodes of a graph where a stream is being captured.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use rekindle_cuda::{
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_READY, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use rekindle_device::{Capture, Event, Graph, GraphExec, Part, Result, Stream};

use crate::capture::Captures;
use crate::graph::{Action, Graphs};
use crate::launch;
use crate::parts::{self, Parts};
use crate::scheduler::{Record, Scheduler, TaskId, TaskWork};
use crate::stream::{self, NON_BLOCKING, Streams};
use crate::work::{Engine, Op};

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: a node of its own in a capture.
const EXTERNAL: u32 = 1;

/// The contexts of one machine, by their devices.
pub(crate) type Contexts = Mutex<BTreeMap<u32, Weak<Context>>>;

pub(crate) struct Context {
    device: u32,
    machine: Arc<Contexts>,
    pub scheduler: Scheduler,
    /// Held while tasks are added, so that the order of calls is the order of tasks; taken before the scheduler's lock.
    inner: Mutex<Inner>,
}

struct Inner {
    streams: Streams,
    captures: Captures,
    graphs: Graphs,
    parts: Parts,
}

impl Context {
    pub fn new(device: u32, scheduler: Scheduler, machine: &Arc<Contexts>) -> Arc<Context> {
        let (captures, graphs, parts) = (Captures::default(), Graphs::default(), Parts::default());
        let inner = Inner { streams: Streams::new(device), captures, graphs, parts };
        let machine = Arc::clone(machine);
        let context = Arc::new(Context { device, machine, scheduler, inner: Mutex::new(inner) });
        context.machine.lock().insert(device, Arc::downgrade(&context));
        context
    }

    pub fn synchronize(&self) -> Result<()> {
        self.scheduler.check()?;
        if self.inner.lock().captures.unsafe_call() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        self.scheduler.wait_all()
    }

    /// Puts work on a stream. Waits while that has as much to do as it takes.
    pub fn submit(&self, stream: Stream, mut op: Op) -> Result<()> {
        self.scheduler.check()?;
        self.wait_for_room(stream)?;
        let mut inner = self.inner.lock();
        if let Op::Kernel { kernel, launch, units, .. } = &mut op {
            *units = inner.streams.get(stream)?.units;
            let all = self.scheduler.executor().multiprocessors;
            kernel.check_cooperative(launch, parts::multiprocessors(all, *units))?;
        }
        if inner.capturing(stream)? {
            return inner.capture_action(stream, Action::Op(op));
        }
        let engine = op.engine();
        let task = self.add(&mut inner, stream, TaskWork::Op(op), engine, &[])?;
        inner.streams.get_mut(stream)?.queue.push_back(task);
        Ok(())
    }

    fn wait_for_room(&self, stream: Stream) -> Result<()> {
        loop {
            let mut inner = self.inner.lock();
            let state = inner.streams.get_mut(stream)?;
            if state.queue.len() < stream::QUEUE {
                return Ok(());
            }
            self.scheduler.pop_done(&mut state.queue);
            let Some(oldest) = state.queue.front().copied().filter(|_| state.queue.len() >= stream::QUEUE)
            else {
                return Ok(());
            };
            drop(inner);
            self.scheduler.wait(&[oldest])?;
        }
    }

    pub fn call(&self, stream: Stream, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        if inner.capturing(stream)? {
            return Err(inner.unsupported(stream));
        }
        self.add(&mut inner, stream, TaskWork::Call(call), Engine::Host, &[]).map(drop)
    }

    /// Adds a task after all work of a stream and after `also`, and makes it the stream's last.
    fn add(
        &self,
        inner: &mut Inner,
        stream: Stream,
        work: TaskWork,
        engine: Engine,
        also: &[TaskId],
    ) -> Result<TaskId> {
        let mut after = inner.streams.before(stream)?;
        after.extend(also.iter().filter(|task| !after.contains(task)).copied().collect::<Vec<_>>());
        let state = inner.streams.get_mut(stream)?;
        state.last = self.scheduler.add(work, engine, state.priority, &after);
        Ok(state.last)
    }

    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<Stream> {
        self.scheduler.check()?;
        self.inner.lock().streams.create(flags, priority, 0)
    }

    pub fn part_create(&self, units: u64) -> Result<Part> {
        self.scheduler.check()?;
        self.inner.lock().parts.create(self.scheduler.executor().multiprocessors, units)
    }

    pub fn part_destroy(&self, part: Part) -> Result<()> {
        self.inner.lock().parts.destroy(part)
    }

    pub fn stream_create_on(&self, part: Part, priority: i32) -> Result<Stream> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        let units = inner.parts.units(part)?;
        inner.streams.create(NON_BLOCKING, priority, units)
    }

    pub fn stream_destroy(&self, stream: Stream) -> Result<()> {
        let mut inner = self.inner.lock();
        let state = inner.streams.destroy(stream, &self.scheduler)?;
        if let Some(capture) = state.capture {
            inner.captures.forget(capture, stream);
        }
        Ok(())
    }

    pub fn stream_query(&self, stream: Stream) -> Result<bool> {
        self.scheduler.is_done(&self.ends(stream)?)
    }

    pub fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        let ends = self.ends(stream)?;
        self.scheduler.wait(&ends)
    }

    /// The tasks that whoever waits for a stream waits for.
    fn ends(&self, stream: Stream) -> Result<Vec<TaskId>> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        if inner.capturing(stream)? {
            return Err(inner.unsupported(stream));
        }
        match stream {
            Stream::LEGACY => inner.streams.before(stream),
            _ => Ok(vec![inner.streams.get(stream)?.last]),
        }
    }

    pub fn stream_wait_event(&self, stream: Stream, event: Event, flags: u32) -> Result<()> {
        self.scheduler.check()?;
        let device = stream::device_of(event);
        if device != self.device {
            let other = self.machine.lock().get(&device).and_then(Weak::upgrade);
            return self.wait_for_other(stream, &*other.ok_or(CUDA_ERROR_INVALID_HANDLE)?, event);
        }
        let mut inner = self.inner.lock();
        let capturing = inner.capturing(stream)?;
        let own = inner.streams.get(stream)?.capture;
        let (task, captured) = {
            let state = inner.streams.event(event)?;
            (state.task, state.captured.clone())
        };
        if capturing && flags & EXTERNAL != 0 {
            return inner.capture_action(stream, Action::Wait(event));
        }
        match (own, captured) {
            (None, None) => {
                self.add(&mut inner, stream, TaskWork::Mark(None), Engine::Compute, &[task]).map(drop)
            }
            (Some(id), None) => Err(inner.captures.invalidate(id, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)),
            (_, Some((of, _))) if !inner.captures.is_open(of) => Err(CUDA_ERROR_CAPTURED_EVENT),
            (Some(id), Some((of, _))) if id != of => Err(inner.captures.merge(id, of)),
            (_, Some(_)) if stream == Stream::LEGACY => Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            (_, Some((of, nodes))) => {
                inner.captures.join(of, stream, &nodes)?;
                inner.streams.get_mut(stream)?.capture = Some(of);
                Ok(())
            }
        }
    }

    /// A stream waits for an event of another device.
    fn wait_for_other(&self, stream: Stream, other: &Context, event: Event) -> Result<()> {
        let reached = other.event_task(event)?;
        let mut inner = self.inner.lock();
        if inner.capturing(stream)? {
            let id = inner.streams.get(stream)?.capture.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
            return Err(inner.captures.invalidate(id, CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
        }
        let before = inner.streams.before(stream)?;
        let state = inner.streams.get_mut(stream)?;
        let (latch, opener) = self.scheduler.add_latch(state.priority, &before);
        state.last = latch;
        let open = TaskWork::Call(Box::new(move || drop(opener)));
        other.scheduler.add(open, Engine::Compute, state.priority, &[reached]);
        Ok(())
    }

    pub fn event_create(&self, flags: u32) -> Result<Event> {
        self.scheduler.check()?;
        self.inner.lock().streams.create_event(flags)
    }

    pub fn event_destroy(&self, event: Event) -> Result<()> {
        self.inner.lock().streams.destroy_event(event)
    }

    pub fn event_record(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        inner.streams.event(event)?;
        if inner.capturing(stream)? {
            if flags & EXTERNAL != 0 {
                return inner.capture_action(stream, Action::Record(event));
            }
            let id = inner.streams.get(stream)?.capture.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
            let ends = inner.captures.ends(id, stream)?;
            inner.streams.event_mut(event)?.captured = Some((id, ends));
            return Ok(());
        }
        let record = Record::default();
        let work = TaskWork::Mark(Some(Arc::clone(&record)));
        let task = self.add(&mut inner, stream, work, Engine::Compute, &[])?;
        launch::note_record(&mut inner.streams, event, task, record)
    }

    pub fn event_query(&self, event: Event) -> Result<bool> {
        self.scheduler.is_done(&[self.event_task(event)?])
    }

    pub fn event_synchronize(&self, event: Event) -> Result<()> {
        let task = self.event_task(event)?;
        self.scheduler.wait(&[task])
    }

    fn event_task(&self, event: Event) -> Result<TaskId> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        let (task, captured) = {
            let state = inner.streams.event(event)?;
            (state.task, state.captured.as_ref().map(|captured| captured.0))
        };
        match captured {
            None => Ok(task),
            Some(id) => Err(inner.captures.invalidate(id, CUDA_ERROR_CAPTURED_EVENT)),
        }
    }

    pub fn event_elapsed(&self, start: Event, end: Event) -> Result<f32> {
        self.scheduler.check()?;
        let inner = self.inner.lock();
        let moment = |event| -> Result<_> {
            let state = inner.streams.event(event)?;
            let record = state.record.as_ref().filter(|_| state.timed).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            record.get().copied().ok_or(CUDA_ERROR_NOT_READY)
        };
        let (start, end) = (moment(start)?, moment(end)?);
        let milliseconds = |from: Instant, to: Instant| to.duration_since(from).as_secs_f32() * 1000.0;
        Ok(if end >= start { milliseconds(start, end) } else { -milliseconds(end, start) })
    }

    pub fn capture_begin(&self, stream: Stream, mode: u32) -> Result<()> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        if mode > 2 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if stream == Stream::LEGACY {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if inner.streams.get(stream)?.capture.is_some() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        let id = inner.captures.begin(stream, mode);
        inner.streams.get_mut(stream)?.capture = Some(id);
        Ok(())
    }

    pub fn capture_end(&self, stream: Stream) -> Result<Graph> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        let id = inner.streams.get(stream)?.capture.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        let ended = inner.captures.end(id, stream);
        if !inner.captures.is_open(id) {
            for state in inner.streams.all_mut().filter(|state| state.capture == Some(id)) {
                state.capture = None;
            }
        }
        ended.map(|nodes| inner.graphs.add_captured(nodes))
    }

    pub fn capture(&self, stream: Stream) -> Result<Capture> {
        self.scheduler.check()?;
        let inner = self.inner.lock();
        if stream == Stream::LEGACY && inner.streams.blocking_capture().is_some() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        Ok(match inner.streams.get(stream)?.capture {
            None => Capture { status: 0, id: 0 },
            Some(id) if inner.captures.is_valid(id) => Capture { status: 1, id },
            Some(id) => Capture { status: 2, id },
        })
    }

    /// Calls on graphs that start no work.
    pub fn graphs<T>(&self, f: impl FnOnce(&mut Graphs) -> Result<T>) -> Result<T> {
        self.scheduler.check()?;
        f(&mut self.inner.lock().graphs)
    }

    pub fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        self.scheduler.check()?;
        let mut inner = self.inner.lock();
        let capturing = inner.capturing(stream)?;
        let state = inner.graphs.exec(exec)?;
        let (nodes, defaults, last) = (Arc::clone(&state.nodes), Arc::clone(&state.defaults), state.last);
        if capturing {
            return inner.capture_action(stream, Action::Child(nodes));
        }
        let mut after = inner.streams.before(stream)?;
        if !after.contains(&last) {
            after.push(last);
        }
        let priority = inner.streams.get(stream)?.priority;
        let end = {
            let mut batch = self.scheduler.batch();
            if !defaults.is_empty() {
                let assigned = batch.add(TaskWork::Assign(defaults), Engine::Compute, priority, &after);
                after = vec![assigned];
            }
            launch::launch_nodes(&mut Some(&mut inner.streams), &mut batch, &nodes, priority, &after)?
        };
        inner.graphs.exec(exec)?.last = end;
        inner.streams.get_mut(stream)?.last = end;
        Ok(())
    }
}

impl Inner {
    /// Whether work of a stream goes into a capture. Work of the legacy stream beside the capture of a blocking
    /// stream would have to wait for work that is never done, so it ends that capture.
    fn capturing(&mut self, stream: Stream) -> Result<bool> {
        if stream == Stream::LEGACY
            && let Some(id) = self.streams.blocking_capture()
        {
            return Err(self.captures.invalidate(id, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
        }
        Ok(self.streams.get(stream)?.capture.is_some())
    }

    fn capture_action(&mut self, stream: Stream, action: Action) -> Result<()> {
        let id = self.streams.get(stream)?.capture.ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        self.captures.add(id, stream, action)
    }

    fn unsupported(&mut self, stream: Stream) -> rekindle_cuda::CuResult {
        match self.streams.get(stream).map(|state| state.capture) {
            Ok(Some(id)) => self.captures.invalidate(id, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            _ => CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        }
    }
}
