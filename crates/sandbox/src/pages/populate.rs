//! Memory that many threads write into a restored program, where CRIU would read it in one.
//!
//! CRIU maps what the program had allocated and finds no pages for it. When the program is complete, and before it runs,
//! its contents are written into it from outside: anything but zeros, which it holds already.
//!
//! ```text
//!  pagemap-populate-PID.img   which pages, in the format of CRIU's page maps
//!  pages-populate-PID.img     their contents, in that order
//! ```
//!
//! By then each thread's area for restartable sequences (rseq) is registered again, and holds what the kernel says of the
//! new machine. It is CRIU's to restore, and left alone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::area::PAGE;
use super::contents::{Run, filled};
use super::image::Entries;
use super::process::runs;
use super::remaining::without;
use crate::proto::Message;
use rekindle_parallel::threads;

const MAP: &str = "pagemap-populate-";
const PAGES: &str = "pages-populate-";
/// What a thread reads and writes at once: it stays in the core's cache between the two.
const PIECE: u64 = 1 << 20;
/// The most stretches that the kernel writes with one call.
const MOST: usize = 1024;

/// Of `pstree_entry`, `core_entry`, `thread_core_entry` and `rseq_entry`.
const PID: u64 = 1;
const THREADS: u64 = 5;
const THREAD_CORE: u64 = 5;
const RSEQ: u64 = 15;
const RSEQ_ADDRESS: u64 = 1;
const RSEQ_BYTES: u64 = 2;

pub fn map_name(pid: u32) -> String {
    format!("{MAP}{pid}.img")
}

pub fn pages_name(pid: u32) -> String {
    format!("{PAGES}{pid}.img")
}

/// Runs of one process, to be written by one thread.
struct Job<'a> {
    process: &'a Process,
    runs: Vec<Run>,
}

/// A process that is restored.
struct Process {
    /// As it sees itself.
    pid: u32,
    host_pid: i32,
    pages: File,
    runs: Vec<Run>,
}

/// Writes what the images in `images` have for that into the processes, whose pids are given with ours. How much it was.
pub fn populate(images: &Path, pids: &BTreeMap<i32, i32>) -> Result<u64, String> {
    let processes = processes(images, pids)?;
    let jobs: Vec<_> = processes.iter().flat_map(jobs).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut block = vec![0; PIECE as usize];
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            job.run(&mut block).inspect_err(|_| next.store(jobs.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads().min(jobs.len())).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<(), String>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).fold(Ok(()), Result::and)
    })?;
    Ok(jobs.iter().flat_map(|job| &job.runs).map(|run| run.memory.end - run.memory.start).sum())
}

fn processes(images: &Path, pids: &BTreeMap<i32, i32>) -> Result<Vec<Process>, String> {
    let failed = |error: io::Error| format!("{}: {error}", images.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(images).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(MAP)?.strip_suffix(".img"));
        found.extend(number.and_then(|pid| pid.parse::<u32>().ok()));
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let tree = Entries::read(&images.join("pstree.img"))?;
    found.into_iter().map(|pid| Process::read(images, pid, pids, &tree)).collect()
}

impl Process {
    fn read(images: &Path, pid: u32, pids: &BTreeMap<i32, i32>, tree: &Entries) -> Result<Process, String> {
        let strange = |what: &str| format!("process {pid}: {what}");
        let host_pid = *pids.get(&(pid as i32)).ok_or_else(|| strange("it did not come back"))?;
        let map = Entries::read(&images.join(map_name(pid)))?;
        let entries = map.entries.get(1..).unwrap_or_default();
        let (all, bytes) = runs(entries).ok_or_else(|| strange("the map of its memory is not understood"))?;
        let path = images.join(pages_name(pid));
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, pages) = opened.map_err(|error| format!("{}: {error}", path.display()))?;
        if length != bytes {
            return Err(strange(&format!("its memory takes {length} bytes, the map of it says {bytes}")));
        }
        let known = tree.entries.iter().find(|entry| entry.number(PID) == Some(pid.into()));
        let threads = known.into_iter().flat_map(|entry| entry.all_numbers(THREADS));
        let mut kernels: Vec<_> = threads.map(|thread| kernels(images, thread)).collect::<Result<_, _>>()?;
        kernels.sort_unstable_by_key(|area| area.start);
        Ok(Process { pid, host_pid, pages, runs: without(&all, &kernels) })
    }
}

