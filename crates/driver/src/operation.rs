//! One operation on the processes of one program, from the first lock until all of them run again or have ended.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rekindle_protocol::fault;
use rekindle_protocol::worker::Phase;
use rekindle_sandbox::process::{tracer, tree};

use crate::areas::AreasBefore;
use crate::candidate::candidates;
use crate::error::{Error, Result};
use crate::huge::Switch;
use crate::journal::{Journal, Process, Step};
use crate::message::{Area, CheckpointedProcesses, Gpu, UuidPair};
use crate::prefault::Prefaulter;
use crate::states::{Driver, State};
use crate::{nccl, peers};

/// The driver's own limit on a lock may be this much late.
const LOCK_GRACE: Duration = Duration::from_secs(5);
/// How often a tree is looked through again for processes that came up while it was being locked.
const ROUNDS: usize = 8;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A call of a helper that died may still be at work in the driver: a process counts as running when it stays so.
const SETTLED: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the GPU's work to end.
    pub lock: Duration,
    /// For each other step.
    pub step: Duration,
}

pub struct Operation {
    driver: Arc<dyn Driver>,
    journal: Journal,
    limits: Limits,
    began: Instant,
    phases: Vec<Phase>,
}

impl Operation {
    /// Locks the GPU processes of the tree below `root` and has the driver put their GPU halves into their memory. If
    /// that fails all of them run again.
    pub fn hold(
        driver: &Arc<dyn Driver>,
        directory: &Path,
        id: &str,
        root: i32,
        limits: Limits,
    ) -> Result<(Operation, CheckpointedProcesses)> {
        let processes = find(driver, root, &[])?;
        let gpus = gpus_of(driver, &processes)?;
        let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
        let driver_version = gpus.first().map_or("", |gpu| &gpu.driver_version);
        nccl::refuse(&pids, driver_version)?;
        peers::refuse(&pids, &driver.usage(), driver_version)?;
        check_host_memory(&gpus)?;
        let journal = Journal::begin(directory, id, processes, Vec::new())?;
        let mut operation =
            Operation { driver: driver.clone(), journal, limits, began: Instant::now(), phases: Vec::new() };
        match operation.take(root, most_added(&gpus)) {
            Ok(areas) => {
                let phases = std::mem::take(&mut operation.phases);
                let held = CheckpointedProcesses { pids: operation.pids(), areas, gpus, phases };
                Ok((operation, held))
            }
            // The call is still under way in this process: only another one can undo it.
            Err(error @ Error::Hung { .. }) => Err(error),
            Err(error) => match operation.undo() {
                Ok(()) if matches!(error, Error::Ended { .. }) => Err(error),
                Ok(()) => Err(Error::Undone(Box::new(error))),
                Err(stuck) => Err(Error::Stuck(format!("{stuck}; that is after: {error}"))),
            },
        }
    }

    /// The driver adds `bytes` to the processes' memory at most, if that is known.
    fn take(&mut self, root: i32, bytes: u64) -> Result<Vec<Area>> {
        fault::point("driver-locking")?;
        let limit = self.limits.lock;
        let mut next = self.pids();
        for _ in 0..ROUNDS {
            self.each("lock", next, limit + LOCK_GRACE, State::Locked, move |driver, pid| {
                driver.lock(pid, limit)
            })?;
            let more = find(&self.driver, root, &self.journal.entry.processes)?;
            next = more.iter().map(|process| process.pid).collect();
            if next.is_empty() {
                break;
            }
            self.journal.add(more)?;
        }
        fault::point("driver-locked")?;
        let huge = Switch::take();
        self.journal.entry.huge_pages = huge.as_ref().map(|huge| huge.previous.clone());
        self.journal.step(Step::Checkpointing)?;
        let huge = huge.map(Switch::set);
        let all = self.pids();
        let before = AreasBefore::of(&all);
        let prefaulter = Prefaulter::begin(&before, bytes);
        self.each("checkpoint", all, self.limits.step, State::Checkpointed, |driver, pid| {
            driver.checkpoint(pid)
        })?;
        drop(prefaulter);
        drop(huge);
        self.journal.entry.huge_pages = None;
        fault::point("driver-checkpointed")?;
        self.journal.step(Step::Held)?;
        Ok(before.new_areas())
    }

