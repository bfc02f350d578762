//! The pages of a dump, copied out of the program by many threads in place of CRIU's one pipe.
//!
//! CRIU is told that a page server takes them, and that is here. What it says about the pages is read; the pages that
//! come after it are dropped by the kernel, uncopied, and read again from the memory of the program, which stands still.
//!
//! ```text
//!  CRIU ──"PID has N pages at ADDRESS", pages──▶ serve ──jobs──▶ copiers ──▶ pages-N.img
//!                                      dropped ◀──┘                     └──▶ anon-PID, page files
//! ```
//!
//! Areas that were named before go to page files, to be mapped, from when CRIU speaks of the process for the first
//! time. Pages that are all zero become holes everywhere. In driver mode what is left of memory that programs have
//! allocated goes to a file of its own, from which it is [written into them](populate).
//!
//! CRIU has a process make system calls by an instruction of its own, which it puts for a moment where the process has code.
//! So memory that may hold code is copied last, when CRIU has left all processes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::PreCopy;
use super::area::PAGE;
use super::baseline::Layout;
use super::copier::{Digest, Jobs, Piece, Source};
use super::drain::{Drain, take};
use super::page_map::{Map, PageSequence, Populated};
use super::pre_copy::UnchangedPages;
use super::word::{ADD, CLOSE, FORCE_CLOSE, OPEN, PARENT, PRESENT, Word};
use super::writers::{Writers, stripes};
use super::{ANONYMOUS, PageFile, populate};
use crate::process::{self, maps};

/// Comes before CRIU's first word, from who gives CRIU leave: the program stands still.
const STANDS: u8 = 0xff;

/// Tells the [`PageServer`] at the other end that the program stands still, before CRIU says anything.
pub fn tell_stands(criu_end: BorrowedFd<'_>) {
    // A server that is gone has its own words for it, and one that is not told learns it from CRIU.
    let _ = nix::unistd::write(criu_end, &[STANDS]);
}

/// The kinds of memory: a process's, and what processes share.
const OF_PROCESS: u64 = 1;
const SHARED: u64 = 2;

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
    /// The page file's name.
    pub file: String,
    pub offset: u64,
}

/// What was taken.
#[derive(Debug, Default)]
pub struct Served {
    pub files: Vec<PageFile>,
    /// Those of CRIU's images that have pages in them, and what is known of their pieces.
    pub contents: Vec<(String, Vec<Piece>)>,
    pub(super) placed: Vec<Placed>,
    /// What is in the page files of the program's last image, and nowhere else.
    pub based: Layout,
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
    /// Whether what programs have allocated is [written into them](populate) on a restore, in place of being read by CRIU.
    pub populate: bool,
    /// Set when what goes first is done: a worker's half, which has more to copy.
    pub first: Option<&'a OnceLock<()>>,
    /// Taken of the pieces of files, where they are to be known by it.
    pub digest: Option<Digest>,
    /// What was copied while the program ran. CRIU is told only of pages that were written to since.
    pub pre_copy: Option<&'a PreCopy>,
    /// Set when the program stands still, if that is [told](tell_stands).
    pub stands: Option<&'a OnceLock<()>>,
}

