//! Work in order: a graph of tasks, each waiting for those before it, and the threads that do them.
//!
//! A stream is nothing but its last task; an event is a task that does nothing. What is in the table is not done yet,
//! so a dependency on a number that the table does not have is met. Invariants: numbers ascend and are never used
//! twice; a task is queued for its engine once, when the last task it waits for is done; after a failure nothing
//! further is started, and whoever waits is released with the failure's code.
//!
//! An engine without work sleeps on its condition variable; only waits for a value in memory poll.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rekindle_cuda::CuResult;
use rekindle_device::Result;

use crate::launch::{self, Branch};
use crate::work::{Engine, Executor, Failure, Op};

pub(crate) type TaskId = u64;
/// A number that no task has: "nothing before this".
pub(crate) const NO_TASK: TaskId = 0;

/// When an event was reached.
pub(crate) type Record = Arc<OnceLock<Instant>>;

pub(crate) enum TaskWork {
    Op(Op),
    Call(Box<dyn FnOnce() + Send>),
    /// Does nothing but note when it was reached.
    Mark(Option<Record>),
    /// Conditions get these values.
    Assign(Arc<[(u64, u32)]>),
    /// Does what a condition says.
    Branch(Branch),
    /// What a latch was closed for has come.
    Open(TaskId),
}

struct Task {
    work: Option<TaskWork>,
    engine: Engine,
    priority: i32,
    /// Tasks that this one still waits for.
    pending: usize,
    successors: Vec<TaskId>,
}

/// Least first is done first: CUDA's priorities are higher the lower their number.
type Queue = BinaryHeap<Reverse<(i32, TaskId)>>;

/// Kernels that run at a time; more wait in their queue.
const MOST_RUNNERS: usize = 16;
const ENGINES: usize = 5;

#[derive(Default)]
struct Pool {
    queue: Queue,
    threads: usize,
    idle: usize,
}

struct State {
    tasks: BTreeMap<TaskId, Task>,
    next: TaskId,
    pools: [Pool; ENGINES],
    stopping: bool,
    waiters: usize,
    failure: Option<Failure>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    wake: [Condvar; ENGINES],
    done: Condvar,
    /// The failure's code, readable without the lock; 0 while there is none.
    sticky: AtomicI32,
    executor: Executor,
}

pub(crate) struct Scheduler {
    shared: Arc<Shared>,
}

/// Opens a latch when it is dropped: what the latch waits for is done, or never will be.
pub(crate) struct LatchOpener {
    shared: Weak<Shared>,
    latch: TaskId,
}

/// Tasks being added together, so that nobody sees half of them.
pub(crate) struct Batch<'a> {
    shared: &'a Arc<Shared>,
    state: MutexGuard<'a, State>,
}

impl Scheduler {
    pub fn new(executor: Executor) -> Scheduler {
        let state = State {
            tasks: BTreeMap::new(),
            next: NO_TASK,
            pools: Default::default(),
            stopping: false,
            waiters: 0,
            failure: None,
            threads: Vec::new(),
        };
        let (wake, done) = (Default::default(), Condvar::new());
        let shared = Shared { state: Mutex::new(state), wake, done, sticky: AtomicI32::new(0), executor };
        Scheduler { shared: Arc::new(shared) }
    }

    pub fn executor(&self) -> &Executor {
        &self.shared.executor
    }

    /// The code that everything answers after a failure.
    pub fn check(&self) -> Result<()> {
        CuResult(self.shared.sticky.load(Ordering::Acquire)).ok()
    }

    pub fn failure(&self) -> Option<Failure> {
        self.shared.state.lock().failure.clone()
    }

