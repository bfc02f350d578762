//! What the kernel keeps of threads and processes and CRIU does not, noted at a dump and set again before the program
//! runs.
//!
//! Only what differs from what the sandbox's init has is noted: that is what the program, or who started it, has chosen.
//! Everything else is inherited from the init of the sandbox that it is restored in.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use crate::affinity::{self, Noted};
use crate::process;

/// Of `ioprio_get` and `ioprio_set`.
const OF_THREAD: i32 = 1;
const CLASS_SHIFT: i32 = 13;

/// Of all processes of a program, by their ids as the program knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    threads: BTreeMap<i32, Thread>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    processes: BTreeMap<i32, Process>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Thread {
    /// The processors that it may use, as the kernel lists them: `0-3,8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    processors: Option<String>,
    /// As `ioprio_set` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    io_priority: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timer_slack_ns: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    /// In hexadecimal, as the kernel has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    core_dump_filter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    personality: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_policy: Option<String>,
}

impl Thread {
    fn of(thread: i32, processors: &Noted) -> Self {
        // SAFETY: ioprio_get takes two integers and touches no memory of ours.
        let io_priority = unsafe { libc::syscall(libc::SYS_ioprio_get, OF_THREAD, thread) } as i32;
        Self {
            processors: processors.list(thread),
            // Without a class it follows from how nice the thread is.
            io_priority: Some(io_priority).filter(|priority| priority >> CLASS_SHIFT > 0),
            // A thread with a real-time policy has none.
            timer_slack_ns: number(&format!("/proc/{thread}/timerslack_ns")).filter(|slack| *slack > 0),
        }
    }

