//! What a program needs of the machine that restores it, taken while it stands still and checked before a
//! restore touches anything.
//!
//! Files in the run directory, in the sandbox's `/dev/shm`, in its layers over directories, deleted files and devices are
//! not in it: they come from the image or from the daemon.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rekindle_protocol::mounts::Mounts;
use serde::{Deserialize, Serialize};

use crate::affinity::Noted;
use crate::attributes::Attributes;
use crate::init::RUN_PATH;
use crate::input;
use crate::lost_names::LostNames;
use crate::mapped_file::{self, KnownFiles, MappedFile};
use crate::openfile::{self, OpenFile};
use crate::outputs::Pipes;
use crate::overlay::LayerFiles;
use crate::process::maps::{self, Area};
use crate::processor::Uses;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub files: Vec<MappedFile>,
    /// Files open by name.
    pub open_files: Vec<OpenFile>,
    /// The highest pid or thread id that has to be had again, in the sandbox's namespace.
    pub highest_pid: i32,
    /// The highest descriptor number in use.
    pub highest_descriptor: u64,
    /// What it writes to outside of its tree, by CRIU's names; see [`crate::outputs`].
    #[serde(default)]
    pub outputs: Vec<String>,
    /// Those of `outputs` that are its standard error alone.
    #[serde(default)]
    pub errors: Vec<String>,
    /// Whether its session was begun by a process outside of its tree.
    #[serde(default)]
    pub session_outside: bool,
    /// The pipe that is its standard input and that somebody outside of its tree writes to, by CRIU's name.
    #[serde(default)]
    pub input: Option<String>,
    #[serde(default)]
    pub attributes: Attributes,
    #[serde(default)]
    pub uses: Uses,
    /// The working directories of its processes.
    #[serde(default)]
    pub directories: Vec<PathBuf>,
}

/// An [`Inventory`] without what is known by descriptors.
#[derive(Debug, Default)]
pub struct PartialInventory {
    inventory: Inventory,
}

impl PartialInventory {
    /// CRIU has left the processes `pids`, which stand still yet.
    pub fn finish(self, pids: &[i32]) -> io::Result<Inventory> {
        let pipes = Pipes::of(pids);
        let mut out = Inventory {
            outputs: pipes.outside(),
            errors: pipes.errors(),
            session_outside: crate::process::is_session_outside(pids),
            input: input::of(pids, &pipes),
            ..self.inventory
        };
        let lost_names = OnceCell::new();
        let find = || lost_names.get_or_init(|| LostNames::find(pids));
        for pid in pids {
            let (open_files, highest) = openfile::list(*pid, find)?;
            out.open_files.extend(open_files);
            out.directories.extend(working_directory(*pid));
            out.highest_descriptor = out.highest_descriptor.max(highest);
        }
        out.open_files.sort();
        out.open_files.dedup();
        out.directories.sort();
        out.directories.dedup();
        Ok(out)
    }
}

/// Something that is not as the program had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    Missing { path: PathBuf, cause: String },
    NoDirectory { path: PathBuf, cause: String },
    Changed { path: PathBuf, found: String, expected: String },
    Pids { highest: i32, limit: i32 },
    Descriptors { highest: u64, limit: u64 },
    Processor { missing: Vec<&'static str> },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path, cause } => {
                write!(
                    out,
                    "{}, which the program used, cannot be read: {cause}; put it back",
                    path.display()
                )
            }
            Self::NoDirectory { path, cause } => write!(
                out,
                "{}, the working directory of the program, cannot be entered: {cause}; make it again",
                path.display()
            ),
            Self::Changed { path, found, expected } => write!(
                out,
                "{}, which the program used, has changed: found {found}, expected {expected}; put the old one back",
                path.display()
            ),
            Self::Pids { highest, limit } => write!(
                out,
                "the program needs pid {highest}, the limit is {limit}; raise the sysctl kernel.pid_max"
            ),
            Self::Descriptors { highest, limit } => write!(
                out,
                "the program uses descriptor {highest}, the limit is {limit}; raise the limit on open files"
            ),
            Self::Processor { missing } => write!(
                out,
                "the program uses the processor's {}, which this machine does not have; restore it on one that has them",
                missing.join(" and ")
            ),
        }
    }
}

