//! The pages of the CPU half in an image: converted to page files when it is made, linked for the program when it is
//! restored.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::ScopedJoinHandle;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBufForce;
use nix::unistd::{Whence, lseek};
use rekindle_protocol::tuning;
use rekindle_sandbox::pages::{
    self, Layout, PageFile, PageServer, Piece, PreCopy, ServeError, Served, Wanted,
};
use rekindle_sandbox::{inherited, timers};
use rekindle_store::bounded;
use rekindle_store::{ContentHash, Draft, HashedChunk, HashedChunks, Image, Part, PartKind, Store};

use crate::error::{Error, Result};
use crate::fault;
use crate::host::paths::private_directory;
use crate::images::checked_files::CHECKED;
use crate::images::earlier_pages::EarlierPages;
use crate::images::{ImageError, cpu_images, shared_pages};

/// Files that go into an image at once.
pub const FILE_THREADS: usize = 4;

/// How much is read at once.
const PIECE: usize = 1 << 20;
/// How much CRIU may send before it has to wait.
const SOCKET_BYTES: usize = 4 << 20;

/// `off` has CRIU read all pages before the program runs, as it does of itself; anything else maps them.
fn is_read_wanted() -> bool {
    tuning::is(tuning::MAP_PAGES, "off")
}

/// Converts the dump in `images` and takes the page files into the draft. Returns what the user should know.
/// `earlier` has the page files that the program maps, if it was restored with such, and those of its last image, which have
/// the memory of `last` that is not in the dump. Pages that are not `in_order` are put so.
pub fn convert(
    draft: &Draft,
    images: &Path,
    earlier: &EarlierPages,
    last: Option<&Layout>,
    in_order: bool,
) -> Result<(Vec<String>, Layout)> {
    let map = !is_read_wanted();
    let settle = || match in_order {
        true => Ok(()),
        false => pages::settle(images).map_err(|what| ImageError::Pages { what }.into()),
    };
    let EarlierPages { restored, files, known } = earlier;
    if !map && !restored.is_dir() && last.is_none() {
        return settle().map(|()| Default::default());
    }
    let out = images.join(pages::DIRECTORY);
    private_directory(&out, true)?;
    let holds: Option<HashMap<_, _>> = known
        .as_ref()
        .map(|known| known.iter().map(|(_, part)| (part.name.clone(), part.stored())).collect());
    let request = pages::RewriteOptions { earlier: restored, files, last, map, share: holds.as_ref() };
    let rewritten = match pages::rewrite(images, &out, &request) {
        Ok(rewritten) => rewritten,
        Err(refusal) if refusal.harmless => {
            settle()?;
            let warning = format!("the program's memory is read whole on a restore: {refusal}");
            return Ok((vec![warning], Layout::default()));
        }
        Err(refusal) => return Err(ImageError::Pages { what: refusal.to_string() }.into()),
    };
    take_page_files(draft, &rewritten.files)?;
    shared_pages::take(draft, &rewritten.shared, known.as_deref().unwrap_or_default())?;
    Ok((rewritten.warnings, rewritten.layout))
}

/// The pages of a dump, taken beside CRIU.
pub struct Pages<'a> {
    images: &'a Path,
    out: PathBuf,
    socket: UnixStream,
}

impl<'a> Pages<'a> {
    /// Also returns CRIU's end of the connection: the server ends when that is closed.
    pub fn begin(images: &'a Path) -> Result<(Pages<'a>, UnixStream)> {
        let made = UnixStream::pair();
        let (socket, theirs) = made.map_err(|source| Error::system("make a pair of sockets", source))?;
        // Where it is not allowed CRIU waits for us more often.
        let _ = setsockopt(&theirs, SndBufForce, &SOCKET_BYTES);
        let out = images.join(pages::DIRECTORY);
        private_directory(&out, true)?;
        Ok((Pages { images, out, socket }, theirs))
    }

    /// Serves the dump until CRIU has sent all; nothing if CRIU ended before that, which it has its own words for.
    /// `host_pid` tells our pid of a process that CRIU names. What is `wanted` is mapped on a restore, what else was
    /// allocated is written by us if `populate` says so, and all is known by its hashes then: it is not converted. `first` is
    /// set when what goes first is done: a worker's half. What was copied `pre_copy` is not copied again. `stands` is set when
    /// the program stands still.
    pub fn serve(
        self,
        host_pid: &dyn Fn(i32) -> Option<i32>,
        wanted: Vec<Wanted>,
        populate: bool,
        first: Option<&OnceLock<()>>,
        pre_copy: Option<&PreCopy>,
        stands: Option<&OnceLock<()>>,
    ) -> Result<Option<Served>> {
        let Pages { images, out, socket } = self;
        fault::point("pages-begun")?;
        let digest = populate.then_some(content_hash as pages::Digest);
        let (wanted, populate) = if is_read_wanted() { (Vec::new(), false) } else { (wanted, populate) };
        let (out, wanted) = (&*out, &*wanted);
        let server = PageServer { socket, images, out, wanted, populate, first, digest, pre_copy, stands };
        match server.serve(host_pid) {
            Ok(served) => fault::point("pages-taken").map(|()| Some(served)),
            Err(ServeError::Closed) => Ok(None),
            Err(ServeError::Failed(what)) => Err(ImageError::Pages { what }.into()),
        }
    }
}