    /// Brings processes that came out of an image to running. If it fails they are to be ended.
    pub fn restore(
        driver: &Arc<dyn Driver>,
        directory: &Path,
        id: &str,
        pids: &[i32],
        pairs: Vec<UuidPair>,
        limits: Limits,
    ) -> Result<Vec<Phase>> {
        for &pid in pids {
            let found = driver.state(pid);
            if found != Some(State::Checkpointed) {
                let found = found.map_or("no CUDA program", State::word);
                let reason = format!("it is {found}, expected checkpointed; its GPU half did not come back");
                return Err(Error::Step { step: "restore", pid, reason });
            }
        }
        let processes = pids.iter().filter_map(|pid| Process::find(*pid)).collect();
        let journal = Journal::begin(directory, id, processes, pairs)?;
        let (driver, began) = (driver.clone(), Instant::now());
        let mut operation = Operation { driver, journal, limits, began, phases: Vec::new() };
        let done = operation.bring_back();
        if !matches!(done, Err(Error::Hung { .. })) {
            operation.journal.end();
        }
        done.map(|()| operation.phases)
    }

    /// Brings the held processes back to running.
    pub fn release(mut self) -> Result<Vec<Phase>> {
        self.began = Instant::now();
        match self.bring_back() {
            Ok(()) => {
                self.journal.end();
                Ok(self.phases)
            }
            Err(error @ Error::Hung { .. }) => Err(error),
            Err(error) => {
                log::warn!("{error}; the states are read back and mended");
                let phases = std::mem::take(&mut self.phases);
                self.undo().map(|()| phases)
            }
        }
    }

    /// The held processes have ended, as was wanted.
    pub fn forget(self) {
        self.journal.end();
    }

    fn bring_back(&mut self) -> Result<()> {
        self.journal.step(Step::Restoring)?;
        fault::point("driver-restoring")?;
        let (pids, pairs) = (self.pids(), self.journal.entry.pairs.clone());
        self.each("restore", pids.clone(), self.limits.step, State::Locked, move |driver, pid| {
            driver.restore(pid, &pairs)
        })?;
        self.journal.step(Step::Unlocking)?;
        fault::point("driver-unlocking")?;
        self.each("unlock", pids, self.limits.step, State::Running, |driver, pid| driver.unlock(pid))
    }

    /// Finishes or undoes what a helper that is gone has left; a sentence for each process that was not running.
    pub fn recover(driver: &Arc<dyn Driver>, journal: Journal, limits: Limits) -> Result<Vec<String>> {
        fault::point("driver-recovering")?;
        let (driver, began) = (driver.clone(), Instant::now());
        let step = journal.entry.step;
        let notes: Vec<_> = journal.entry.processes.iter().filter(|process| process.is_alive()).collect();
        let notes = notes
            .into_iter()
            .filter_map(|process| Some((process.pid, driver.state(process.pid)?)))
            .filter(|(_, state)| *state != State::Running)
            .map(|(pid, state)| {
                format!("process {pid} was left {state} ({step:?}); it was brought back to running")
            })
            .collect();
        Operation { driver, journal, limits, began, phases: Vec::new() }.undo()?;
        Ok(notes)
    }

    /// Reads the states back and brings every process that lives to running, whatever was done to it.
    fn undo(mut self) -> Result<()> {
        if let Some(previous) = self.journal.entry.huge_pages.take() {
            previous.put_back();
        }
        let limit = self.limits.step;
        let (sender, receiver) = mpsc::channel();
        let count = self.journal.entry.processes.len();
        for process in self.journal.entry.processes.clone() {
            let (driver, pairs, sender) =
                (self.driver.clone(), self.journal.entry.pairs.clone(), sender.clone());
            std::thread::spawn(move || {
                let settled = settle(&*driver, &process, &pairs, limit);
                let _ = sender.send(settled.map_err(|reason| format!("process {}: {reason}", process.pid)));
            });
        }
        let until = Instant::now() + limit + LOCK_GRACE;
        let mut stuck = Vec::new();
        for _ in 0..count {
            match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Ok(())) => {}
                Ok(Err(sentence)) => stuck.push(sentence),
                Err(_) => {
                    let pid = self.pids().first().copied().unwrap_or(0);
                    return Err(Error::Hung { step: "bring back", pid, limit });
                }
            }
        }
        if !stuck.is_empty() {
            return Err(Error::Stuck(stuck.join("; ")));
        }
        self.journal.end();
        Ok(())
    }

    fn pids(&self) -> Vec<i32> {
        self.journal.entry.processes.iter().map(|process| process.pid).collect()
    }

    /// Does a step to all processes at once and reads their states back. Waits for all, also when one has failed.
    fn each(
        &mut self,
        step: &'static str,
        pids: Vec<i32>,
        limit: Duration,
        expected: State,
        call: impl Fn(&dyn Driver, i32) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let start = self.began.elapsed();
        let (sender, receiver) = mpsc::channel();
        for &pid in &pids {
            let (driver, call, sender) = (self.driver.clone(), call.clone(), sender.clone());
            std::thread::spawn(move || {
                let _ = sender.send((pid, call(&*driver, pid)));
            });
        }
        let until = Instant::now() + limit;
        let (mut waiting, mut failure) = (pids.clone(), None);
        while !waiting.is_empty() {
            match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((pid, done)) => {
                    waiting.retain(|other| *other != pid);
                    let failed = done.err().map(|error| self.explain(step, pid, error));
                    failure = failure.or(failed);
                }
                Err(_) => return Err(Error::Hung { step, pid: waiting[0], limit }),
            }
        }
        let duration = self.began.elapsed() - start;
        self.phases.push(Phase {
            name: step.to_string(),
            start_us: start.as_micros() as u64,
            duration_us: duration.as_micros() as u64,
            ..Phase::default()
        });
        if let Some(error) = failure {
            return Err(error);
        }
        for pid in pids {
            let found = self.driver.state(pid);
            if found != Some(expected) {
                let found = found.map_or("no CUDA program", State::word);
                let reason = format!("afterwards it is {found}, expected {expected}");
                return Err(self.explain(step, pid, Error::Step { step, pid, reason }));
            }
        }
        Ok(())
    }

    /// What failed because the process ended says that.
    fn explain(&self, step: &'static str, pid: i32, error: Error) -> Error {
        match self.journal.entry.processes.iter().find(|process| process.pid == pid) {
            Some(process) if !process.is_alive() => Error::Ended { step, pid },
            _ => error,
        }
    }
}

