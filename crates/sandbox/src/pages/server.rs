//! The pages of a dump, copied out of the program by many threads in place of CRIU's one pipe.
//!
//! CRIU is told that a page server takes them, and that is here. What it says about the pages is read; the pages that
//! come after it are dropped by the kernel, uncopied, and read again from the memory of the program, which stands still.
//!
//! ```text
//!  CRIU ──"PID has N pages at ADDRESS", pages──▶ serve ──jobs──▶ copiers ──▶ pages-N.img
//!                                      dropped ◀──┘                     └──▶ anon-PID, a page file
//! ```
//!
//! Areas that were named before go to page files, to be mapped. Pages that are all zero become holes everywhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::area::PAGE;
use super::copier::{Job, Jobs};
use super::writers::place_after;
use super::{ANONYMOUS, PageFile, TAIL};
use crate::process;
use crate::proto::Encoder;

const ADD: u32 = 6;
const OPEN: u32 = 4;
const PARENT: u32 = 5;
const CLOSE: u32 = 0x1023;
const FORCE_CLOSE: u32 = 0x1024;
const PRESENT: u32 = 1 << 2;
/// The kinds of memory: a process's, and what processes share.
const OF_PROCESS: u64 = 1;
const SHARED: u64 = 2;
/// The first words of every image, and of a page map.
const COMMON_MAGIC: u32 = 0x5456_4319;
const PAGEMAP_MAGIC: u32 = 0x5608_4025;
const PIPE: i32 = 1 << 20;

/// Memory of a process that is to be mapped on a restore, in place of being read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// As we see it.
    pub host_pid: i32,
    pub span: Range<u64>,
}

/// Memory whose contents lie in a page file.
#[derive(Debug)]
pub(super) struct Placed {
    pub pid: u32,
    pub span: Range<u64>,
    pub offset: u64,
}

/// What was taken.
#[derive(Debug, Default)]
pub struct Served {
    pub files: Vec<PageFile>,
    pub(super) placed: Vec<Placed>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// CRIU says why in its own words.
    #[error("CRIU ended before all pages were taken")]
    Closed,
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for ServeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                ServeError::Closed
            }
            _ => ServeError::Failed(error.to_string()),
        }
    }
}

pub struct PageServer<'a> {
    pub socket: UnixStream,
    /// Where CRIU's images go.
    pub images: &'a Path,
    /// Where page files go.
    pub out: &'a Path,
    pub wanted: &'a [Wanted],
}

/// One page map in the making.
struct Map {
    id: u64,
    image: PathBuf,
    /// None for memory that is shared: its pages are taken as they come.
    source: Option<Arc<Source>>,
    number: u32,
    pages: Arc<File>,
    end: u64,
    /// Addresses, counts and flags, in the order of the contents.
    entries: Vec<(u64, u64, u32)>,
    file: Option<(PageFile, Arc<File>)>,
    placed: Vec<Placed>,
}

/// A process that pages are read of.
pub(super) struct Source {
    pub host_pid: i32,
    /// For what the process itself may not read.
    pub memory: File,
}