    fn set(&self, thread: i32) -> io::Result<()> {
        if let Some(priority) = self.io_priority {
            // SAFETY: ioprio_set takes three integers and touches no memory of ours.
            if unsafe { libc::syscall(libc::SYS_ioprio_set, OF_THREAD, thread, priority) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if let Some(slack) = self.timer_slack_ns {
            fs::write(format!("/proc/{thread}/timerslack_ns"), slack.to_string())?;
        }
        Ok(())
    }
}

impl Process {
    fn of(pid: i32) -> Self {
        let word = |name: &str| Some(process::text(&format!("/proc/{pid}/{name}")).ok()?.trim().to_owned());
        Self {
            core_dump_filter: word("coredump_filter"),
            personality: word("personality"),
            memory_policy: memory_policy(pid),
        }
    }
}

/// The policy of a process's first thread, as the kernel shows it at the first area that has none of its own.
fn memory_policy(pid: i32) -> Option<String> {
    use io::{BufRead, BufReader};
    let mut line = Vec::new();
    // All of it would have the kernel look at every page.
    let file = fs::File::open(format!("/proc/{pid}/numa_maps")).ok()?;
    BufReader::with_capacity(512, file).read_until(b'\n', &mut line).ok()?;
    String::from_utf8_lossy(&line).split_whitespace().nth(1).map(str::to_owned)
}

fn number(path: &str) -> Option<u64> {
    process::text(path).ok()?.trim().parse().ok()
}

fn unlike<T: PartialEq>(value: Option<T>, standard: &Option<T>) -> Option<T> {
    value.filter(|value| Some(value) != standard.as_ref())
}

impl Attributes {
    /// Those of the processes `pids`, as far as they differ from those of the process `standard`; `processors` is what is known
    /// of them already.
    pub fn take(pids: &[i32], standard: i32, processors: &Noted) -> Self {
        let (usual_thread, usual_process) = (Thread::of(standard, processors), Process::of(standard));
        let mut out = Self::default();
        for &pid in pids {
            for thread in process::threads(pid) {
                let (Some(inside), found) = (process::innermost_pid(thread), Thread::of(thread, processors))
                else {
                    continue;
                };
                let found = Thread {
                    processors: unlike(found.processors, &usual_thread.processors),
                    io_priority: unlike(found.io_priority, &usual_thread.io_priority),
                    timer_slack_ns: unlike(found.timer_slack_ns, &usual_thread.timer_slack_ns),
                };
                if found != Thread::default() {
                    out.threads.insert(inside, found);
                }
            }
            let (Some(inside), found) = (process::innermost_pid(pid), Process::of(pid)) else { continue };
            let found = Process {
                core_dump_filter: unlike(found.core_dump_filter, &usual_process.core_dump_filter),
                personality: unlike(found.personality, &usual_process.personality),
                memory_policy: unlike(found.memory_policy, &usual_process.memory_policy),
            };
            if found != Process::default() {
                out.processes.insert(inside, found);
            }
        }
        out
    }

    /// What a restored program will not have, a sentence each.
    pub fn lost(&self) -> Vec<String> {
        let mut lost = BTreeMap::<String, Vec<i32>>::new();
        for (pid, process) in &self.processes {
            if let Some(personality) = &process.personality {
                lost.entry(format!("its personality ({personality})")).or_default().push(*pid);
            }
            if let Some(policy) = &process.memory_policy {
                lost.entry(format!("its memory policy ({policy})")).or_default().push(*pid);
            }
        }
        let sentence = |(what, pids): (String, Vec<i32>)| match &pids[..] {
            [pid] => format!("process {pid} will not have {what} after a restore: CRIU does not keep it"),
            pids => format!(
                "process {} and {} more will not have {} after a restore: CRIU does not keep it",
                pids.first().unwrap_or(&0),
                pids.len() - 1,
                what.replacen("its", "their", 1)
            ),
        };
        lost.into_iter().map(sentence).collect()
    }

    /// Gives the threads of a restored program, which do not run yet, what was noted of them. To be called by the
    /// sandbox's init, whose own processors they have by now; what could not be had is told in sentences.
    pub fn set(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut without = BTreeMap::<&str, Vec<i32>>::new();
        for (&thread, noted) in &self.threads {
            if let Some(list) = &noted.processors
                && let Err(error) =
                    affinity::read(list).and_then(|processors| affinity::set(thread, &processors))
            {
                match error {
                    nix::Error::EINVAL => without.entry(list).or_default().push(thread),
                    other => failures
                        .push(format!("thread {thread} could not be given its processors {list}: {other}")),
                }
            }
            if let Err(error) = noted.set(thread) {
                failures.push(format!(
                    "thread {thread} could not be given its priority and timer slack: {error}"
                ));
            }
        }
        failures.extend(without.into_iter().map(|(list, threads)| {
            let more = if threads.len() > 1 { format!(" and {} more", threads.len() - 1) } else { String::new() };
            format!(
                "thread {}{more} could use processors {list} alone, of which this sandbox has none, and may use all that it has",
                threads.first().unwrap_or(&0)
            )
        }));
        for (pid, noted) in &self.processes {
            if let Some(filter) = &noted.core_dump_filter
                && let Err(error) = fs::write(format!("/proc/{pid}/coredump_filter"), format!("0x{filter}"))
            {
                failures.push(format!("process {pid} could not be given its filter of core dumps: {error}"));
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn what_a_thread_has_chosen_is_noted_and_set_again() {
        let mut first = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let mut second = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let (pid, other) = (first.id() as i32, second.id() as i32);
        assert_eq!(Attributes::take(&[pid], other, &Noted::default()), Attributes::default());

        let chosen = Thread {
            processors: Some("0".into()),
            io_priority: Some(2 << CLASS_SHIFT | 6),
            timer_slack_ns: Some(77_777),
        };
        let filter = Process { core_dump_filter: Some("00000007".into()), ..Process::default() };
        let wanted = Attributes { threads: [(pid, chosen)].into(), processes: [(pid, filter)].into() };
        assert_eq!(wanted.set(), Vec::<String>::new());
        let mut taken = Attributes::take(&[pid], other, &Noted::default());
        if let Some(thread) = taken.threads.get_mut(&pid)
            && thread.processors.is_none()
        {
            // A machine with one processor.
            thread.processors = Some("0".into());
        }
        assert_eq!(taken, wanted);
        assert_eq!(taken.lost(), Vec::<String>::new());

        let nowhere = Thread { processors: Some("1000-1001".into()), ..Thread::default() };
        let nowhere = Attributes { threads: [(pid, nowhere)].into(), ..Attributes::default() };
        let said = nowhere.set();
        assert!(said.len() == 1 && said[0].contains("processors 1000-1001 alone"), "{said:?}");
        for child in [&mut first, &mut second] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_is_lost_is_told_once() {
        let odd = Process { personality: Some("00040000".into()), ..Process::default() };
        let bound = Process { memory_policy: Some("bind:0".into()), ..Process::default() };
        let processes = [(1000, odd.clone()), (1001, odd), (1002, bound)].into();
        let said = Attributes { processes, ..Attributes::default() }.lost();
        assert_eq!(said.len(), 2);
        assert!(said[0].starts_with("process 1002 will not have its memory policy (bind:0)"), "{said:?}");
        assert!(said[1].starts_with("process 1000 and 1 more will not have their personality"), "{said:?}");
    }
}
