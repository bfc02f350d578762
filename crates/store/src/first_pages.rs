//! Which pages of its memory a program touched first when it was restored from an image: for a restore to have them in
//! place before they are touched. A fault takes longer than what a program does between two of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::advice::{self, FIRST_PAGES};
use crate::error::Result;
use crate::image::Image;

/// From so many restores is it learned: what is touched differs a little from one to the next.
const LEARNING_RESTORES: u32 = 3;
/// More pages than these are not the first ones.
const MOST_PAGES: u64 = 32 << 10;
const PAGE: u64 = 4096;

/// Pages that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRun {
    /// Where the first begins.
    pub start: u64,
    pub pages: u64,
    /// They were written to, not only read.
    pub written: bool,
}

/// What is known of an image.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FirstPages {
    pub runs: Vec<PageRun>,
    /// From how many restores.
    pub restores: u32,
}

impl FirstPages {
    /// Whether restores have something to add.
    pub fn is_to_be_learned(&self) -> bool {
        self.restores < LEARNING_RESTORES
    }

    /// With what a restore has touched, `another` or the last one.
    fn with(self, seen: &[PageRun], another: bool) -> FirstPages {
        let mut pages = BTreeMap::new();
        let runs = || seen.iter().chain(&self.runs);
        // Those that cost most come first, should there be too many.
        'full: for run in runs().filter(|run| run.written).chain(runs().filter(|run| !run.written)) {
            for number in 0..run.pages.min(MOST_PAGES) {
                if pages.len() as u64 >= MOST_PAGES {
                    break 'full;
                }
                *pages.entry(run.start.saturating_add(number * PAGE)).or_insert(false) |= run.written;
            }
        }
        let mut runs: Vec<PageRun> = Vec::new();
        for (start, written) in pages {
            match runs.last_mut() {
                Some(last) if last.written == written && start == last.start + last.pages * PAGE => {
                    last.pages += 1;
                }
                _ => runs.push(PageRun { start, pages: 1, written }),
            }
        }
        FirstPages { runs, restores: self.restores + u32::from(another) }
    }
}

impl Image {
    /// What was learned; nothing if nobody has looked yet.
    pub fn first_pages(&self) -> Result<FirstPages> {
        Ok(advice::read(self, FIRST_PAGES)?.unwrap_or_default())
    }

    /// Adds what a restored program has touched first, unless enough have told. Says whether it did. `another`: nothing of
    /// this restore was added before.
    pub fn learn_first_pages(&self, seen: &[PageRun], another: bool) -> Result<bool> {
        let _turn = advice::lock(self)?;
        // What is damaged is as good as nothing.
        let known = self.first_pages().unwrap_or_default();
        let learns = (known.is_to_be_learned() || !another) && !seen.is_empty();
        if learns {
            advice::write(self, FIRST_PAGES, &known.with(seen, another))?;
        }
        Ok(learns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_a_page_that_was_written_stays_so() {
        let run = |start, pages, written| PageRun { start, pages, written };
        let known = FirstPages::default().with(&[run(0x1000, 2, true), run(0x3000, 1, false)], true);
        assert_eq!(known.runs, [run(0x1000, 2, true), run(0x3000, 1, false)]);
        let known = known.with(&[run(0x2000, 2, false), run(0x4000, 1, true)], true);
        assert_eq!(known.runs, [run(0x1000, 2, true), run(0x3000, 1, false), run(0x4000, 1, true)]);
        assert!(known.is_to_be_learned());
        assert!(!known.with(&[], true).is_to_be_learned());
        let many = FirstPages::default().with(&[run(0, u64::MAX, false), run(1 << 40, 9, true)], true);
        assert_eq!(many.runs, [run(0, MOST_PAGES - 9, false), run(1 << 40, 9, true)]);
    }
}