impl PageServer<'_> {
    /// Serves one dump. `host_pid` tells our pid of a process that CRIU names.
    pub fn serve(self, host_pid: &dyn Fn(i32) -> Option<i32>) -> Result<Served, ServeError> {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let jobs = Jobs::default();
        std::thread::scope(|scope| {
            let copiers: Vec<_> = (0..threads).map(|_| scope.spawn(|| jobs.work())).collect();
            let listened = self.listen(host_pid, &jobs);
            jobs.close(listened.is_err());
            for copier in copiers {
                copier.join().map_err(|_| ServeError::Failed("a copying thread panicked".into()))?;
            }
            let maps = listened?;
            jobs.failure()
                .map_err(|error| ServeError::Failed(format!("its pages could not be copied: {error}")))?;
            finish(maps)
                .map_err(|error| ServeError::Failed(format!("its pages could not be written: {error}")))
        })
    }

    fn listen(&self, host_pid: &dyn Fn(i32) -> Option<i32>, jobs: &Jobs) -> Result<Vec<Map>, ServeError> {
        let mut socket = &self.socket;
        let drain = Drain::new()?;
        let mut maps: Vec<Map> = Vec::new();
        // How long CRIU's words are is a matter of its version. It waits for an answer to the first.
        let mut head = [0; 64];
        let length = socket.read(&mut head)?;
        if length != 24 && length != 32 {
            return match length {
                0 => Err(ServeError::Closed),
                _ => Err(ServeError::Failed(format!("CRIU speaks of pages in words of {length} bytes"))),
            };
        }
        loop {
            let word = Word::read(&head[..length]);
            match word.command {
                OPEN => {
                    let number = maps.len() as u32 + 1;
                    maps.push(self.open(&word, number, host_pid)?);
                    socket.write_all(&[0])?;
                }
                PARENT => socket.write_all(&0i32.to_ne_bytes())?,
                ADD => {
                    let map = maps.last_mut().filter(|map| map.id == word.id);
                    let map = map
                        .ok_or_else(|| ServeError::Failed("pages came for nothing that was opened".into()))?;
                    let bytes = word.pages * PAGE;
                    match &map.source {
                        _ if word.flags & PRESENT == 0 => {
                            map.entries.push((word.address, word.pages, word.flags))
                        }
                        Some(source) => {
                            let source = source.clone();
                            map.add(&source, word.address..word.address + bytes, word.flags, jobs);
                            drain.drop_bytes(socket, bytes)?;
                        }
                        None => {
                            take(socket, &map.pages, map.end, bytes)?;
                            map.entries.push((word.address, word.pages, word.flags));
                            map.end += bytes;
                        }
                    }
                    jobs.failure().map_err(|error| ServeError::Failed(error.to_string()))?;
                }
                CLOSE | FORCE_CLOSE => {
                    socket.write_all(&0i32.to_ne_bytes())?;
                    return Ok(maps);
                }
                other => {
                    return Err(ServeError::Failed(format!("CRIU asked its page server for {other:#x}")));
                }
            }
            socket.read_exact(&mut head[..length])?;
        }
    }

    fn open(
        &self,
        word: &Word,
        number: u32,
        host_pid: &dyn Fn(i32) -> Option<i32>,
    ) -> Result<Map, ServeError> {
        let (kind, id) = (word.id & 0xff, word.id >> 8);
        let name = match kind {
            OF_PROCESS => format!("pagemap-{id}.img"),
            SHARED => format!("pagemap-shmem-{id}.img"),
            _ => return Err(ServeError::Failed(format!("CRIU sends memory of the unknown kind {kind}"))),
        };
        let pages = create(&self.images.join(format!("pages-{number}.img")), 0o600)?;
        let mut map = Map {
            id: word.id,
            image: self.images.join(name),
            source: None,
            number,
            pages: Arc::new(pages),
            end: 0,
            entries: Vec::new(),
            file: None,
            placed: Vec::new(),
        };
        if kind == OF_PROCESS {
            let found = host_pid(id as i32);
            let host_pid = found
                .ok_or_else(|| ServeError::Failed(format!("there is no process {id} in the program")))?;
            let memory = File::open(format!("/proc/{host_pid}/mem"))?;
            map.source = Some(Arc::new(Source { host_pid, memory }));
            self.place(&mut map, id as u32, host_pid)?;
        }
        Ok(map)
    }

    /// Gives each wanted span that is private anonymous memory its place in a page file.
    fn place(&self, map: &mut Map, pid: u32, host_pid: i32) -> io::Result<()> {
        let wanted = self.wanted.iter().filter(|wanted| wanted.host_pid == host_pid);
        let spans: Vec<_> = wanted.map(|wanted| wanted.span.clone()).collect();
        let memory = process::private_memory(host_pid)?;
        let (mut end, mut next) = (0, 0);
        for span in spans {
            if memory.iter().any(|area| area.start <= span.start && span.end <= area.end) {
                let offset = place_after(next, &span);
                end = offset + (span.end - span.start);
                next = end + (span.end - span.start);
                map.placed.push(Placed { pid, span, offset });
            }
        }
        if end > 0 {
            let name = format!("{ANONYMOUS}{pid}");
            let path = self.out.join(&name);
            let file = Arc::new(create(&path, 0o400)?);
            map.file = Some((PageFile { name, path, bytes: end }, file));
        }
        Ok(())
    }
}