impl PageServer<'_> {
    /// Serves one dump. `host_pid` tells our pid of a process that CRIU names.
    pub fn serve(self, host_pid: &dyn Fn(i32) -> Option<i32>) -> Result<Served, ServeError> {
        let (maps, copied) = Jobs::with_digests(self.first, self.digest, |jobs| self.listen(host_pid, jobs));
        let maps = maps?;
        let pieces =
            copied.map_err(|error| ServeError::Failed(format!("its pages could not be copied: {error}")))?;
        let mut served = Served::default();
        let finished = maps.into_iter().try_for_each(|map| map.finish(&pieces, &mut served));
        finished.map_err(|error| ServeError::Failed(format!("its pages could not be written: {error}")))?;
        Ok(served)
    }

    fn listen(&self, host_pid: &dyn Fn(i32) -> Option<i32>, jobs: &Jobs) -> Result<Vec<Map>, ServeError> {
        let mut socket = &self.socket;
        let drain = Drain::new()?;
        let mut maps: Vec<Map> = Vec::new();
        // How long CRIU's words are is a matter of its version. It waits for an answer to the first.
        let mut head = [0; 64];
        let mut length = socket.read(&mut head[..1])?;
        let is_told = length == 1 && head[0] == STANDS;
        if is_told {
            self.stand();
            length = 0;
        }
        if is_told || length == 1 {
            length += socket.read(&mut head[length..])?;
        }
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
                    let mut map = self.open(&word, number, host_pid)?;
                    let missing = self.take_ahead(&mut map)?;
                    // From here on CRIU has threads run, which the kernel writes to then.
                    socket.write_all(&[0])?;
                    self.place(&mut map)?;
                    if let Some(source) = map.source.clone() {
                        missing.into_iter().for_each(|part| map.add(&source, part, PRESENT, jobs));
                        // CRIU takes a while to come to these.
                        map.copy_placed(&source, jobs);
                    }
                    maps.push(map);
                }
                PARENT => socket.write_all(&0i32.to_ne_bytes())?,
                ADD => {
                    let map = maps.last_mut().filter(|map| map.id == word.id);
                    let map = map
                        .ok_or_else(|| ServeError::Failed("pages came for nothing that was opened".into()))?;
                    let bytes = word.pages * PAGE;
                    match &map.source {
                        _ if word.flags & PRESENT == 0 => {
                            map.read.entries.push((word.address, word.pages, word.flags))
                        }
                        Some(source) => {
                            let source = source.clone();
                            map.add(&source, word.address..word.address + bytes, word.flags, jobs);
                            drain.drop_bytes(socket, bytes)?;
                        }
                        None => {
                            let sequence = &mut map.read;
                            take(socket, &sequence.file, sequence.end, bytes)?;
                            sequence.entries.push((word.address, word.pages, word.flags));
                            sequence.end += bytes;
                        }
                    }
                    jobs.failure().map_err(|error| ServeError::Failed(error.to_string()))?;
                }
                CLOSE | FORCE_CLOSE => {
                    // CRIU has left all processes.
                    maps.iter_mut().for_each(|map| map.add_late(jobs));
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

    /// CRIU looks at the program's mappings first, and meanwhile this is done.
    fn stand(&self) {
        if let Some(stands) = self.stands {
            let _ = stands.set(());
        }
        if let Some(pre_copy) = self.pre_copy {
            pre_copy.look();
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
        let mut map = Map {
            id: word.id,
            image: self.images.join(name),
            source: None,
            number,
            based: Vec::new(),
            read: self.create(&format!("pages-{number}.img"))?,
            populated: None,
            writers: None,
            placed: Vec::new(),
            code: Vec::new(),
            late: Vec::new(),
        };
        if kind == OF_PROCESS {
            let found = host_pid(id as i32);
            let host_pid = found
                .ok_or_else(|| ServeError::Failed(format!("there is no process {id} in the program")))?;
            let memory = File::open(format!("/proc/{host_pid}/mem"))?;
            map.source = Some(Arc::new(Source { host_pid, memory }));
        }
        Ok(map)
    }

    fn create(&self, name: &str) -> io::Result<PageSequence> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(self.images.join(name)).map(PageSequence::new)
    }

    /// Begins with what was copied of a process that stands still now; returns what CRIU does not send and was not
    /// copied.
    fn take_ahead(&self, map: &mut Map) -> Result<Vec<Range<u64>>, ServeError> {
        let (Some(pre_copy), Some(source)) = (self.pre_copy, &map.source) else { return Ok(Vec::new()) };
        let copied =
            pre_copy.take(source.host_pid, &self.images.join(format!("pages-{}.img", map.number)))?;
        let UnchangedPages { copied: known, based, missing } = pre_copy.known(source, copied.as_ref())?;
        if let Some(copied) = &copied {
            map.read = PageSequence::behind(copied.file.try_clone()?, copied.end);
        }
        map.read.is_scattered |= !missing.is_empty();
        (map.read.known, map.based) = (known, based);
        Ok(missing)
    }

    /// Says where the memory of a process goes: each wanted span that is private anonymous memory has its places in page
    /// files, what holds code goes last, and what is written into the process goes to a file of its own.
    fn place(&self, map: &mut Map) -> io::Result<()> {
        let Some(host_pid) = map.source.as_ref().map(|source| source.host_pid) else { return Ok(()) };
        let pid = (map.id >> 8) as u32;
        let areas = maps::of(host_pid)?;
        map.code = process::executable_memory(&areas);
        if self.populate && !process::has_shadow_stack(host_pid) {
            let sequence = self.create(&populate::pages_name(pid))?;
            map.populated = Some(Populated { pid, spans: process::allocated_memory(&areas), sequence });
        }
        let wanted = self.wanted.iter().filter(|wanted| wanted.host_pid == host_pid);
        let memory = process::private_memory(&areas);
        let is_there =
            |span: &&Range<u64>| memory.iter().any(|area| area.start <= span.start && span.end <= area.end);
        let mut writers = Writers::new(self.out, pid);
        for span in wanted.map(|wanted| &wanted.span).filter(is_there).flat_map(stripes) {
            let (writer, offset) = writers.place(ANONYMOUS, &span)?;
            let placed = Placed { pid, span, file: writer.name.clone(), offset };
            map.placed.push((placed, writer.file.clone()));
        }
        map.placed.sort_by_key(|(placed, _)| placed.span.start);
        map.writers = Some(writers);
        Ok(())
    }
}