impl Inventory {
    /// Takes stock of the processes `pids` (ours), which stand still, but for their descriptors: while CRIU looks at them
    /// they have some of its own. The sandbox's init is not among them. What `standard` has as well, the program has not
    /// chosen. Mapped files that are `known` are not read again, nor which processors threads have where that was noted.
    pub fn begin(
        pids: &[i32],
        standard: i32,
        known: &KnownFiles,
        processors: &Noted,
    ) -> io::Result<PartialInventory> {
        // Where a process has many areas and threads, each of these takes milliseconds.
        std::thread::scope(|scope| {
            let attributes = scope.spawn(|| Attributes::take(pids, standard, processors));
            let mut inventory = Self { files: mapped_files(pids, known)?, ..Self::default() };
            for pid in pids {
                for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
                    let inside = task.file_name().to_str().and_then(|name| name.parse().ok());
                    let inside = inside.and_then(crate::process::innermost_pid);
                    inventory.highest_pid = inventory.highest_pid.max(inside.unwrap_or(0));
                }
            }
            let failed = |_| io::Error::other("a thread that looked at the program panicked");
            inventory.attributes = attributes.join().map_err(failed)?;
            Ok(PartialInventory { inventory })
        })
    }

    /// Leaves out what an image brings along itself.
    pub(crate) fn leave_out(&mut self, kept: &[LayerFiles]) {
        let is_kept = |path: &Path| kept.iter().any(|layer| layer.has(path));
        self.files.retain(|file| !is_kept(&file.path));
        self.open_files.retain(|file| !is_kept(&file.path));
        self.directories.retain(|path| !is_kept(path));
    }

    /// What on this machine is not as the program had it; empty if a restore may go on.
    /// It will see `mounts`.
    pub fn check(&self, mounts: &Mounts) -> Vec<Mismatch> {
        let threads = rekindle_parallel::threads_for(self.files.len());
        let check = |(): &mut (), at: usize| Ok::<_, Infallible>(self.files[at].check(mounts));
        let Ok(files) = rekindle_parallel::map(threads, self.files.len(), || (), check);
        let mut out: Vec<_> = files.into_iter().flatten().collect();
        out.extend(self.directories.iter().filter_map(|path| check_directory(path, mounts)));
        out.extend(self.open_files.iter().filter_map(|file| check_open(file, mounts)));
        let limit =
            fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse().ok());
        if let Some(limit) = limit.filter(|&limit| self.highest_pid >= limit) {
            out.push(Mismatch::Pids { highest: self.highest_pid, limit });
        }
        if let Ok((_, limit)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
            && self.highest_descriptor >= limit
        {
            out.push(Mismatch::Descriptors { highest: self.highest_descriptor, limit });
        }
        let missing = self.uses.missing();
        if !missing.is_empty() {
            out.push(Mismatch::Processor { missing });
        }
        out
    }

    /// Files that the program reads and writes, and that have been written since: what it knows of them may be wrong.
    pub fn overtaken(&self, mounts: &Mounts) -> Vec<&Path> {
        let overtaken = self.open_files.iter().filter(|file| file.is_overtaken(mounts));
        // One that is open in several ways is there as often, in a row.
        let mut paths: Vec<_> = overtaken.map(|file| file.path.as_path()).collect();
        paths.dedup();
        paths
    }
}

/// The files that the processes `pids` have mapped, by their paths.
fn mapped_files(pids: &[i32], known: &KnownFiles) -> io::Result<Vec<MappedFile>> {
    let mut files = BTreeMap::new();
    for pid in pids {
        for path in mapped_paths(&maps::of(*pid)?) {
            if !files.contains_key(&path) {
                let reached = mapped_file::reached(*pid, &path);
                files.insert(path.clone(), known.find(path, &reached)?);
            }
        }
    }
    Ok(files.into_values().collect())
}

/// One that is of the machine's disks, and still has its name.
fn working_directory(pid: i32) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    let deleted = path.as_os_str().as_bytes().ends_with(b" (deleted)");
    (!deleted && !is_elsewhere(&path)).then_some(path)
}