impl Map {
    fn add(&mut self, source: &Arc<Source>, memory: Range<u64>, flags: u32, jobs: &Jobs) {
        let mut from = memory.start;
        while from < memory.end {
            let area = self.placed.iter().find(|placed| placed.span.contains(&from));
            let to = match area {
                Some(placed) => placed.span.end,
                None => {
                    let later =
                        self.placed.iter().map(|placed| placed.span.start).filter(|start| *start > from);
                    later.min().unwrap_or(u64::MAX)
                }
            };
            let piece = from..to.min(memory.end);
            from = piece.end;
            let (file, offset) = match (area, &self.file) {
                (Some(placed), Some((_, file))) => (file, placed.offset + (piece.start - placed.span.start)),
                _ => (&self.pages, self.end),
            };
            let job = Job { source: source.clone(), memory: piece.clone(), file: file.clone(), offset };
            if area.is_none() {
                let bytes = piece.end - piece.start;
                self.entries.push((piece.start, bytes / PAGE, flags));
                self.end += bytes;
            }
            jobs.add(job);
        }
    }
}

/// What CRIU says before pages: a command with flags, how many, where, and whose.
struct Word {
    command: u32,
    flags: u32,
    pages: u64,
    address: u64,
    id: u64,
}

impl Word {
    fn read(bytes: &[u8]) -> Word {
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(eight)
        };
        let first = number(0);
        let (word, count) = (first as u32, bytes.len() == 32);
        let pages = if count { number(8) } else { first >> 32 };
        let rest = bytes.len() - 16;
        Word {
            command: word & 0xffff,
            flags: word >> 16,
            // More than an address space has is a mistake that the copying tells of.
            pages: pages.min(1 << 40),
            address: number(rest),
            id: number(rest + 8),
        }
    }
}

/// Drops what comes on a socket without looking at it.
struct Drain {
    read: io::PipeReader,
    write: io::PipeWriter,
    nowhere: File,
}

impl Drain {
    fn new() -> io::Result<Drain> {
        let (read, write) = io::pipe()?;
        // SAFETY: changes the size of a pipe that this process holds; a smaller one works too.
        unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE) };
        Ok(Drain { read, write, nowhere: OpenOptions::new().write(true).open("/dev/null")? })
    }

    fn drop_bytes(&self, socket: &UnixStream, mut bytes: u64) -> io::Result<()> {
        while bytes > 0 {
            let mut inside = splice(socket.as_raw_fd(), self.write.as_raw_fd(), bytes.min(PIPE as u64))?;
            bytes -= inside;
            while inside > 0 {
                inside -= splice(self.read.as_raw_fd(), self.nowhere.as_raw_fd(), inside)?;
            }
        }
        Ok(())
    }
}

fn splice(from: i32, to: i32, bytes: u64) -> io::Result<u64> {
    loop {
        let none = std::ptr::null_mut();
        // SAFETY: moves bytes between two descriptors that this process holds; no offsets are given.
        let moved = unsafe { libc::splice(from, none, to, none, bytes as usize, libc::SPLICE_F_MOVE) };
        match moved {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => return Ok(moved as u64),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Takes bytes as they come.
fn take(mut socket: &UnixStream, file: &File, mut at: u64, mut bytes: u64) -> io::Result<()> {
    let mut block = vec![0; bytes.min(PIPE as u64) as usize];
    while bytes > 0 {
        let block = &mut block[..bytes.min(PIPE as u64) as usize];
        socket.read_exact(block)?;
        file.write_all_at(block, at)?;
        at += block.len() as u64;
        bytes -= block.len() as u64;
    }
    Ok(())
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Writes the page maps and gives all files their lengths.
fn finish(maps: Vec<Map>) -> io::Result<Served> {
    let mut served = Served::default();
    for mut map in maps {
        map.pages.set_len(map.end)?;
        let mut out = [COMMON_MAGIC.to_le_bytes(), PAGEMAP_MAGIC.to_le_bytes()].concat();
        let mut entry = |message: &Encoder| {
            out.extend_from_slice(&(message.0.len() as u32).to_le_bytes());
            out.extend_from_slice(&message.0);
        };
        let mut head = Encoder::default();
        head.number(1, map.number.into());
        entry(&head);
        for (address, pages, flags) in &map.entries {
            let mut one = Encoder::default();
            one.number(1, *address).number(2, *pages).number(4, (*flags).into()).number(5, *pages);
            entry(&one);
        }
        fs::write(&map.image, out)?;
        if let Some((page_file, file)) = map.file {
            file.set_len(page_file.bytes + TAIL)?;
            served.files.push(page_file);
        }
        served.placed.append(&mut map.placed);
    }
    Ok(served)
}