/// Takes a served dump into the draft: page files, and CRIU's images, which speak of them then.
pub fn take(draft: &Draft, images: &Path, served: &Served) -> Result<()> {
    let known = known_images(served);
    let take_images = |rewritten: bool| {
        cpu_images::take(draft, images, &known, |name| pages::is_pointed(name) == rewritten)
    };
    std::thread::scope(|scope| {
        let pointed = scope.spawn(|| {
            pages::point(images, served)
                .and_then(|()| inherited::part(images).map_err(|error| error.to_string()))
                .and_then(|()| timers::wind(images).map_err(|error| error.to_string()))
                .map_err(|what| ImageError::Pages { what }.into())
                .and_then(|()| take_images(true))
        });
        let others = scope.spawn(|| take_images(false));
        let taken = take_page_files(draft, &served.files);
        let join = |thread: ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        join(pointed).and(join(others)).and(taken)
    })
}

fn take_page_files(draft: &Draft, files: &[PageFile]) -> Result<()> {
    let take = |(): &mut (), at: usize| {
        let file: &PageFile = &files[at];
        let known = known_chunks(&file.pieces);
        draft.take_pages(PartKind::CpuPages, &file.name, &file.path, file.bytes, &known)
    };
    rekindle_parallel::map(FILE_THREADS, files.len(), || (), take)?;
    Ok(())
}

fn content_hash(bytes: &[u8]) -> [u8; 32] {
    *ContentHash::of(bytes).bytes()
}

/// What is known of those of CRIU's images that a served dump has put pages into, by their names.
fn known_images(served: &Served) -> HashMap<String, HashedChunks> {
    served.contents.iter().map(|(name, pieces)| (name.clone(), known_chunks(pieces))).collect()
}

/// What is known of a file's contents.
fn known_chunks(pieces: &[Piece]) -> HashedChunks {
    let known = |piece: &Piece| HashedChunk { hash: ContentHash::from(piece.digest), filled: piece.filled };
    pieces.iter().map(|piece| (piece.at, known(piece))).collect()
}

/// Makes the directory that a program maps an image's page files from, if there are any.
pub fn furnish(image: &Image, directory: &Path) -> Result<()> {
    match image.parts(PartKind::CpuPages).next() {
        Some(_) => private_directory(directory, true),
        None => Ok(()),
    }
}

/// Links an image's page files into that directory.
pub fn link(image: &Image, directory: &Path) -> Result<()> {
    for part in image.parts(PartKind::CpuPages) {
        let to = directory.join(&part.name);
        let from = image.file_path(part).ok_or_else(|| ImageError::CannotRestore {
            image: image.manifest().name.clone(),
            reason: format!("its page file {:?} does not lie in a file of its own", part.name),
        })?;
        // A link would be made of anything, and CRIU wait for a pipe to be written to.
        image.check_present(&[part]).map_err(|error| shared_pages::explained(image, error))?;
        CHECKED.keeping(&from, || fs::hard_link(&from, &to)).map_err(|source| match source.kind() {
            ErrorKind::NotFound => {
                shared_pages::explained(image, rekindle_store::Error::ChunkMissing { path: from.clone() })
            }
            _ => Error::io("link", &to, source),
        })?;
    }
    Ok(())
}

/// Looks at an image's page files before a program that maps them runs, at those that are not known to be whole, and writes
/// down what they are where they were linked.
pub fn check_linked(image: &Image, directory: &Path, threads: usize) -> Result<()> {
    let parts: Vec<_> = image.parts(PartKind::CpuPages).collect();
    let is_known = |part: &Part| image.file_path(part).is_some_and(|path| CHECKED.knows(part, &path));
    let unknown: Vec<_> = parts.iter().copied().filter(|part| !is_known(part)).collect();
    image.check_glance(&unknown, threads).map_err(|error| shared_pages::explained(image, error))?;
    shared_pages::note(image, directory, &parts)
}

/// Why page files that a program maps cannot be read, if they cannot. `linked` has them also where the image is no more.
pub fn unreadable(store: &Path, image: &str, linked: &Path) -> Option<String> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    if let Ok(image) = Store::open(store).and_then(|store| store.image(image)) {
        let parts: Vec<_> = image.parts(PartKind::CpuPages).collect();
        return image.check_parts(&parts, threads).err().map(|error| error.to_string());
    }
    let files = fs::read_dir(linked).ok()?.flatten().map(|entry| entry.path());
    files.filter(|path| path.is_file()).find_map(|path| {
        let error = read_data(&path).err()?;
        Some(Error::io("read", &path, error).to_string())
    })
}

/// Reads what a file has between its holes.
fn read_data(path: &Path) -> std::io::Result<()> {
    let file = bounded::open(path).map_err(std::io::Error::other)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    // Past the last data there is nothing to be found (ENXIO).
    while let Ok(data) = lseek(&file, at, Whence::SeekData) {
        let end = lseek(&file, data, Whence::SeekHole)?;
        at = data;
        while at < end {
            let count = PIECE.min((end - at) as usize);
            file.read_exact_at(&mut piece[..count], at as u64)?;
            at += count as i64;
        }
    }
    Ok(())
}