/// Where the kernel writes for a thread; empty if nowhere.
fn kernels(images: &Path, thread: u64) -> Result<Range<u64>, String> {
    let core = Entries::read(&images.join(format!("core-{thread}.img")))?;
    let area = |core: &Message| {
        let thread = core.all_bytes(THREAD_CORE).next().and_then(Message::read)?;
        let rseq = thread.all_bytes(RSEQ).next().and_then(Message::read)?;
        let start = rseq.number(RSEQ_ADDRESS)?;
        Some(start..start.checked_add(rseq.number(RSEQ_BYTES)?)?)
    };
    Ok(core.entries.first().and_then(area).unwrap_or(0..0))
}

/// The process's runs in pieces, those that are small together.
fn jobs(process: &Process) -> Vec<Job<'_>> {
    let mut jobs = Vec::<Job<'_>>::new();
    let mut room = 0;
    for run in &process.runs {
        let mut from = run.memory.start;
        while from < run.memory.end {
            if room == 0 || jobs.last().is_none_or(|job| job.runs.len() == MOST) {
                jobs.push(Job { process, runs: Vec::new() });
                room = PIECE;
            }
            let piece = from..run.memory.end.min(from + room);
            room -= piece.end - piece.start;
            from = piece.end;
            if let Some(job) = jobs.last_mut() {
                job.runs.extend(run.within(&piece));
            }
        }
    }
    jobs
}

impl Job<'_> {
    fn run(&self, block: &mut [u8]) -> Result<(), String> {
        self.write(block).map_err(|error| {
            if error.raw_os_error() == Some(libc::ESRCH) {
                return format!("process {} ended while its memory was written", self.process.pid);
            }
            let at = self.runs.first().map_or(0, |run| run.memory.start);
            format!(
                "the memory of process {} from {at:#x} on could not be written: {error}",
                self.process.pid
            )
        })
    }

    fn write(&self, block: &mut [u8]) -> io::Result<()> {
        let mut rest = block;
        let mut stretches = Vec::new();
        for run in &self.runs {
            let (bytes, after) = rest.split_at_mut((run.memory.end - run.memory.start) as usize);
            rest = after;
            self.process.pages.read_exact_at(bytes, run.at)?;
            filled(bytes, PAGE, |at, bytes| {
                stretches.push((run.memory.start + at as u64, bytes.as_ptr(), bytes.len()));
                Ok(())
            })?;
        }
        stretches.chunks(MOST).try_for_each(|some| self.process.write(some))
    }
}

