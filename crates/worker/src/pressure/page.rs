//! What the workers of a GPU tell each other of its memory, in a page that they share.
//!
//! ```text
//!   first line     how often somebody has asked, how often somebody has answered
//!   from line 1    a slot for each pool: idle bytes, bytes given to the GPU so far, which question it has answered last
//! ```

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use memmap2::MmapRaw;

use crate::worker_page;

/// A pool more than this gives nothing to others.
const SLOTS: usize = 63;
/// What the file's name begins with. Another layout has another name.
const NAME: &str = "memory-1-";

#[repr(C, align(64))]
struct Questions {
    asked: AtomicU32,
    answers: AtomicU32,
}

#[repr(C, align(64))]
struct Slot {
    idle: AtomicU64,
    given: AtomicU64,
    answered: AtomicU32,
}

#[repr(C)]
struct Page {
    questions: Questions,
    slots: [Slot; SLOTS],
}

pub(super) struct PressurePage {
    mapping: MmapRaw,
    file: File,
}

impl PressurePage {
    pub(super) fn open(directory: &Path, uuid: &[u8; 16]) -> io::Result<PressurePage> {
        let (file, mapping) = worker_page::open(directory, NAME, uuid, size_of::<Page>())?;
        Ok(PressurePage { mapping, file })
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is page-aligned, as long as a page, and lives as long as `self`. All in it is atomic, and any
        // bytes are valid.
        unsafe { &*self.mapping.as_mut_ptr().cast::<Page>() }
    }

    pub(super) fn slots(&self) -> Range<usize> {
        0..SLOTS
    }

    /// Takes a slot, which has nothing then; none if all are taken.
    pub(super) fn take_slot(&self) -> Option<usize> {
        let slot = worker_page::take_slot(&self.file, SLOTS)?;
        self.set_idle(slot, 0);
        self.page().slots[slot].answered.store(self.asked(), Ordering::SeqCst);
        Some(slot)
    }

    /// Whether another worker has this slot, and lives.
    pub(super) fn is_there(&self, slot: usize) -> bool {
        worker_page::is_taken(&self.file, slot)
    }

    pub(super) fn idle(&self, slot: usize) -> u64 {
        self.page().slots[slot].idle.load(Ordering::Acquire)
    }

    pub(super) fn set_idle(&self, slot: usize, bytes: u64) {
        self.page().slots[slot].idle.store(bytes, Ordering::Release);
    }

    /// Bytes that were given to the GPU because somebody asked.
    pub(super) fn given(&self, slot: usize) -> u64 {
        self.page().slots[slot].given.load(Ordering::Acquire)
    }

    /// Asks all pools: the number of the question.
    pub(super) fn ask(&self) -> u32 {
        let asked = &self.page().questions.asked;
        let number = asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        worker_page::wake(asked);
        number
    }

    /// The number of the last question.
    fn asked(&self) -> u32 {
        self.page().questions.asked.load(Ordering::SeqCst)
    }

    /// Sleeps until there is a question after the one `seen`, and no longer than `limit`: the number of the last one.
    pub(super) fn await_ask(&self, seen: u32, limit: Duration) -> u32 {
        worker_page::wait(&self.page().questions.asked, seen, limit);
        self.asked()
    }

    /// Answers all questions up to this one.
    pub(super) fn answer(&self, slot: usize, bytes: u64, number: u32) {
        let (questions, slot) = (&self.page().questions, &self.page().slots[slot]);
        slot.given.fetch_add(bytes, Ordering::AcqRel);
        slot.answered.store(number, Ordering::SeqCst);
        questions.answers.fetch_add(1, Ordering::SeqCst);
        worker_page::wake(&questions.answers);
    }

    /// The number of the question that was answered last.
    pub(super) fn answered(&self, slot: usize) -> u32 {
        self.page().slots[slot].answered.load(Ordering::SeqCst)
    }

    pub(super) fn has_answered(&self, slot: usize, number: u32) -> bool {
        // Numbers wrap around.
        number.wrapping_sub(self.answered(slot)) as i32 <= 0
    }

    /// What [`PressurePage::await_answer`] is to be told.
    pub(super) fn answers(&self) -> u32 {
        self.page().questions.answers.load(Ordering::SeqCst)
    }

    pub(super) fn await_answer(&self, seen: u32, limit: Duration) {
        worker_page::wait(&self.page().questions.answers, seen, limit);
    }
}
