//! Processes and threads: who there is, and that each has what CRIU makes it of.

use std::collections::HashSet;

use super::Result;
use super::image::{Entry, entries};
use super::source::Source;
use crate::proto::Value;

const PSTREE: &str = "pstree.img";

/// Of `core_entry`.
const TASK: u64 = 3;
const THREAD: u64 = 5;
const MACHINE: u64 = 1;
/// What CRIU calls a process that has ended and is not waited for yet.
const DEAD: u64 = 2;
const ZOMBIE: u64 = 6;

pub struct Task {
    pub pid: u32,
    /// Names its table of descriptors.
    pub files_id: u64,
    is_live: bool,
}

pub struct Tree {
    tasks: Vec<Task>,
}

impl Tree {
    pub fn read(source: &dyn Source) -> Result<Tree> {
        let text = source.read(PSTREE)?;
        let (mut tasks, mut pids, mut has_root) = (Vec::new(), HashSet::new(), false);
        for entry in entries(PSTREE, &text)? {
            let entry = entry?;
            // Process, parent, group, session.
            let [pid, parent, _, _] = entry.needed([1, 2, 3, 4])?;
            let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0);
            let pid = pid.ok_or_else(|| format!("{PSTREE} has a process without a pid"))?;
            match parent {
                0 if has_root => return Err(format!("{PSTREE} has several first processes")),
                0 => has_root = true,
                parent if !tasks.iter().any(|task: &Task| u64::from(task.pid) == parent) => {
                    return Err(format!("the parent of process {pid} does not come before it in {PSTREE}"));
                }
                _ => {}
            }
            let threads = threads(&entry)?;
            // The first is the process itself; CRIU does not say which of one that has ended.
            for id in threads.iter().copied().skip(1).chain([u64::from(pid)]) {
                if !pids.insert(id) {
                    return Err(format!("two processes or threads have the number {id}"));
                }
            }
            let is_live = check_leader(source, pid)?;
            for thread in threads.iter().skip(1).filter(|_| is_live) {
                check_core(source, *thread)?;
            }
            let files_id = if is_live { ids(source, pid)? } else { 0 };
            tasks.push(Task { pid, files_id, is_live });
        }
        match has_root {
            true => Ok(Tree { tasks }),
            false => Err(format!("{PSTREE} has no process")),
        }
    }

    /// Those that have not ended.
    pub fn live(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(|task| task.is_live)
    }
}

fn threads(entry: &Entry<'_>) -> Result<Vec<u64>> {
    const THREADS: u64 = 5;
    let mut threads = Vec::new();
    entry.each(|number, value| {
        if let (THREADS, Value::Number(thread)) = (number, value) {
            threads.push(thread);
        }
        Ok(())
    })?;
    Ok(threads)
}

/// Whether the process has not ended.
fn check_leader(source: &dyn Source, pid: u32) -> Result<bool> {
    let name = format!("core-{pid}.img");
    let text = source.read(&name)?;
    let core = entries(&name, &text)?.next().transpose()?.ok_or_else(|| format!("{name} is empty"))?;
    let task =
        core.message(TASK)?.ok_or_else(|| format!("{name} does not say what state its process is in"))?;
    let [state, ..] = task.needed([1, 2, 3, 4, 5])?;
    task.bytes(6)?.ok_or_else(|| format!("{name} has no name for its process"))?;
    let is_live = !matches!(state, DEAD | ZOMBIE);
    if is_live {
        check_thread(&name, &core)?;
    }
    Ok(is_live)
}

fn check_core(source: &dyn Source, thread: u64) -> Result<()> {
    let name = format!("core-{thread}.img");
    let text = source.read(&name)?;
    let core = entries(&name, &text)?.next().transpose()?.ok_or_else(|| format!("{name} is empty"))?;
    check_thread(&name, &core)
}

/// What a thread needs: registers, and what the kernel knows of it.
fn check_thread(name: &str, core: &Entry<'_>) -> Result<()> {
    const X86_64: u64 = 1;
    const REGISTERS: u64 = 2;
    if core.number(MACHINE)? != Some(X86_64) || core.message(REGISTERS)?.is_none() {
        return Err(format!("{name} has no registers of such a processor"));
    }
    let thread = core.message(THREAD)?.ok_or_else(|| format!("{name} does not describe a thread"))?;
    thread.needed([1, 2]).map(drop)
}

/// The number of the table of descriptors.
fn ids(source: &dyn Source, pid: u32) -> Result<u64> {
    let name = format!("ids-{pid}.img");
    let text = source.read(&name)?;
    let entry = entries(&name, &text)?.next().transpose()?.ok_or_else(|| format!("{name} is empty"))?;
    let [_, files_id, _, _] = entry.needed([1, 2, 3, 4])?;
    Ok(files_id)
}
