//! The order in which requests first named parts of memory: the order in which a later restore best loads them.
//!
//! It is noted because somebody asked, who fetches it, or to be learned: then it ends with the first quiet moment after
//! the load, which is the end of the program's first work, and is added to what the image has. A program that is never
//! quiet has shown its first work after a while too. What was seen up to the first answer is kept at once, for a program
//! may be ended before it was ever quiet.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rekindle_protocol::worker::Recording;
use rekindle_store::Image;

use super::needs::{Needs, TouchedMemory, needs};
use crate::client::Client;
use crate::touched::touched;

/// Addresses of the program, and which part has their contents.
#[derive(Default)]
pub(crate) struct Spans {
    /// By their starts; none overlaps another.
    spans: Vec<(Range<u64>, usize)>,
    pub names: Vec<String>,
}

impl Spans {
    pub(crate) fn new(names: Vec<String>, mut spans: Vec<(Range<u64>, usize)>) -> Spans {
        spans.sort_by_key(|(range, _)| range.start);
        Spans { spans, names }
    }

    fn at(&self, address: u64) -> Option<usize> {
        // Most words of a kernel's arguments are no addresses.
        if address < self.spans.first()?.0.start || address >= self.spans.last()?.0.end {
            return None;
        }
        let after = self.spans.partition_point(|(range, _)| range.start <= address);
        let (range, part) = self.spans.get(after.checked_sub(1)?)?;
        range.contains(&address).then_some(*part)
    }

    /// The parts that a range meets.
    fn within(&self, wanted: &Range<u64>) -> impl Iterator<Item = usize> {
        let first = self.spans.partition_point(|(range, _)| range.end <= wanted.start);
        let end = wanted.end;
        self.spans[first..].iter().take_while(move |(range, _)| range.start < end).map(|(_, part)| *part)
    }

    /// The parts that a request names, each once.
    pub(crate) fn parts(&self, touched: &TouchedMemory) -> Vec<usize> {
        let mut parts = Vec::new();
        let named = touched.words.iter().filter_map(|word| self.at(*word));
        for part in touched.ranges.iter().flat_map(|range| self.within(range)).chain(named) {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        parts
    }
}

/// Nothing for so long is a quiet moment.
const QUIET: Duration = Duration::from_millis(100);
/// Nothing for so long after an answer is most likely its end.
const PAUSE: Duration = Duration::from_millis(1);
/// More is not learned from one restore.
const LONGEST: Duration = Duration::from_secs(2);

/// The record of first uses.
pub(crate) struct Uses {
    spans: Spans,
    seen: Vec<bool>,
    order: Vec<usize>,
    learned: Option<Learned>,
    /// The program was given contents of memory.
    answered: bool,
}

/// For which image the record is.
struct Learned {
    path: PathBuf,
    id: String,
    /// All is loaded and something was used.
    since: Option<Instant>,
    /// The image has some of it already.
    is_kept: bool,
}

impl Uses {
    pub(crate) fn new(spans: Spans) -> Uses {
        Uses {
            seen: vec![false; spans.names.len()],
            order: Vec::new(),
            spans,
            learned: None,
            answered: false,
        }
    }

    /// The record is to be added to this image's load order.
    pub(crate) fn learned_for(self, image: &Image) -> Uses {
        let (path, id) = (image.path().to_path_buf(), image.manifest().id.clone());
        Uses { learned: Some(Learned { path, id, since: None, is_kept: false }), ..self }
    }

    pub(crate) fn recording(&self) -> Recording {
        if self.learned.is_some() { Recording::Learned } else { Recording::Asked }
    }

    pub(crate) fn note(&mut self, client: &Client, opcode: u32, body: &[u8], trailer: &[u8]) {
        if let Needs::Memory(touched) = needs(client, opcode, body, trailer) {
            let parts = self.spans.parts(&touched);
            self.note_parts(&parts);
        }
    }

    /// These parts were named, by their numbers.
    pub(crate) fn note_parts(&mut self, parts: &[usize]) {
        for part in parts {
            if !std::mem::replace(&mut self.seen[*part], true) {
                self.order.push(*part);
            }
        }
    }

    /// These were named before all others.
    pub(crate) fn go_on_after(&mut self, names: &[String]) {
        let after = std::mem::take(&mut self.order);
        self.seen.fill(false);
        let number = |name: &String| self.spans.names.iter().position(|known| known == name);
        let before: Vec<usize> = names.iter().filter_map(number).collect();
        self.note_parts(&before);
        self.note_parts(&after);
    }