impl Process {
    /// Writes stretches of our memory, each to its address.
    fn write(&self, stretches: &[(u64, *const u8, usize)]) -> io::Result<()> {
        let vector = |base: *mut libc::c_void, iov_len| libc::iovec { iov_base: base, iov_len };
        let from: Vec<_> =
            stretches.iter().map(|(_, bytes, length)| vector(*bytes as *mut _, *length)).collect();
        let to: Vec<_> =
            stretches.iter().map(|(address, _, length)| vector(*address as *mut _, *length)).collect();
        let wanted: usize = stretches.iter().map(|(_, _, length)| length).sum();
        let count = stretches.len() as libc::c_ulong;
        // SAFETY: the local vectors point into the caller's block, which is only read; the others are of that process.
        let done =
            unsafe { libc::process_vm_writev(self.host_pid, from.as_ptr(), count, to.as_ptr(), count, 0) };
        match usize::try_from(done) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(done) if done < wanted => {
                Err(io::Error::other(format!("{done} of {wanted} bytes were taken")))
            }
            Ok(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::image::with_length;
    use super::*;
    use crate::proto::Encoder;

    fn image(entries: &[Encoder]) -> Vec<u8> {
        let entries = entries.iter().flat_map(|entry| with_length(&entry.0));
        b"headhead".iter().copied().chain(entries).collect()
    }

    fn map(runs: &[(u64, u64)]) -> Vec<u8> {
        let mut entries = vec![Encoder::default()];
        entries[0].number(1, 7);
        for (address, pages) in runs {
            let mut entry = Encoder::default();
            entry.number(1, *address).number(2, *pages).number(4, 4).number(5, *pages);
            entries.push(entry);
        }
        image(&entries)
    }

    /// The images of process 7 with one thread, for which the kernel writes to 32 bytes at `rseq`.
    fn images(directory: &Path, runs: &[(u64, u64)], pages: &[u8], rseq: u64) {
        let (mut tree, mut area, mut thread, mut core) = <(Encoder, Encoder, Encoder, Encoder)>::default();
        tree.number(1, 7).number(2, 0).number(5, 7);
        area.number(1, rseq).number(2, 32);
        thread.bytes(15, &area.0);
        core.number(1, 1).bytes(5, &thread.0);
        for (name, contents) in [
            ("pstree.img".to_string(), image(&[tree])),
            ("core-7.img".to_string(), image(&[core])),
            (map_name(7), map(runs)),
            (pages_name(7), pages.to_vec()),
        ] {
            fs::write(directory.join(name), contents).unwrap();
        }
    }

    fn own() -> BTreeMap<i32, i32> {
        BTreeMap::from([(7, std::process::id() as i32)])
    }

    #[test]
    fn memory_is_written_but_for_zeros_and_what_is_the_kernel_s() {
        const COUNT: u64 = 700;
        let memory = vec![9u8; ((COUNT + 1) * PAGE) as usize];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        let mut pages: Vec<u8> = (0..COUNT * PAGE).map(|at| (at / PAGE % 251) as u8 + 1).collect();
        pages[2 * PAGE as usize..3 * PAGE as usize].fill(0);
        let directory = tempfile::tempdir().unwrap();
        let rseq = start + 5 * PAGE + 64;
        // The second run begins where the first one ends in the file, and elsewhere in memory.
        images(
            directory.path(),
            &[(start, 6), (start + 10 * PAGE, COUNT - 10)],
            &pages[..(COUNT - 4) as usize * PAGE as usize],
            rseq,
        );
        assert_eq!(populate(directory.path(), &own()).unwrap(), (COUNT - 4) * PAGE - 32);
        let byte = |address: u64| memory[(address - memory.as_ptr() as u64) as usize];
        assert_eq!((byte(start), byte(start + PAGE), byte(start + 3 * PAGE)), (1, 2, 4));
        assert_eq!(byte(start + 2 * PAGE), 9, "zeros are there already");
        assert_eq!((byte(rseq - 1), byte(rseq), byte(rseq + 31), byte(rseq + 32)), (6, 9, 9, 6));
        assert_eq!((byte(start + 6 * PAGE), byte(start + 10 * PAGE)), (9, 7));
        assert_eq!(byte(start + COUNT * PAGE - 1), ((COUNT - 5) % 251) as u8 + 1);
    }

    #[test]
    fn what_cannot_be_written_is_told() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(populate(directory.path(), &own()), Ok(0));
        images(directory.path(), &[(0x1000, 1)], &[1; PAGE as usize], 0);
        let told = |pids: &BTreeMap<i32, i32>| populate(directory.path(), pids).unwrap_err();
        assert!(told(&own()).contains("process 7 from 0x1000 on"), "{}", told(&own()));
        assert!(told(&BTreeMap::new()).contains("did not come back"));
        fs::write(directory.path().join(pages_name(7)), [1; 100]).unwrap();
        assert!(told(&own()).contains("takes 100 bytes"));
        fs::write(directory.path().join(map_name(7)), b"headhead").unwrap();
        assert!(told(&own()).contains("says 0"));
    }
}