fn check_directory(path: &Path, mounts: &Mounts) -> Option<Mismatch> {
    let cause = match fs::metadata(mounts.on_host(path)) {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => "it is no directory".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(Mismatch::NoDirectory { path: path.into(), cause })
}

/// A file that is written may have another size now, one that is read may not.
fn check_open(file: &OpenFile, mounts: &Mounts) -> Option<Mismatch> {
    let path = file.path.clone();
    match fs::metadata(mounts.on_host(&path)) {
        Err(error) => Some(Mismatch::Missing { path, cause: error.to_string() }),
        Ok(meta) if meta.len() != file.size && !file.is_written() => {
            let (found, expected) = (format!("{} bytes", meta.len()), format!("{} bytes", file.size));
            Some(Mismatch::Changed { path, found, expected })
        }
        Ok(_) => None,
    }
}

/// Whether the file does not come from the machine's disks: the image or the daemon brings it.
pub(crate) fn is_elsewhere(path: &Path) -> bool {
    let dirs = [RUN_PATH, "/dev", "/proc", "/sys"];
    let anonymous = path.as_os_str().as_bytes().starts_with(b"/memfd:") || path.starts_with("/SYSV");
    anonymous || dirs.iter().any(|dir| path.starts_with(dir))
}

/// The paths of the regular files among areas.
pub(crate) fn mapped_paths(areas: &[Area]) -> Vec<PathBuf> {
    let mut out = named_paths(areas);
    out.retain(|path| !is_elsewhere(path));
    out
}

/// The paths of all that is mapped by a name it still has.
pub(crate) fn named_paths(areas: &[Area]) -> Vec<PathBuf> {
    let mut out: Vec<_> = areas.iter().filter_map(Area::path).collect();
    out.sort();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_named_regular_files_are_taken() {
        let maps = b"55d0-55d1 r-xp 00000000 fe:00 1234   /usr/bin/a b\n\
            7f00-7f01 rw-p 00000000 00:00 0 [heap]\n\
            7f00-7f01 rw-s 00000000 00:0f 99 /run/rekindle/ring-0\n\
            7f00-7f01 rw-s 00000000 00:01 99 /memfd:x (deleted)\n\
            7f00-7f01 rw-p 00000000 fe:00 77 /tmp/gone (deleted)\n\
            7f00-7f01 rw-p 00000000 fe:00 78 /tmp/a\\012b\n\
            7f00-7f01 rw-s 00000000 00:05 5 /dev/zero\n";
        let areas = maps::parse(maps);
        assert_eq!(mapped_paths(&areas), [PathBuf::from("/tmp/a\nb"), PathBuf::from("/usr/bin/a b")]);
        assert!(named_paths(&areas).contains(&PathBuf::from("/dev/zero")));
    }

    #[test]
    fn own_process_matches_itself_and_a_change_is_told() {
        let own = std::process::id() as i32;
        let taken = Inventory::begin(&[own], own, &KnownFiles::default(), &Noted::default())
            .unwrap()
            .finish(&[own])
            .unwrap();
        assert!(taken.files.iter().any(|file| file.path.to_string_lossy().contains("libc.so")));
        assert_eq!(taken.check(&Mounts::default()), []);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::write(&path, vec![1; 10_000]).unwrap();
        let file = MappedFile::read(path.clone(), &path).unwrap();
        let inventory = Inventory {
            files: vec![file],
            open_files: Vec::new(),
            highest_pid: i32::MAX,
            highest_descriptor: u64::MAX,
            ..Inventory::default()
        };
        let said = |inventory: &Inventory| {
            inventory.check(&Mounts::default()).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert!(said(&inventory).contains("pid_max") && said(&inventory).contains("open files"));
        assert!(!said(&inventory).contains("data"));
        let modified = fs::metadata(&path).unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert!(said(&inventory).contains("modified at"));
        fs::write(&path, vec![2; 10_000]).unwrap();
        assert!(said(&inventory).contains("contents"));
        fs::write(&path, vec![2; 10]).unwrap();
        assert!(said(&inventory).contains("found 10 bytes, expected 10000 bytes"));
        fs::remove_file(&path).unwrap();
        assert!(said(&inventory).contains("cannot be read"));
    }
}
