//! What an operation is about to do, on disk: `ID.json`, replaced as a whole before each step, and `ID.lock`, locked
//! for as long as somebody works on it. Whoever finds a journal that nobody works on takes the operation over.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rekindle_sandbox::Stat;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::huge::Previous;
use crate::message::UuidPair;

const LONGEST: u64 = 16 << 20;
/// A link is not followed, and a pipe in a file's place not waited for.
const NO_WAIT: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Who only looks whether a journal is abandoned has its lock for less, however busy the machine is; so has a process that
/// the daemon makes just then, which lets go of what it has inherited when it becomes another program.
const GLANCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    Locking,
    Checkpointing,
    /// The GPU halves are in the processes' memory, and CRIU may be at work.
    Held,
    Restoring,
    Unlocking,
}

/// A process, told from another that got its pid later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Ticks since the machine's start.
    started: u64,
}

impl Process {
    pub fn find(pid: i32) -> Option<Process> {
        let stat = Stat::of(pid).ok().filter(|stat| !stat.has_ended())?;
        Some(Process { pid, started: stat.field(Stat::START_TIME)? })
    }

    pub fn is_alive(&self) -> bool {
        Process::find(self.pid).as_ref() == Some(self)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The boot that the pids are of.
    boot: String,
    pub step: Step,
    pub processes: Vec<Process>,
    /// For processes that are brought back onto other GPUs.
    pub pairs: Vec<UuidPair>,
    /// To be put back.
    #[serde(default)]
    pub huge_pages: Option<Previous>,
}

pub struct Journal {
    directory: PathBuf,
    id: String,
    _lock: File,
    pub entry: Entry,
}

impl Journal {
    /// Begins an operation, its first step not yet begun.
    pub fn begin(
        directory: &Path,
        id: &str,
        processes: Vec<Process>,
        pairs: Vec<UuidPair>,
    ) -> Result<Journal> {
        let entry = Entry { boot: boot(), step: Step::Locking, processes, pairs, huge_pages: None };
        let lock = take_lock(&lock_path(directory, id), GLANCE)?;
        let journal = Journal { directory: directory.to_path_buf(), id: id.to_string(), _lock: lock, entry };
        journal.write()?;
        Ok(journal)
    }

    /// To be called before the step is begun.
    pub fn step(&mut self, step: Step) -> Result<()> {
        self.entry.step = step;
        self.write()
    }

    /// Notes further processes before anything is done to them.
    pub fn add(&mut self, processes: impl IntoIterator<Item = Process>) -> Result<()> {
        self.entry.processes.extend(processes);
        self.write()
    }

    fn write(&self) -> Result<()> {
        let place = path(&self.directory, &self.id);
        let partial = partial_path(&self.directory, &self.id);
        let write = || {
            let mut file = File::create(&partial)?;
            file.write_all(&serde_json::to_vec_pretty(&self.entry)?)?;
            file.sync_data()?;
            fs::rename(&partial, &place)?;
            File::open(&self.directory)?.sync_data()
        };
        write().map_err(Error::io("write the journal", &place))
    }

    /// Nothing is left to be done.
    pub fn end(self) {
        let _ = fs::remove_file(partial_path(&self.directory, &self.id));
        for path in [path(&self.directory, &self.id), lock_path(&self.directory, &self.id)] {
            if let Err(error) = fs::remove_file(&path) {
                log::warn!("{} stays: {error}", path.display());
            }
        }
    }

    /// All that are there, those that were not written whole before somebody died among them.
    pub fn all(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let id = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_string());
        entries.filter_map(|entry| id(entry.path())).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Those that are there and that nobody works on.
    pub fn abandoned(directory: &Path) -> Vec<String> {
        let is_abandoned = |id: &String| {
            let lock = File::options().read(true).custom_flags(NO_WAIT).open(lock_path(directory, id));
            let lock = lock.map(|lock| lock.try_lock().is_ok());
            path(directory, id).exists() && lock.unwrap_or(true)
        };
        Journal::all(directory).into_iter().filter(is_abandoned).collect()
    }

    /// Waits until nobody works on a journal and takes it over. None: it was finished, or is of another boot.
    pub fn take_over(directory: &Path, id: &str, within: Duration) -> Result<Option<Journal>> {
        let place = path(directory, id);
        let lock = take_lock(&lock_path(directory, id), within)?;
        // What was to be written was not to be done yet.
        let _ = fs::remove_file(partial_path(directory, id));
        let Some(entry) = read(&place)? else {
            let _ = fs::remove_file(lock_path(directory, id));
            return Ok(None);
        };
        let journal = Journal { directory: directory.to_path_buf(), id: id.to_string(), _lock: lock, entry };
        if journal.entry.boot == boot() {
            return Ok(Some(journal));
        }
        journal.end();
        Ok(None)
    }
}

fn read(place: &Path) -> Result<Option<Entry>> {
    let text = match read_regular(place) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read the journal", place)(error)),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| Error::io("understand the journal", place)(io::Error::from(error)))
}

/// All of a regular file. Whatever else has its name is neither followed nor waited for.
fn read_regular(place: &Path) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(NO_WAIT).open(place)?;
    let found = file.metadata()?;
    match found.len() {
        _ if !found.is_file() => Err(io::Error::other("it is no regular file; remove it")),
        bytes if bytes > LONGEST => {
            Err(io::Error::other(format!("it has {bytes} bytes, the most is {LONGEST}; remove it")))
        }
        bytes => {
            let mut text = Vec::with_capacity(bytes as usize);
            file.take(LONGEST).read_to_end(&mut text).map(|_| text)
        }
    }
}