    /// Names of parts, in first-use order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.order.iter().map(|part| self.spans.names[*part].clone()).collect()
    }

    /// Whether all is learned, `quiet` after the last request. To be asked when all is loaded.
    pub(crate) fn is_learned(&mut self, quiet: Duration) -> bool {
        let Some(learned) = self.learned.as_mut().filter(|_| !self.order.is_empty()) else { return false };
        let since = learned.since.get_or_insert_with(Instant::now);
        quiet >= QUIET || since.elapsed() >= LONGEST
    }

    /// Whether what was seen is to be kept although there may be more to come: an answer was given, and after that the
    /// program has asked for nothing for a moment. Many a program is ended before it rests any longer.
    pub(crate) fn has_answered(&self, quiet: Duration) -> bool {
        self.pause().is_some_and(|pause| quiet >= pause)
    }

    /// The program is given contents of memory.
    pub(crate) fn note_answer(&mut self) {
        self.answered = true;
    }

    /// How soon to look for that; none where there is nothing to look for.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let early = self.learned.as_ref().is_some_and(|learned| !learned.is_kept);
        (early && self.answered && !self.order.is_empty()).then_some(PAUSE)
    }

    /// Adds what was learned to the image's load order, and which pages the client of this pid has touched, beside the
    /// program's requests.
    pub(crate) fn keep(&mut self, client: i32) {
        let names = self.names();
        let Some(learned) = &mut self.learned else { return };
        let (path, id) = (learned.path.clone(), learned.id.clone());
        let is_first = !std::mem::replace(&mut learned.is_kept, true);
        std::thread::spawn(move || {
            let with_image = |learn: &dyn Fn(&Image) -> rekindle_store::Result<bool>| {
                Image::open(&path).and_then(|image| match image.manifest().id == id {
                    true => learn(&image),
                    false => Ok(false),
                })
            };
            // An image that is removed by now needs no order.
            match with_image(&|image| image.learn_load_order(&names, is_first)) {
                Ok(kept) => log::debug!("{} parts were used first; kept: {kept}", names.len()),
                Err(error) => log::info!("the order in which buffers are used was not kept: {error}"),
            }
            // The image is not held meanwhile: it may be removed.
            let kept = touched(client).map_err(|error| error.to_string()).and_then(|pages| {
                with_image(&|image| image.learn_first_pages(&pages, is_first))
                    .map_err(|error| error.to_string())
            });
            if let Err(problem) = kept {
                log::debug!("which pages process {client} has touched was not kept: {problem}");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_kept_after_the_first_answer_and_when_all_is_quiet() {
        let learned = Learned { path: PathBuf::new(), id: String::new(), since: None, is_kept: false };
        let spans = Spans::new(vec!["a".to_string()], vec![(100..200, 0)]);
        let mut uses = Uses { learned: Some(learned), ..Uses::new(spans) };
        uses.note_answer();
        assert!(uses.pause().is_none() && !uses.is_learned(QUIET));
        uses.note_parts(&[0]);
        assert!(uses.has_answered(PAUSE) && !uses.has_answered(Duration::ZERO));
        uses.keep(0);
        assert!(uses.pause().is_none() && !uses.has_answered(QUIET));
        assert!(!uses.is_learned(PAUSE) && uses.is_learned(QUIET));
    }

    #[test]
    fn addresses_inside_and_ranges_across_find_their_parts() {
        let names = ["a", "b", "c"].map(str::to_string).to_vec();
        let spans = Spans::new(names, vec![(300..400, 2), (100..200, 0), (200..250, 1)]);
        let touched = |start: u64, end: u64, words: &[u64]| {
            spans.parts(&TouchedMemory {
                ranges: std::iter::once(start..end).collect(),
                words: words.to_vec(),
                ..TouchedMemory::default()
            })
        };
        assert_eq!(touched(0, 0, &[399, 150, 199, 400, 99, 250]), [2, 0]);
        assert_eq!(touched(180, 301, &[]), [0, 1, 2]);
        assert_eq!(touched(250, 300, &[]), [] as [usize; 0]);
        assert_eq!(touched(0, 100, &[]), [] as [usize; 0]);
    }
}