/// Brings one process to running, from whatever state it is in.
fn settle(driver: &dyn Driver, process: &Process, pairs: &[UuidPair], limit: Duration) -> Result<(), String> {
    let (until, mut running_since) = (Instant::now() + limit, None);
    let mut reason = String::from("it did not settle");
    while Instant::now() < until {
        if !process.is_alive() {
            return Ok(());
        }
        // One that CRIU holds can't answer the driver.
        if tracer(process.pid).is_some() {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        }
        let done = match driver.state(process.pid) {
            None => return Ok(()),
            Some(State::Running) => {
                if running_since.get_or_insert_with(Instant::now).elapsed() >= SETTLED {
                    return Ok(());
                }
                Ok(())
            }
            Some(State::Locked) => driver.unlock(process.pid),
            Some(State::Checkpointed) => driver.restore(process.pid, pairs),
            Some(State::Failed) => return Err("the driver says that it has failed; end it".to_string()),
        };
        if let Err(error) = done {
            reason = error.to_string();
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(reason)
}

/// The processes of the tree that the driver knows, but for those that are `known`; all must run.
fn find(driver: &Arc<dyn Driver>, root: i32, known: &[Process]) -> Result<Vec<Process>> {
    let mut out = Vec::new();
    for candidate in candidates(tree(root)) {
        let pid = candidate.pid;
        if known.iter().any(|process| process.pid == pid) {
            continue;
        }
        match (driver.state(pid), candidate.device) {
            (Some(State::Running), _) => out.extend(Process::find(pid)),
            (Some(found), _) => return Err(Error::NotRunning { pid, found: found.word() }),
            (None, Some(device)) => return Err(Error::DeviceOnly { pid, device }),
            (None, None) => {}
        }
    }
    Ok(out)
}

/// All GPUs, with what the processes have on each.
fn gpus_of(driver: &Arc<dyn Driver>, processes: &[Process]) -> Result<Vec<Gpu>> {
    let mut gpus = driver.gpus()?;
    for (uuid, pid, bytes) in driver.usage() {
        if processes.iter().any(|process| process.pid == pid)
            && let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.uuid == uuid)
        {
            gpu.used_bytes += bytes;
        }
    }
    Ok(gpus)
}

/// How much the driver may add to the host's memory: what the processes have on the GPUs, or, where NVML does not tell
/// that, what anybody has.
fn most_added(gpus: &[Gpu]) -> u64 {
    let used: u64 = gpus.iter().map(|gpu| gpu.used_bytes).sum();
    let anybody = gpus.iter().filter_map(|gpu| gpu.memory_bytes.checked_sub(gpu.free_bytes?)).sum();
    let most: u64 = if used > 0 { used } else { anybody };
    // What the driver needs beside contents.
    (most + most / 8).min(available_memory())
}

/// The driver would fail half-way, or the kernel would end a process.
fn check_host_memory(gpus: &[Gpu]) -> Result<()> {
    let needed: u64 = gpus.iter().map(|gpu| gpu.used_bytes).sum();
    let available = available_memory();
    if needed > available { Err(Error::HostMemory { needed, available }) } else { Ok(()) }
}

/// Of the host; all there could be if the kernel does not tell.
fn available_memory() -> u64 {
    rekindle_sandbox::memory::available().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
