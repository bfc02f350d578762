//! The CPU half's pages on demand: CRIU's images rewritten so that it maps pages in place of reading them.
//!
//! CRIU's `pages-N.img` is read whole before a program runs. Here, once, when the image is made, the contents of private
//! memory go to *page files*, sparse and never changed again, and the program's memory is described as private mappings
//! of them: a restore maps, and the kernel brings a page when it is touched.
//!
//! ```text
//!  mm-PID.img      a private anonymous area      ──▶  a private mapping of /run/rekindle/pages/anon-PID
//!  files.img                                     ──▶  + that file
//!  pagemap, pages  the area's pages              ──▶  gone
//!  anon-PID        area · hole · area · hole · …       (a hole after each, so that one that grows finds zeros)
//! ```
//!
//! What differs for the program, and who sees to it:
//!
//! | the program | then | seen to by |
//! | --- | --- | --- |
//! | gives pages back by `madvise` and counts on zeros | would find the image's bytes | the client, which is told by its mark (below) |
//! | grows an area by `mremap` | would find what follows in the file | the client; the holes where it cannot see the call |
//! | lets malloc do either | glibc's own calls are not seen, and count on no zeros | |
//! | gives back what it has written to of a mapped file | would find the image's bytes | left to CRIU, but for programs and libraries, which nobody gives back |
//! | makes system calls of its own (Go), or has no client | neither is seen | its pages are read, as without page files |
//!
//! The mark is a word in the client's data: the client's start-up code has written to it, so that it is in every dump of
//! a process in which the client takes part, and the rewriting changes it. So the restored client knows from its first
//! instruction on, in every process of the tree.
//!
//! In driver mode only what NVIDIA's driver has put into the program is mapped, which reads it once and unmaps it: that
//! needs no client. There CRIU's pages are not rewritten but taken by many threads while it dumps ([`PageServer`]), and
//! those areas go to their page file at once. What else a program had allocated is [written into it](populate()) by many
//! threads.
//!
//! A restored program is dumped with its written pages only. Its next image maps what has not changed from the page
//! files that the program was restored from, which it has links of its own to, so that every image stands for itself
//! ([`shared`]). A program that goes on after an image is dumped without the pages that it has not written since, and its
//! next image maps them from the page files of that one ([`baseline`], [`lay`]).

mod area;
mod backing;
mod baseline;
mod contents;
mod convert;
mod copier;
mod cut;
mod drain;
mod dump;
mod files;
pub(crate) mod image;
mod lay;
mod mark;
mod page_files;
mod page_map;
mod point;
mod populate;
mod pre_copy;
mod process;
mod remaining;
mod rewrite;
mod server;
mod shared;
mod word;
mod writers;

use std::path::{Path, PathBuf};

pub(crate) use area::PAGE;
pub use baseline::{Baseline, Layout};
pub use copier::{Digest, Piece};
pub use mark::{CONVERTED, LIVE, MAGIC};
pub use page_files::PageFiles;
pub use point::{is_pointed, point};
pub use populate::populate;
pub use pre_copy::{FollowedMemory, PreCopy};
pub use process::settle;
pub use rewrite::{RewriteOptions, rewrite};
pub use server::{PageServer, ServeError, Served, Wanted, tell_stands};

/// How many threads suit many short steps.
fn few_threads() -> usize {
    rekindle_parallel::threads().min(8)
}

use crate::init::RUN_PATH;

/// Where a sandbox finds its page files, below the run directory as the program sees it.
pub const DIRECTORY: &str = "pages";
/// Page files of memory that was anonymous begin with this: given back, it is zero.
pub const ANONYMOUS: &str = "anon-";
/// Page files of what was a private mapping of another file begin with this.
pub const PRIVATE: &str = "file-";
/// How far beyond its contents a page file reaches, as a hole: no mapping that grows leaves it.
pub const TAIL: u64 = 1 << 40;

/// What became of a dump.
#[derive(Debug, Default)]
pub struct Rewritten {
    pub files: Vec<PageFile>,
    /// The names of the earlier images' page files that are mapped as well.
    pub shared: Vec<String>,
    /// Where memory lies in page files.
    pub layout: Layout,
    /// Bytes that CRIU still reads.
    pub read_bytes: u64,
    /// Processes whose pages are read, and why: a sentence each.
    pub warnings: Vec<String>,
}

/// A page file that was made.
#[derive(Debug)]
pub struct PageFile {
    pub name: String,
    pub path: PathBuf,
    /// Bytes of contents; the file is longer by [`TAIL`].
    pub bytes: u64,
    /// What is known of it, where it was asked for.
    pub pieces: Vec<Piece>,
}

/// The path of a page file as the program sees it.
fn seen_path(name: &str) -> PathBuf {
    Path::new(RUN_PATH).join(DIRECTORY).join(name)
}

/// What CRIU calls a page file that is given to it as a descriptor.
pub(crate) fn inherit_key(name: &str) -> String {
    seen_path(name).to_string_lossy().trim_start_matches('/').to_owned()
}

/// The names of the page files that the images in a directory speak of.
pub fn named(images: &Path) -> Result<Vec<String>, String> {
    Ok(files::Files::read(&images.join("files.img"))?.page_files())
}

/// The name of the page file that has this path for the program.
pub(crate) fn page_file_name(path: &Path) -> Option<&str> {
    let name = path.strip_prefix(RUN_PATH).ok()?.strip_prefix(DIRECTORY).ok()?.to_str()?;
    is_page_file(name).then_some(name)
}

fn is_page_file(name: &str) -> bool {
    name.starts_with(ANONYMOUS) || name.starts_with(PRIVATE)
}

/// Why a dump cannot be rewritten; it is as it was then.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    pub what: String,
    /// Whether the dump is of use as it is: it does not refer to an earlier image's page files.
    pub harmless: bool,
}
