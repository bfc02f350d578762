//! What processors have of a program and CRIU does not keep: tile registers and protection keys.
//!
//! Tiles (Intel AMX) lie behind the 4 KB that CRIU takes of a thread's vector registers. Matrix products on processors use them:
//! torch's by oneDNN, llama.cpp. A process needs the kernel's leave to use tiles, which it asks for once and a restored one
//! has not got. Keys (`pkey_alloc`) say who may touch memory; V8 has some for its code.
//!
//! ```text
//!  dump     a thread of each process, before it stands ─ leave? keys? ─┐
//!           tracer ── tiles of each thread that CRIU touches ──────────┴▶ processor.img, among CRIU's files
//!                      └▶ the thread goes on with them
//!  restore  CRIU, with our library ── DETACH ─▶ of each process that has some, before its first thread runs:
//!                                               leave, keys, and tiles of each thread
//! ```
//!
//! Nobody outside of a process can see whether it has leave, and which keys, so one of its threads is made to ask.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};

use crate::conversation::Library;
use crate::process;
use crate::tracer::{self, PATIENCE};

mod keys;

/// The file's name among the images. It has records: process, thread or 0, [kind](Kind) and length, four bytes each in the
/// machine's order, then so many bytes.
pub const NAME: &str = "processor.img";
/// Loaded into a CRIU that restores.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/processor_in_criu.so"));
/// Tells the library of the descriptor of what it is to give.
const VARIABLE: &str = "REKINDLE_PROCESSOR";
/// What the library writes first when it is loaded, before the records.
const LOADED: u64 = 1;
const HEAD: u64 = 8;

/// As in `in_criu.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    /// The process may use tiles.
    Leave = 1,
    /// A thread's vector registers, as the kernel tells of them.
    Tiles = 2,
    /// See [`keys::Keys::record`].
    Keys = 3,
}

/// Of `arch_prctl`: what the machine has.
const GET_SUPPORTED: libc::c_long = 0x1021;
/// The parts of vector registers that are the tiles' shapes and the tiles.
const SHAPES: u64 = 1 << 17;
const TILES: u64 = 1 << 18;
/// Where the kernel says which parts there are.
const PARTS_AT: usize = 512;

/// Whether processors and kernel have tiles.
fn has_tiles() -> bool {
    let mut supported = 0u64;
    // SAFETY: the call writes 8 bytes to where the pointer leads.
    let done = unsafe { libc::syscall(libc::SYS_arch_prctl, GET_SUPPORTED, &raw mut supported) };
    done == 0 && supported & TILES != 0
}

/// Whether vector registers, as the kernel tells of them, have something in tiles, or a shape of them.
pub fn are_tiles_in(registers: &[u8]) -> bool {
    let parts = registers.get(PARTS_AT..).and_then(|rest| rest.first_chunk().copied());
    parts.is_some_and(|parts| u64::from_ne_bytes(parts) & (SHAPES | TILES) != 0)
}

/// What a program needs of processors that CRIU does not restore.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uses {
    pub tiles: bool,
    pub keys: bool,
}

impl Uses {
    /// Of the program of these images.
    pub fn read(images: &Path) -> io::Result<Self> {
        let (mut uses, mut at) = (Self::default(), 0);
        let kept = match fs::read(images.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(uses),
            kept => kept?,
        };
        while let Some(head) = kept.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
            let word = |number: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| head[4 * number + byte]));
            uses.keys |= word(2) == Kind::Keys as u32;
            uses.tiles |= word(2) != Kind::Keys as u32;
            at += head.len() + word(3) as usize;
        }
        Ok(uses)
    }

    pub fn are_any(self) -> bool {
        self.tiles || self.keys
    }

    /// What of it this machine does not have.
    pub fn missing(self) -> Vec<&'static str> {
        let tiles = (self.tiles && !has_tiles()).then_some("tile registers (AMX)");
        let keys = (self.keys && !keys::are_here()).then_some("protection keys of memory");
        tiles.into_iter().chain(keys).collect()
    }
}

/// A dump has begun: processes are asked, and the tracer has somewhere to keep what it finds.
#[derive(Debug, Default)]
pub struct Begun {
    asking: Option<JoinHandle<io::Result<()>>>,
    /// None where there is nothing to be found.
    pub found: Option<Found>,
}

impl Begun {
    /// Finds out what these processes, which run, have of it.
    pub fn new(images: &impl AsFd, processes: Vec<i32>) -> io::Result<Self> {
        let found = || {
            let images = images.as_fd().try_clone_to_owned()?.into();
            Ok::<_, io::Error>(Found { images, file: None, has_tiles: has_tiles() })
        };
        let mut asker = found()?;
        asker.forget()?;
        if !has_tiles() && !keys::are_here() {
            return Ok(Self::default());
        }
        // Who traces is a thread of its own, with which the kernel lets go of all.
        let thread = std::thread::Builder::new().name("processor".into());
        let asking = thread.spawn(move || asker.ask(&processes))?;
        Ok(Self { asking: Some(asking), found: Some(found()?) })
    }

