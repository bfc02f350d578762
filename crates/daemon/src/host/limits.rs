//! Limits of what a program may use of memory and processors: a group of the kernel's (`cgroups(7)`) for each sandbox that
//! has such.
//!
//! Version 2 of the interface is used where it has the controllers, else version 1. In version 2 groups lie below the
//! root: the daemon's own has processes, and can have no others below it. In version 1 they lie below the daemon's own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::Limits;

use crate::error::Result;
use crate::host::HostError;

const ROOT: &str = "/sys/fs/cgroup";
/// Names what is ours below that.
const OURS: &str = "rekindle";
const MEMBERS: &str = "cgroup.procs";
/// How long the kernel may take to have a group's last process gone, and how often it is asked.
const PARTING: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_millis(5);
/// The kernel's usual period, microseconds.
const PERIOD: u64 = 100_000;

/// The controllers' names in both versions, and where the kernel counts what it has ended for lack of memory.
const MEMORY: &str = "memory";
const PROCESSORS: &str = "cpu";
const KILLS: [&str; 2] = ["memory.events", "memory.oom_control"];

/// The group of a sandbox: a directory for each controller, or one for all.
pub struct Group {
    directories: Vec<PathBuf>,
}

impl Group {
    /// Makes the group of the sandbox `id`, or finds it as it was made; none if it has no limits.
    pub fn make(limits: &Limits, id: &str) -> Result<Option<Group>> {
        if limits.memory.is_none() && limits.processors.is_none() {
            return Ok(None);
        }
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::make_in(Path::new(ROOT), &own, limits, id)
            .map(Some)
            .map_err(|source| HostError::NoLimits { source }.into())
    }

    fn make_in(root: &Path, own: &str, limits: &Limits, id: &str) -> io::Result<Group> {
        let wanted = [limits.memory.map(|_| MEMORY), limits.processors.map(|_| PROCESSORS)];
        let wanted: Vec<_> = wanted.into_iter().flatten().collect();
        let group = Group { directories: Vec::new() };
        match has_second_version(root, &wanted) {
            true => group.second_version(root, limits, &wanted, id),
            false => group.first_version(root, own, limits, &wanted, id),
        }
    }

    fn second_version(
        mut self,
        root: &Path,
        limits: &Limits,
        wanted: &[&str],
        id: &str,
    ) -> io::Result<Group> {
        let ours = root.join(OURS);
        make_directory(&ours)?;
        for above in [root, &ours] {
            for controller in wanted {
                write(&above.join("cgroup.subtree_control"), &format!("+{}", controller))?;
            }
        }
        let own = self.add(ours.join(id))?;
        if let Some(bytes) = limits.memory {
            write(&own.join("memory.max"), &bytes.to_string())?;
            write_if_there(&own.join("memory.swap.max"), "0")?;
        }
        if let Some(thousandths) = limits.processors {
            write(&own.join("cpu.max"), &format!("{} {PERIOD}", quota(thousandths)))?;
        }
        Ok(self)
    }

    fn first_version(
        mut self,
        root: &Path,
        own: &str,
        limits: &Limits,
        wanted: &[&str],
        id: &str,
    ) -> io::Result<Group> {
        for controller in wanted {
            let above = root.join(controller);
            if !above.join(MEMBERS).exists() {
                let cause = format!("the kernel has no controller {controller} in {}", root.display());
                return Err(io::Error::new(io::ErrorKind::NotFound, cause));
            }
            let path = own.lines().find_map(|line| path_in(line, controller)).unwrap_or_default();
            let below = above.join(path.trim_start_matches('/'));
            let above = if below.is_dir() { below } else { above };
            self.add(above.join(format!("{OURS}-{id}")))?;
        }
        let mut directories = self.directories.iter();
        if let (Some(bytes), Some(own)) = (limits.memory, limits.memory.and_then(|_| directories.next())) {
            write(&own.join("memory.limit_in_bytes"), &bytes.to_string())?;
            write_if_there(&own.join("memory.memsw.limit_in_bytes"), &bytes.to_string())?;
        }
        if let (Some(thousandths), Some(own)) = (limits.processors, directories.next()) {
            write(&own.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
            write(&own.join("cpu.cfs_quota_us"), &quota(thousandths).to_string())?;
        }
        Ok(self)
    }

    fn add(&mut self, directory: PathBuf) -> io::Result<PathBuf> {
        make_directory(&directory)?;
        self.directories.push(directory.clone());
        Ok(directory)
    }

    /// The files by which a process comes in.
    pub fn doors(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|directory| directory.join(MEMBERS)).collect()
    }