    pub fn batch(&self) -> Batch<'_> {
        Batch { shared: &self.shared, state: self.shared.state.lock() }
    }

    pub fn add(&self, work: TaskWork, engine: Engine, priority: i32, after: &[TaskId]) -> TaskId {
        self.batch().add(work, engine, priority, after)
    }

    /// Adds a latch after these tasks: see [`Batch::add_latch`].
    pub fn add_latch(&self, priority: i32, after: &[TaskId]) -> (TaskId, LatchOpener) {
        let latch = self.batch().add_latch(priority, after);
        (latch, LatchOpener { shared: Arc::downgrade(&self.shared), latch })
    }

    pub fn is_done(&self, tasks: &[TaskId]) -> Result<bool> {
        let state = self.shared.state.lock();
        let done = tasks.iter().all(|task| !state.tasks.contains_key(task));
        drop(state);
        // A failure takes all tasks away: those are not done.
        self.check()?;
        Ok(done)
    }

    /// Leaves those that are not done.
    pub fn retain_pending(&self, tasks: &mut Vec<TaskId>) {
        let state = self.shared.state.lock();
        tasks.retain(|task| state.tasks.contains_key(task));
    }

    /// Leaves all from the first on that is not done.
    pub fn pop_done(&self, tasks: &mut VecDeque<TaskId>) {
        let state = self.shared.state.lock();
        while tasks.pop_front_if(|task| !state.tasks.contains_key(task)).is_some() {}
    }

    pub fn wait(&self, tasks: &[TaskId]) -> Result<()> {
        self.wait_until(|state| tasks.iter().all(|task| !state.tasks.contains_key(task)))
    }

    /// Waits for every task that has been added so far.
    pub fn wait_all(&self) -> Result<()> {
        let last = self.shared.state.lock().next;
        self.wait_until(|state| state.tasks.first_key_value().is_none_or(|(first, _)| *first > last))
    }

    fn wait_until(&self, reached: impl Fn(&State) -> bool) -> Result<()> {
        let mut state = self.shared.state.lock();
        while !reached(&state) && state.failure.is_none() {
            state.waiters += 1;
            self.shared.done.wait(&mut state);
            state.waiters -= 1;
        }
        drop(state);
        self.check()
    }
}

impl Drop for LatchOpener {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.open(self.latch);
        }
    }
}

impl Drop for Scheduler {
    /// Ends running kernels, drops queued work, and waits for the threads, except one that is in a call of the host.
    fn drop(&mut self) {
        self.shared.executor.cancel();
        let (dropped, threads) = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            (std::mem::take(&mut state.tasks), std::mem::take(&mut state.threads))
        };
        drop(dropped);
        for wake in &self.shared.wake {
            wake.notify_all();
        }
        self.shared.done.notify_all();
        for thread in threads {
            let ours = thread.thread().id() == std::thread::current().id();
            if !ours && thread.join().is_err() {
                log::error!("a thread of the emulated GPU ended by a panic");
            }
        }
    }
}

impl Batch<'_> {
    /// Adds a task that does nothing and waits, besides those in `after`, for [`TaskWork::Open`] or a
    /// [`LatchOpener`].
    pub fn add_latch(&mut self, priority: i32, after: &[TaskId]) -> TaskId {
        let id = self.insert(TaskWork::Mark(None), Engine::Compute, priority, after);
        if let Some(task) = self.state.tasks.get_mut(&id) {
            task.pending += 1;
        }
        id
    }

    /// Adds a task that starts when those in `after` are done; what is done already is passed over.
    pub fn add(&mut self, work: TaskWork, engine: Engine, priority: i32, after: &[TaskId]) -> TaskId {
        let is_mark = matches!(work, TaskWork::Mark(_));
        let id = self.insert(work, engine, priority, after);
        if self.state.tasks.get(&id).is_some_and(|task| task.pending == 0) {
            match is_mark {
                true => self.shared.complete_mark(&mut self.state, id),
                false => self.shared.enqueue(&mut self.state, id),
            }
        }
        id
    }

    fn insert(&mut self, work: TaskWork, engine: Engine, priority: i32, after: &[TaskId]) -> TaskId {
        self.state.next += 1;
        let id = self.state.next;
        if self.state.failure.is_some() || self.state.stopping {
            return id;
        }
        let mut pending = 0;
        for before in after {
            if let Some(task) = self.state.tasks.get_mut(before) {
                task.successors.push(id);
                pending += 1;
            }
        }
        let task = Task { work: Some(work), engine, priority, pending, successors: Vec::new() };
        self.state.tasks.insert(id, task);
        id
    }
}

