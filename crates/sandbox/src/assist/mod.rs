//! A library of ours in CRIU, which does some of a dump's calls in a shorter way, while the program stands still.
//!
//! ```text
//!  CRIU ── PAGEMAP_SCAN ─▶ the kernel, and what is hidden is left out at once: no tracer is asked.
//!                          Where that is, a thread of ours looks as soon as the program stands
//!       ── open smaps ───▶ areas, described before the program stood still, if they are those that there are
//!       ── map_files ────▶ what an area's link is, asked by several threads as soon as the program stands
//!       ── fdinfo ───────▶ of a mapped file, what one call tells
//!       ── sock_diag ────▶ of TCP the sockets that listen, if the program has no others
//!       ── ptrace ───────▶ what the tracer has told of a thread that stands; what is only of use once a thread goes on
//!                          is left with it, for the next call
//! ```
//!
//! It comes before the C library (`LD_PRELOAD`) and shares memory with us. What it does not do, or a CRIU that it could not be
//! loaded into, goes the way that the [filter](crate::tracer) makes.

mod answers;
mod areas;
#[cfg(test)]
pub mod fake_criu;
mod links;
mod look_ahead;
#[cfg(test)]
mod other_orders;
mod written;

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::conversation::Library;

pub use answers::{Answer, Answers};
use look_ahead::LookAhead;

/// Loaded into CRIU.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/in_criu.so"));
/// Tells the library of the descriptor of what is shared.
pub const VARIABLE: &str = "REKINDLE_ASSIST";
/// Descriptions of areas are kept of so many processes at most.
const PROCESSES: usize = 16;
/// What is shared, and room for descriptions: those of some 400,000 areas.
const LENGTH: usize = 64 << 20;
/// An image's own [list of files](crate::inventory) has their build ids, and a restore compares them. CRIU need not read them
/// once more.
const OPTIONS: &[u8] = b"file-validation filesize\n";

/// What lies at the beginning of what is shared; as in `in_criu.h`.
#[repr(C)]
struct Shared {
    /// CRIU's pid; its children are nobody that this is for.
    criu: AtomicU32,
    hides_unwritten: AtomicU32,
    /// How many requests of `ptrace` the library has answered.
    answered: AtomicU32,
    /// Of how many links CRIU was told what they are.
    linked: AtomicU32,
    /// Whether all TCP sockets that the program has listen.
    all_listen: LookAhead,
    unused_word: AtomicU32,
    areas: [DescribedProcess; PROCESSES],
    /// How many threads are in the table.
    thread_count: AtomicU32,
    unused_count: AtomicU32,
    thread_ids: [AtomicU32; answers::THREADS],
    /// The tracer's to write.
    threads: UnsafeCell<answers::Table>,
    /// The library's to write, until the tracer takes it.
    posted: UnsafeCell<answers::PostedTable>,
}

/// Where the areas of a process are described.
#[repr(C)]
struct DescribedProcess {
    pid: AtomicU32,
    /// Whether CRIU has read it.
    is_used: AtomicU32,
    at: AtomicU64,
    length: AtomicU64,
    /// Where its areas' links are, and how many.
    links: AtomicU64,
    link_count: AtomicU64,
    /// Where stretches of written pages are, and how many, once they are known.
    written: AtomicU64,
    written_count: AtomicU64,
    is_written_known: LookAhead,
    has_no_guards: LookAhead,
}

/// What one CRIU and we share.
#[derive(Debug)]
pub struct Assist {
    memory: MmapRaw,
    file: File,
    library: File,
    options: File,
    /// Whether it is known which processors the program's threads have: from then on that may be changed for a while.
    are_processors_noted: AtomicBool,
}

impl Assist {
    /// None where there is nothing to make it of.
    pub fn new(hides_unwritten: bool) -> Option<Self> {
        let made = Self::make();
        if let Err(error) = &made {
            log::debug!("CRIU is not assisted: {error}");
        }
        let assist = made.ok()?;
        assist.shared().hides_unwritten.store(hides_unwritten.into(), Ordering::Relaxed);
        Some(assist)
    }

    fn make() -> io::Result<Self> {
        let file = |name: &str| {
            let name = CString::new(name)?;
            Ok::<_, io::Error>(File::from(memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?))
        };
        let (mut library, mut options) = (file("rekindle-in-criu")?, file("rekindle-criu-options")?);
        let file = file("rekindle-assist")?;
        file.set_len(LENGTH as u64)?;
        library.write_all(LIBRARY)?;
        options.write_all(OPTIONS)?;
        let memory = MmapRaw::map_raw(&file)?;
        Ok(Self { memory, file, library, options, are_processors_noted: AtomicBool::new(false) })
    }

    /// The descriptor of a file with options for CRIU.
    pub fn options(&self) -> RawFd {
        self.options.as_raw_fd()
    }

    /// Of how many areas' links CRIU was told what they are.
    pub fn linked(&self) -> u64 {
        self.shared().linked.load(Ordering::Relaxed).into()
    }

    /// The daemon has seen the program stand, and noted which processors its threads have.
    pub fn processors_are_noted(&self) {
        self.are_processors_noted.store(true, Ordering::Release);
    }

    /// The program stands still, and its sockets are about to be looked at.
    pub fn looks_at_sockets(&self) {
        self.shared().all_listen.begin();
    }

    /// Whether all TCP sockets that the program has listen: then CRIU need not ask for others.
    pub fn sockets_are_known(&self, all_listen: bool) {
        self.shared().all_listen.end(all_listen);
    }

    /// How many requests of `ptrace` were answered there.
    pub fn answered(&self) -> u64 {
        self.shared().answered.load(Ordering::Relaxed).into()
    }

    fn table(&self) -> *mut answers::Table {
        self.shared().threads.get()
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is longer than `Shared`, begins at a page, is there for as long as we are, and is zeros, which
        // `Shared` may be. What is written from elsewhere is atomic, or in a cell.
        unsafe { &*self.memory.as_ptr().cast() }
    }
}

impl Library for Assist {
    fn descriptors(&self) -> Vec<RawFd> {
        [&self.file, &self.library, &self.options].map(AsRawFd::as_raw_fd).to_vec()
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let [file, library] = [&self.file, &self.library].map(AsRawFd::as_raw_fd);
        vec![("LD_PRELOAD", format!("/proc/self/fd/{library}")), (VARIABLE, file.to_string())]
    }

    fn serve(&self, criu: u32) {
        self.shared().criu.store(criu, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_library() {
        assert_eq!(std::mem::offset_of!(Shared, hides_unwritten), 4);
        assert_eq!(std::mem::offset_of!(Shared, answered), 8);
        assert_eq!(std::mem::offset_of!(Shared, areas), 24);
        let before = 32 + 64 * PROCESSES + 4 * answers::THREADS;
        assert_eq!(std::mem::offset_of!(Shared, threads), before);
        assert_eq!(size_of::<DescribedProcess>(), 64);
        let threads = size_of::<answers::Table>();
        assert_eq!(std::mem::offset_of!(Shared, posted), before + threads);
    }
}