    /// Whether the kernel has ended a process because there was no more memory for it.
    pub fn ran_out_of_memory(&self) -> bool {
        let count = |text: &str| {
            text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
        };
        let files = self.directories.iter().flat_map(|directory| KILLS.map(|name| directory.join(name)));
        files.filter_map(|file| fs::read_to_string(file).ok()).any(|text| count(&text))
    }
}

impl Drop for Group {
    /// Those that have ended and that nobody has waited for yet are still in it.
    fn drop(&mut self) {
        let began = Instant::now();
        for directory in &self.directories {
            while fs::remove_dir(directory).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
                && began.elapsed() < PARTING
            {
                thread::sleep(EVERY);
            }
        }
    }
}

fn has_second_version(root: &Path, wanted: &[&str]) -> bool {
    let there = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    wanted.iter().all(|controller| there.split_whitespace().any(|name| name == *controller))
}

/// Where this process is in the hierarchy of a controller, by a line of `/proc/self/cgroup`.
fn path_in<'a>(line: &'a str, controller: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    controllers.split(',').any(|name| name == controller).then_some(path)
}

fn quota(thousandths: u32) -> u64 {
    u64::from(thousandths) * PERIOD / 1000
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(named(path, error)),
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text).map_err(|error| named(path, error))
}

fn write_if_there(path: &Path, text: &str) -> io::Result<()> {
    if path.exists() { write(path, text) } else { Ok(()) }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Limits = Limits {
        memory: Some(64 << 20),
        processors: Some(1500),
        link_weight: None,
        sm_share: None,
        sm_weight: None,
        sm_most: None,
        share_memory: None,
        mend: None,
    };

    fn text(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn both_versions_are_told_the_same() {
        let place = tempfile::tempdir().unwrap();
        let second = place.path().join("second");
        fs::create_dir(&second).unwrap();
        fs::write(second.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        let group = Group::make_in(&second, "", &BOTH, "7").unwrap();
        let own = second.join("rekindle/7");
        assert_eq!(group.doors(), [own.join("cgroup.procs")]);
        assert_eq!(text(own.join("memory.max")), (64 << 20).to_string());
        assert_eq!(text(own.join("cpu.max")), "150000 100000");
        assert!(!group.ran_out_of_memory());
        fs::write(own.join("memory.events"), "oom 1\noom_kill 1\n").unwrap();
        assert!(group.ran_out_of_memory());

        let first = place.path().join("first");
        for directory in ["memory/mine", "cpu"] {
            fs::create_dir_all(first.join(directory)).unwrap();
        }
        for controller in ["memory", "cpu"] {
            fs::write(first.join(controller).join(MEMBERS), "").unwrap();
        }
        let group = Group::make_in(&first, "4:memory:/mine\n1:cpu:/gone\n", &BOTH, "7").unwrap();
        let [memory, cpu] = ["memory/mine/rekindle-7", "cpu/rekindle-7"].map(|path| first.join(path));
        assert_eq!(group.doors(), [memory.join("cgroup.procs"), cpu.join("cgroup.procs")]);
        assert_eq!(text(memory.join("memory.limit_in_bytes")), (64 << 20).to_string());
        assert_eq!(text(cpu.join("cpu.cfs_quota_us")), "150000");
        fs::write(memory.join("memory.oom_control"), "under_oom 0\noom_kill 0\n").unwrap();
        assert!(!group.ran_out_of_memory());
    }

    #[test]
    fn where_there_are_no_groups_that_is_said() {
        let place = tempfile::tempdir().unwrap();
        let error = Group::make_in(place.path(), "", &BOTH, "7").err().unwrap();
        assert!(error.to_string().contains("no controller memory"), "{error}");
    }
}