fn note(record: Option<Record>) {
    if let Some(record) = record {
        record.get_or_init(Instant::now);
    }
}

impl Shared {
    /// Hands a task whose dependencies are met to its engine.
    fn enqueue(self: &Arc<Shared>, state: &mut State, id: TaskId) {
        let Some(task) = state.tasks.get(&id) else { return };
        let (index, engine) = (task.engine as usize, task.engine);
        let most = if engine == Engine::Compute { MOST_RUNNERS } else { 1 };
        let entry = Reverse((task.priority, id));
        let pool = &mut state.pools[index];
        pool.queue.push(entry);
        if pool.idle >= pool.queue.len() || pool.threads >= most {
            self.wake[index].notify_one();
            return;
        }
        pool.threads += 1;
        let shared = Arc::clone(self);
        let name = format!("gpu-{engine:?}").to_lowercase();
        match std::thread::Builder::new().name(name.clone()).spawn(move || shared.run(engine)) {
            // A call of the host may never return, so its thread is not waited for.
            Ok(thread) if engine != Engine::Host => state.threads.push(thread),
            Ok(_) => {}
            Err(cause) => {
                state.pools[index].threads -= 1;
                if state.pools[index].threads == 0 {
                    let sentence = crate::Error::Thread { name, cause }.to_string();
                    drop(
                        self.fail(
                            state,
                            Failure { code: rekindle_cuda::CUDA_ERROR_OPERATING_SYSTEM, sentence },
                        ),
                    );
                }
            }
        }
    }

    /// Removes a task that is done, and everything that only waited for it.
    fn complete(self: &Arc<Shared>, state: &mut State, id: TaskId) {
        let mut done = vec![id];
        while let Some(id) = done.pop() {
            let Some(task) = state.tasks.remove(&id) else { continue };
            for next in task.successors {
                let Some(successor) = state.tasks.get_mut(&next) else { continue };
                successor.pending -= 1;
                if successor.pending > 0 {
                    continue;
                }
                match &mut successor.work {
                    Some(TaskWork::Mark(record)) => {
                        note(record.take());
                        done.push(next);
                    }
                    _ => self.enqueue(state, next),
                }
            }
        }
        if state.waiters > 0 {
            self.done.notify_all();
        }
    }

    /// Ends a task that does nothing, all of whose dependencies are met.
    fn complete_mark(self: &Arc<Shared>, state: &mut State, id: TaskId) {
        if let Some(TaskWork::Mark(record)) = state.tasks.get_mut(&id).and_then(|task| task.work.take()) {
            note(record);
        }
        self.complete(state, id);
    }

    /// A latch waits for one thing less.
    fn open(self: &Arc<Shared>, latch: TaskId) {
        let mut state = self.state.lock();
        let Some(task) = state.tasks.get_mut(&latch) else { return };
        task.pending -= 1;
        if task.pending == 0 {
            self.complete_mark(&mut state, latch);
        }
    }

    /// Adds the body that a condition has chosen, and then looks again, or opens the latch behind.
    fn branch(self: &Arc<Shared>, branch: Branch) {
        let value = self.executor.services.conditions.lock().get(&branch.handle).copied().unwrap_or(0);
        let Some(body) = branch.body(value) else { return self.open(branch.latch) };
        let mut batch = Batch { shared: self, state: self.state.lock() };
        let end = launch::launch_nodes(&mut None, &mut batch, &body, branch.priority, &[]);
        // A body has no nodes that could fail to be added.
        let Ok(end) = end else { return };
        let (priority, latch) = (branch.priority, branch.latch);
        let next = if branch.repeats() { TaskWork::Branch(branch) } else { TaskWork::Open(latch) };
        batch.add(next, Engine::Compute, priority, &[end]);
    }

