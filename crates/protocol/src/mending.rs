//! Programs that do not see the loss of their worker: what a worker keeps for that, and where the daemon reads how it
//! stands.
//!
//! ```text
//!   worker  ledger ─ two journals ─ two bases      files in memory, memory of the GPU: descriptors
//!              └────────┬─ Kept ──▶ daemon         holds them, and the client's socket
//!   worker ✕            └─────────▶ another worker
//! ```
//!
//! Each epoch begins with a base and an empty journal, in one of two slots that take turns. The one number in the ledger
//! that says which epoch counts is changed when all of the new one is there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use serde::{Deserialize, Serialize};

/// What is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MendMode {
    /// The program goes on only if what it was told before comes out the same again.
    Strict,
    /// It goes on also if that comes out otherwise.
    Loose,
}

/// What a worker says when something is to be held for it; a descriptor comes along. The last of a name counts. Without one that
/// name is to be held no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedItem {
    pub name: String,
    /// For the worker that takes it over.
    pub about: String,
}

/// The name of the ledger.
pub const LEDGER: &str = "ledger";

/// Why nothing could be mended just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u64)]
pub enum MendObstacle {
    Beginning = 1,
    Changed,
    HostMemory,
    Host,
    Others,
    NoRoom,
    Failed,
    Full,
    Unsaved,
    Taking,
}

impl MendObstacle {
    const ALL: [MendObstacle; 10] = [
        MendObstacle::Beginning,
        MendObstacle::Changed,
        MendObstacle::HostMemory,
        MendObstacle::Host,
        MendObstacle::Others,
        MendObstacle::NoRoom,
        MendObstacle::Failed,
        MendObstacle::Full,
        MendObstacle::Unsaved,
        MendObstacle::Taking,
    ];

    pub fn of(number: u64) -> Option<MendObstacle> {
        MendObstacle::ALL.into_iter().find(|lapse| *lapse as u64 == number)
    }

    /// The end of a sentence.
    pub fn why(self) -> &'static str {
        match self {
            MendObstacle::Beginning => "no copy of its GPU memory has been made yet",
            MendObstacle::Changed => {
                "memory, code or graphs of it have changed since the last copy of its GPU memory was made"
            }
            MendObstacle::HostMemory => {
                "its GPU work uses memory of the host that the program can change at any time"
            }
            MendObstacle::Host => {
                "its GPU work calls functions of the program, or waits for values that it writes"
            }
            MendObstacle::Others => {
                "it captures a graph, has CUDA arrays or textures, loads declared data, or has memory or arrays of other processes"
            }
            MendObstacle::NoRoom => "neither its GPUs nor the host have room for a copy of its GPU memory",
            MendObstacle::Failed => "its own work has ended its GPU context",
            MendObstacle::Full => "more was asked for than is kept since the last copy of its GPU memory",
            MendObstacle::Unsaved => "its GPU state could not be written down",
            MendObstacle::Taking => {
                "a copy of its GPU memory was being made, and there is room for one alone"
            }
        }
    }
}

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MendStatus {
    /// The epoch that counts; none if nothing could be mended just now.
    pub epoch: Option<u64>,
    pub why: Option<MendObstacle>,
    pub base_bytes: u64,
    pub base_on_host: bool,
    /// When the base was taken, since 1970.
    pub base_unix_ms: u64,
    pub journal_bytes: u64,
    /// How many bases were taken, and how long the last one took.
    pub bases: u64,
    pub base_us: u64,
    /// Whether the driver half of the client's process is attached.
    pub attached: bool,
}

#[repr(C)]
struct Page {
    epoch: AtomicU64,
    why: AtomicU64,
    base_bytes: AtomicU64,
    base_on_host: AtomicU64,
    base_unix_ms: AtomicU64,
    journal_bytes: AtomicU64,
    bases: AtomicU64,
    base_us: AtomicU64,
    attached: AtomicU64,
}

const BYTES: usize = 4096;

/// A page of memory that the worker writes and the daemon reads.
pub struct Ledger {
    file: File,
    page: MmapRaw,
}

impl Ledger {
    /// Maps a file, which gets the page's length if it has none.
    pub fn open(file: File) -> io::Result<Ledger> {
        if file.metadata()?.len() != BYTES as u64 {
            file.set_len(BYTES as u64)?;
        }
        let page = MmapOptions::new().len(BYTES).map_raw(&file)?;
        Ok(Ledger { file, page })
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn standing(&self) -> MendStatus {
        let page = self.page();
        let read = |word: &AtomicU64| word.load(Ordering::Acquire);
        let epoch = read(&page.epoch);
        MendStatus {
            epoch: (epoch != 0).then_some(epoch),
            why: MendObstacle::of(read(&page.why)),
            base_bytes: read(&page.base_bytes),
            base_on_host: read(&page.base_on_host) != 0,
            base_unix_ms: read(&page.base_unix_ms),
            journal_bytes: read(&page.journal_bytes),
            bases: read(&page.bases),
            base_us: read(&page.base_us),
            attached: read(&page.attached) != 0,
        }
    }

    /// From now on nothing can be mended.
    pub fn lapse(&self, why: MendObstacle) {
        self.page().why.store(why as u64, Ordering::Release);
        self.page().epoch.store(0, Ordering::Release);
    }

    /// From now on this epoch counts, all of which is there.
    pub fn begin(&self, epoch: u64, base: &MendStatus) {
        let page = self.page();
        page.base_bytes.store(base.base_bytes, Ordering::Release);
        page.base_on_host.store(u64::from(base.base_on_host), Ordering::Release);
        page.base_unix_ms.store(base.base_unix_ms, Ordering::Release);
        page.base_us.store(base.base_us, Ordering::Release);
        page.journal_bytes.store(base.journal_bytes, Ordering::Release);
        page.bases.fetch_add(1, Ordering::AcqRel);
        page.why.store(0, Ordering::Release);
        page.epoch.store(epoch, Ordering::Release);
    }

    pub fn note_journal(&self, bytes: u64) {
        self.page().journal_bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn note_attached(&self, attached: bool) {
        self.page().attached.store(u64::from(attached), Ordering::Release);
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is a page, which any bytes are valid for, and all of it is atomic.
        unsafe { &*self.page.as_ptr().cast::<Page>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_maps_the_same_file_reads_what_was_written() {
        let file = tempfile::tempfile().unwrap();
        let daemon = Ledger::open(file.try_clone().unwrap()).unwrap();
        let worker = Ledger::open(file).unwrap();
        worker.lapse(MendObstacle::Changed);
        assert_eq!((daemon.standing().epoch, daemon.standing().why), (None, Some(MendObstacle::Changed)));
        worker.begin(3, &MendStatus { base_bytes: 7, ..MendStatus::default() });
        worker.note_journal(5);
        let standing = daemon.standing();
        assert_eq!((standing.epoch, standing.why, standing.bases), (Some(3), None, 1));
        assert_eq!((standing.base_bytes, standing.journal_bytes), (7, 5));
        assert!(MendObstacle::ALL.into_iter().all(|lapse| MendObstacle::of(lapse as u64) == Some(lapse)));
    }
}