    /// All have been asked.
    pub fn finish(self) -> Result<(), String> {
        let lost = |_| Err(io::Error::other("the thread that asked panicked"));
        let asked = self.asking.map_or(Ok(()), |asking| asking.join().unwrap_or_else(lost));
        asked.map_err(|error| format!("finding out what the program has of the processor: {error}"))
    }
}

/// Where a dump keeps what it finds; there is no file until there is something to keep.
#[derive(Debug)]
pub struct Found {
    images: File,
    file: Option<File>,
    has_tiles: bool,
}

impl Found {
    /// For the images in this directory: these processes, which run, have been asked. By whoever traces, whose end is to be no
    /// daemon's.
    pub fn ask_all(images: &Path, processes: &[i32]) -> io::Result<Self> {
        let mut found = Self { images: File::open(images)?, file: None, has_tiles: has_tiles() };
        found.forget()?;
        found.ask(processes)?;
        Ok(found)
    }

    /// What another dump has left with these images is over.
    fn forget(&self) -> io::Result<()> {
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.images.as_raw_fd().to_string()).join(NAME)
    }

    /// One that does not come to a stand for it counts as one that has nothing.
    fn ask(&mut self, processes: &[i32]) -> io::Result<()> {
        let mut told = SigSet::empty();
        told.add(Signal::SIGCHLD);
        told.thread_block()?;
        let deadline = Instant::now() + PATIENCE;
        let (wants_parts, wants_keys) = (self.has_tiles, keys::are_here());
        let processes = if wants_parts || wants_keys { processes } else { &[] };
        for &process in processes {
            let found = tracer::of_processor(process, deadline, wants_parts, wants_keys);
            let (parts, keys) = found.unwrap_or_else(|error| {
                log::info!("process {process} was not asked what it has of the processor: {error}");
                (None, None)
            });
            if parts.is_some_and(|parts| parts & TILES != 0) {
                self.keep(process, None, Kind::Leave, &[])?;
            }
            if let Some(keys) = keys.filter(|keys| *keys != 0) {
                self.keep(process, None, Kind::Keys, &keys::Keys::of(process, keys)?.record())?;
            }
        }
        Ok(())
    }

    /// Keeps the vector registers of a thread.
    pub fn keep_tiles(&mut self, process: i32, thread: i32, registers: &[u8]) -> io::Result<()> {
        self.keep(process, Some(thread), Kind::Tiles, registers)
    }

    fn keep(&mut self, process: i32, thread: Option<i32>, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        let inside = |pid: i32| process::innermost_pid(pid).unwrap_or(pid);
        let words = [inside(process), thread.map_or(0, inside), kind as i32, bytes.len() as i32];
        let record = [words.map(i32::to_ne_bytes).concat().as_slice(), bytes].concat();
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().append(true).create(true).open(self.path())?,
        };
        self.file.insert(file).write_all(&record)
    }
}

/// A library for a CRIU that restores, and what it gives the program.
#[derive(Debug)]
pub struct Given {
    library: File,
    records: File,
}

impl Given {
    pub fn new() -> io::Result<Self> {
        let file = |name: &str| {
            let name = CString::new(name)?;
            Ok::<_, io::Error>(File::from(memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)?))
        };
        let (mut library, mut records) = (file("rekindle-processor-in-criu")?, file("rekindle-processor")?);
        library.write_all(LIBRARY)?;
        records.write_all(&[0; HEAD as usize])?;
        Ok(Self { library, records })
    }

    /// The images are there now.
    pub fn fill(&mut self, images: &Path) -> io::Result<()> {
        let mut kept = Vec::new();
        File::open(images.join(NAME))?.read_to_end(&mut kept)?;
        self.records.seek(io::SeekFrom::Start(HEAD))?;
        self.records.write_all(&kept)
    }

    /// Whether CRIU has loaded the library, without which the program would end when it uses what it has not got.
    pub fn check(&self) -> Result<(), String> {
        let mut word = [0; HEAD as usize];
        let read = self.records.read_exact_at(&mut word, 0);
        match read.map(|()| u64::from_ne_bytes(word)) {
            Ok(LOADED) => Ok(()),
            _ => Err("the program uses tile registers (AMX) or protection keys, which CRIU does not restore, and our library \
                      for that could not be loaded into CRIU; take the CRIU that `make setup` gets"
                .into()),
        }
    }
}

impl Library for Given {
    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.library.as_raw_fd(), self.records.as_raw_fd()]
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let [library, records] = [&self.library, &self.records].map(AsRawFd::as_raw_fd);
        vec![("LD_PRELOAD", format!("/proc/self/fd/{library}")), (VARIABLE, records.to_string())]
    }
}