    /// Makes the failure sticky. Answers the work that will not be done, for dropping without the lock.
    fn fail(&self, state: &mut State, failure: Failure) -> BTreeMap<TaskId, Task> {
        if state.failure.is_some() || state.stopping {
            return BTreeMap::new();
        }
        log::error!("emulated GPU: {}: {}", failure.code, failure.sentence);
        self.sticky.store(failure.code.0, Ordering::Release);
        self.executor.cancel();
        state.failure = Some(failure);
        for pool in &mut state.pools {
            pool.queue.clear();
        }
        self.done.notify_all();
        std::mem::take(&mut state.tasks)
    }

    /// The life of an engine's thread.
    fn run(self: Arc<Shared>, engine: Engine) {
        // A GPU's engine does not depend on who used it first.
        rekindle_parallel::go_as_usual();
        let index = engine as usize;
        let mut watched: Vec<(TaskId, Op)> = Vec::new();
        let mut pause = FIRST_PAUSE;
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return;
            }
            let next = state.pools[index].queue.pop().map(|entry| entry.0.1);
            let work = next.and_then(|id| Some((id, state.tasks.get_mut(&id)?.work.take()?)));
            match (next, work) {
                (Some(_), Some((id, TaskWork::Op(op)))) if engine == Engine::Watch => {
                    watched.push((id, op));
                    pause = FIRST_PAUSE;
                }
                (Some(_), Some((id, work))) => {
                    let done = MutexGuard::unlocked(&mut state, || self.execute(work));
                    self.finish(&mut state, id, done);
                    continue;
                }
                (Some(_), None) => continue,
                (None, _) if watched.is_empty() => {
                    state.pools[index].idle += 1;
                    self.wake[index].wait(&mut state);
                    state.pools[index].idle -= 1;
                    continue;
                }
                (None, _) => {
                    self.wake[index].wait_for(&mut state, pause);
                    pause = (pause * 2).min(LAST_PAUSE);
                }
            }
            if state.failure.is_some() {
                watched.clear();
            }
            watched.retain(|(id, op)| {
                let Op::WaitValue { address, value, width, condition } = op else { return false };
                match self.executor.is_met(*address, *value, *width, *condition) {
                    Ok(false) => true,
                    Ok(true) => {
                        pause = FIRST_PAUSE;
                        self.finish(&mut state, *id, Ok(()));
                        false
                    }
                    Err(failure) => {
                        self.finish(&mut state, *id, Err(failure));
                        false
                    }
                }
            });
        }
    }

    fn execute(self: &Arc<Shared>, work: TaskWork) -> std::result::Result<(), Failure> {
        let run = std::panic::AssertUnwindSafe(|| match work {
            TaskWork::Op(op) => self.executor.execute(&op),
            TaskWork::Call(call) => {
                call();
                Ok(())
            }
            TaskWork::Mark(record) => {
                note(record);
                Ok(())
            }
            TaskWork::Assign(values) => {
                self.executor.services.conditions.lock().extend(values.iter().copied());
                Ok(())
            }
            TaskWork::Branch(branch) => {
                self.branch(branch);
                Ok(())
            }
            TaskWork::Open(latch) => {
                self.open(latch);
                Ok(())
            }
        });
        std::panic::catch_unwind(run).unwrap_or_else(|_| Err(Failure::internal()))
    }

    fn finish(
        self: &Arc<Shared>,
        state: &mut MutexGuard<'_, State>,
        id: TaskId,
        done: std::result::Result<(), Failure>,
    ) {
        match done {
            Ok(()) => self.complete(state, id),
            Err(failure) => {
                let dropped = self.fail(state, failure);
                MutexGuard::unlocked(state, || drop(dropped));
            }
        }
    }
}

/// Between two looks at watched memory.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LAST_PAUSE: Duration = Duration::from_millis(1);