fn take_lock(path: &Path, within: Duration) -> Result<File> {
    let failed = Error::io("lock the journal", path);
    let began = Instant::now();
    let lock = || loop {
        let file = File::options().create(true).append(true).custom_flags(NO_WAIT).open(path)?;
        match file.try_lock() {
            // Whoever held it before may have removed it.
            Ok(()) if same_file(&file, path) => return Ok(file),
            Ok(()) => {}
            Err(fs::TryLockError::Error(error)) => return Err(error),
            Err(fs::TryLockError::WouldBlock) if began.elapsed() >= within => {
                return Err(io::Error::other("another helper works on it"));
            }
            Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOOK_AGAIN),
        }
    };
    lock().map_err(failed)
}

fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let ids = |meta: io::Result<fs::Metadata>| meta.map(|meta| (meta.dev(), meta.ino())).ok();
    ids(file.metadata()) == ids(fs::metadata(path))
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

fn path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.json"))
}

fn partial_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.partial"))
}

fn lock_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.lock"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A lock may stay with processes that other tests make, until those have become other programs.
    pub const PATIENCE: Duration = Duration::from_secs(120);

    fn abandoned_within_patience(directory: &Path) -> Vec<String> {
        let began = Instant::now();
        loop {
            let abandoned = Journal::abandoned(directory);
            if !abandoned.is_empty() || began.elapsed() > PATIENCE {
                return abandoned;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    #[test]
    fn a_journal_is_taken_over_by_one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let me = Process::find(std::process::id() as i32).unwrap();
        let mut journal = Journal::begin(directory.path(), "a", vec![me.clone()], Vec::new()).unwrap();
        journal.step(Step::Held).unwrap();
        let busy = Journal::take_over(directory.path(), "a", Duration::from_millis(30));
        assert!(busy.err().unwrap().to_string().contains("another helper"));
        assert_eq!(Journal::all(directory.path()), ["a"]);
        assert!(Journal::abandoned(directory.path()).is_empty());
        drop(journal);
        assert_eq!(abandoned_within_patience(directory.path()), ["a"]);
        let taken = Journal::take_over(directory.path(), "a", PATIENCE).unwrap().unwrap();
        assert_eq!((taken.entry.step, &taken.entry.processes), (Step::Held, &vec![me]));
        taken.end();
        assert!(Journal::take_over(directory.path(), "a", Duration::ZERO).unwrap().is_none());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["a.json", "b.lock"] {
            nix::unistd::mkfifo(&at(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        std::os::unix::fs::symlink("/dev/zero", at("c.json")).unwrap();
        File::create(at("d.json")).unwrap().set_len(1 << 40).unwrap();
        let (send, done) = std::sync::mpsc::channel();
        let path = directory.path().to_path_buf();
        std::thread::spawn(move || {
            Journal::abandoned(&path);
            let taken = |id: &str| Journal::take_over(&path, id, Duration::ZERO);
            send.send(["a", "b", "c", "d"].map(|id| taken(id).err().map(|error| error.to_string()))).unwrap();
        });
        let told = done.recv_timeout(PATIENCE).unwrap();
        assert!(told.iter().all(Option::is_some), "{told:?}");
    }

    #[test]
    fn one_begins_while_another_looks_whether_it_is_abandoned() {
        let directory = tempfile::tempdir().unwrap();
        let look = take_lock(&lock_path(directory.path(), "a"), Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let begins = scope.spawn(|| Journal::begin(directory.path(), "a", Vec::new(), Vec::new()));
            std::thread::sleep(LOOK_AGAIN);
            drop(look);
            begins.join().unwrap().unwrap().end();
        });
    }

    #[test]
    fn what_was_not_written_whole_is_found_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a.lock", "a.partial", "b.partial", "c.lock"] {
            fs::write(directory.path().join(name), "{").unwrap();
        }
        assert_eq!(Journal::all(directory.path()), ["a", "b", "c"]);
        for id in ["a", "b", "c"] {
            assert!(Journal::take_over(directory.path(), id, Duration::ZERO).unwrap().is_none());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_pid_used_again_is_another_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::find(child.id() as i32).unwrap();
        assert!(process.is_alive());
        assert!(!Process { started: process.started + 1, ..process.clone() }.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn what_is_no_journal_is_told() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("x.json"), "{").unwrap();
        let error = Journal::take_over(directory.path(), "x", Duration::ZERO).err().unwrap();
        assert!(error.to_string().contains("x.json"), "{error}");
    }
}
