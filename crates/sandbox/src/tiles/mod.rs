//! Tile registers of processors (Intel AMX), which CRIU knows nothing of: it keeps 4 KB of a thread's vector registers, and
//! tiles lie behind them. Matrix products on processors use them, in torch by oneDNN and in llama.cpp.
//!
//! ```text
//!  dump     tracer ── registers of each thread that CRIU touches ─▶ thread goes on with them
//!                                                                └▶ tiles.img, among CRIU's files
//!  restore  CRIU, with our library ── DETACH ─▶ of each process that has some, before its first thread runs:
//!                                               leave to use tiles, then those of each thread
//! ```
//!
//! A process needs the kernel's leave to use tiles, which it asks for once and a restored one has not got. Nobody outside of
//! a process can see whether it has leave, so one of its threads is made to ask, before the program is brought to a stand.
//!
//! The file has records: process, thread and length (four bytes each, in the machine's order), then so many bytes of the
//! thread's vector registers, as the kernel tells of them. One without a thread says that the process has leave.

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

use crate::conversation::Library;
use crate::process;
use crate::tracer::{self, PATIENCE};

/// The file's name among the images.
pub const NAME: &str = "tiles.img";
/// Loaded into a CRIU that restores.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tiles_in_criu.so"));
/// Tells the library of the descriptor of what it is to give.
const VARIABLE: &str = "REKINDLE_TILES";
/// What the library writes first when it is loaded, before the records.
const LOADED: u64 = 1;
const HEAD: u64 = 8;

/// Of `arch_prctl`: what the machine has.
const GET_SUPPORTED: libc::c_long = 0x1021;
/// The parts of vector registers that are the tiles' shapes and the tiles.
const SHAPES: u64 = 1 << 17;
const TILES: u64 = 1 << 18;
/// Where the kernel says which parts there are.
const PARTS_AT: usize = 512;

/// Whether processors and kernel have tiles.
pub fn are_here() -> bool {
    let mut supported = 0u64;
    // SAFETY: the call writes 8 bytes to where the pointer leads.
    let done = unsafe { libc::syscall(libc::SYS_arch_prctl, GET_SUPPORTED, &raw mut supported) };
    done == 0 && supported & TILES != 0
}

/// Whether vector registers, as the kernel tells of them, have something in tiles, or a shape of them.
pub fn are_in(registers: &[u8]) -> bool {
    let parts = registers.get(PARTS_AT..).and_then(|rest| rest.first_chunk().copied());
    parts.is_some_and(|parts| u64::from_ne_bytes(parts) & (SHAPES | TILES) != 0)
}

/// A dump has begun: processes are asked, and the tracer has somewhere to keep what it finds.
#[derive(Debug, Default)]
pub struct Begun {
    asking: Option<JoinHandle<io::Result<()>>>,
    /// None where there are no tiles.
    pub found: Option<Found>,
}

impl Begun {
    /// Finds out which of these processes, which run, may use tiles. What another dump has left with these images is over.
    pub fn new(images: &impl AsFd, processes: Vec<i32>) -> io::Result<Self> {
        let found =
            || Ok::<_, io::Error>(Found { images: images.as_fd().try_clone_to_owned()?.into(), file: None });
        let earlier = found()?;
        match fs::remove_file(earlier.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ if !are_here() => return Ok(Self::default()),
            _ => {}
        }
        let mut told = earlier;
        // Who traces is a thread of its own, with which the kernel lets go of all.
        let asking = std::thread::Builder::new().name("tiles".into()).spawn(move || told.ask(&processes))?;
        Ok(Self { asking: Some(asking), found: Some(found()?) })
    }

    /// All have been asked.
    pub fn finish(self) -> Result<(), String> {
        let lost = |_| Err(io::Error::other("the thread that asked panicked"));
        let asked = self.asking.map_or(Ok(()), |asking| asking.join().unwrap_or_else(lost));
        asked.map_err(|error| format!("finding out who may use the processor's tile registers: {error}"))
    }
}

/// Where a dump keeps what it finds; there is no file until there is something to keep.
#[derive(Debug)]
pub struct Found {
    images: File,
    file: Option<File>,
}

impl Found {
    /// In a directory of images, where others may keep some too; none where there are no tiles.
    pub fn at(images: &Path) -> io::Result<Option<Self>> {
        let images = File::open(images)?;
        Ok(are_here().then_some(Self { images, file: None }))
    }

    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.images.as_raw_fd().to_string()).join(NAME)
    }

    /// One that does not come to a stand for it counts as one that may not.
    fn ask(&mut self, processes: &[i32]) -> io::Result<()> {
        let mut told = SigSet::empty();
        told.add(Signal::SIGCHLD);
        told.thread_block()?;
        let deadline = Instant::now() + PATIENCE;
        for &process in processes {
            match tracer::vector_parts(process, deadline) {
                Ok(parts) if parts & TILES == 0 => {}
                Ok(_) => self.keep(process, None, &[])?,
                Err(error) => log::info!("process {process} was not asked whether it may use tiles: {error}"),
            }
        }
        Ok(())
    }

    /// Keeps the vector registers of a thread.
    pub fn keep_of(&mut self, process: i32, thread: i32, registers: &[u8]) -> io::Result<()> {
        self.keep(process, Some(thread), registers)
    }

    fn keep(&mut self, process: i32, thread: Option<i32>, registers: &[u8]) -> io::Result<()> {
        let inside = |pid: i32| process::innermost_pid(pid).unwrap_or(pid);
        let words = [inside(process), thread.map_or(0, inside), registers.len() as i32];
        let record = [words.map(i32::to_ne_bytes).concat().as_slice(), registers].concat();
        let file = match self.file.take() {
            Some(file) => file,
            None => OpenOptions::new().append(true).create(true).open(self.path())?,
        };
        self.file.insert(file).write_all(&record)
    }
}

/// Whether these images have some.
pub fn are_kept(images: &Path) -> bool {
    images.join(NAME).exists()
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
        let (mut library, mut records) = (file("rekindle-tiles-in-criu")?, file("rekindle-tiles")?);
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

    /// Whether CRIU has loaded the library, without which the program would end at its next use of tiles.
    pub fn check(&self) -> Result<(), String> {
        let mut word = [0; HEAD as usize];
        let read = self.records.read_exact_at(&mut word, 0);
        match read.map(|()| u64::from_ne_bytes(word)) {
            Ok(LOADED) => Ok(()),
            _ => Err("the program uses the processor's tile registers (AMX), which CRIU does not restore, and our library \
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
