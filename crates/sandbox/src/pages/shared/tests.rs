//! What is shared, on processes of a few made-up areas.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::*;
use crate::pages::backing::BackingFile;
use crate::pages::cut::{LIMIT, MAPPING, READING};
use crate::pages::{ANONYMOUS, PRIVATE};
use crate::proto::Encoder;

const START: u64 = 0x7f00_0000_0000;

/// A private mapping of a file, so many pages from [`START`] on.
fn area(pages: Range<u64>, protection: u64) -> Area {
    let mut out = Encoder::default();
    out.number(1, START + pages.start * PAGE).number(2, START + pages.end * PAGE);
    out.number(3, pages.start * PAGE).number(4, 5).number(5, protection).number(6, 2).number(7, 65);
    Area::read(&out.0).unwrap()
}

/// A file of so many pages, each of which has its number in it.
fn base_file(pages: u64) -> Arc<BackingFile> {
    let mut file = tempfile::tempfile().unwrap();
    for page in 0..pages {
        file.write_all(&[1 + (page % 250) as u8; PAGE as usize]).unwrap();
    }
    file.set_len((pages * PAGE) + (1 << 40)).unwrap();
    Arc::new(BackingFile::of(file).unwrap())
}

/// What a file made here has in it.
fn contents(file: &BackingFile) -> u64 {
    file.file.metadata().unwrap().len() - (1 << 40)
}

struct Made {
    process: Process,
    pages: Arc<File>,
    inherited: HashMap<usize, Inherited>,
}

impl Made {
    /// Areas that map the file at their own offsets; `dumped` are pages, changed or as they were.
    fn new(areas: Vec<Area>, file: &Arc<BackingFile>, dumped: &[(Range<u64>, bool)]) -> Made {
        let pages = tempfile::tempfile().unwrap();
        let (mut runs, mut at) = (Vec::new(), 0);
        for (range, is_changed) in dumped {
            runs.push(Run { memory: START + range.start * PAGE..START + range.end * PAGE, at });
            for page in range.clone() {
                let byte = if *is_changed { 255 } else { 1 + (page % 250) as u8 };
                pages.write_all_at(&[byte; PAGE as usize], at).unwrap();
                at += PAGE;
            }
        }
        let inherited = areas.iter().enumerate().map(|(number, area)| {
            let base = Base { file: file.clone(), offset: area.offset };
            (number, Inherited { kind: ANONYMOUS, name: "anon-1".into(), base })
        });
        let inherited = inherited.collect();
        Made { process: Process::made(areas, runs), pages: Arc::new(pages), inherited }
    }

    fn plan(&self) -> Vec<Group> {
        let dumped = Dumped { process: &self.process, pages: &self.pages, inherited: &self.inherited };
        let holds =
            self.inherited.values().map(|from| (from.name.clone(), contents(&from.base.file))).collect();
        plan(&[dumped], &holds).unwrap().remove(0)
    }

    /// The pieces as pages, `o` for own and `b` for base; and how many pages are read.
    fn pieces(&self) -> (Vec<(char, Range<u64>)>, u64) {
        let groups = self.plan();
        let read = groups.iter().flat_map(Group::read).map(|run| length(&run)).sum::<u64>() / PAGE;
        let page = |address: u64| (address - START) / PAGE;
        let pieces = groups.iter().flat_map(|group| &group.pieces).map(|piece| match piece {
            Piece::Base { span, .. } => ('b', page(span.start)..page(span.end)),
            Piece::Own { span } => ('o', page(span.start)..page(span.end)),
        });
        (pieces.collect(), read)
    }
}

#[test]
fn what_is_written_again_with_the_same_is_not_changed() {
    let file = base_file(1000);
    let made = Made::new(vec![area(0..1000, 3)], &file, &[(0..600, false)]);
    assert_eq!(made.pieces(), (vec![('b', 0..1000)], 0));
}

#[test]
fn long_stretches_become_the_images_own_and_short_ones_are_read() {
    let file = base_file(1000);
    let dumped = [(100..120, true), (300..303, true), (500..510, true), (513..530, true)];
    let made = Made::new(vec![area(0..1000, 3)], &file, &dumped);
    let expected = [('b', 0..100), ('o', 100..120), ('b', 120..500), ('o', 500..530), ('b', 530..1000)];
    assert_eq!(made.pieces(), (expected.to_vec(), 3));
}

#[test]
fn no_piece_at_an_edge_is_tiny() {
    let file = base_file(1000);
    let made = Made::new(vec![area(0..1000, 3)], &file, &[(2..30, true), (950..999, true)]);
    assert_eq!(made.pieces(), (vec![('o', 0..30), ('b', 30..950), ('o', 950..1000)], 0));
}

#[test]
fn a_file_that_is_little_used_is_left_behind() {
    let file = base_file(1000);
    for (changed, pieces) in [(400, vec![('o', 0..400), ('b', 400..1000)]), (600, vec![('o', 0..1000)])] {
        let made = Made::new(vec![area(0..1000, 3)], &file, &[(0..changed, true)]);
        assert_eq!(made.pieces(), (pieces, 0));
    }
    // What is not mapped any more is not used either.
    let made = Made::new(vec![area(0..300, 3)], &file, &[]);
    assert_eq!(made.pieces(), (vec![('o', 0..300)], 0));
}

#[test]
fn areas_that_were_one_are_taken_as_one() {
    let file = base_file(1000);
    let areas = || vec![area(0..400, 3), area(400..420, 3), area(420..900, 3), area(900..1000, 1)];
    let mut made = Made::new(areas(), &file, &[]);
    assert_eq!(made.plan().len(), 2);
    // The one in the middle maps a file of which nothing else is in use.
    let other = base_file(1000);
    let base = Base { file: other, offset: 400 * PAGE };
    made.inherited.insert(1, Inherited { kind: ANONYMOUS, name: "anon-1-2".into(), base });
    let expected = [('b', 0..400), ('o', 400..420), ('b', 420..900), ('b', 900..1000)];
    assert_eq!(made.pieces(), (expected.to_vec(), 0));
    made.inherited.get_mut(&1).unwrap().kind = PRIVATE;
    assert_eq!(made.plan().len(), 4);
}

#[test]
fn a_restore_takes_no_longer_than_it_may() {
    let pages = 64 << 10;
    let file = base_file(pages);
    let time = |stretches: Vec<(Range<u64>, bool)>| {
        let (pieces, read) = Made::new(vec![area(0..pages, 3)], &file, &stretches).pieces();
        MAPPING * pieces.len() as u64 + READING * read
    };
    // One page in ten, and longer stretches; each for itself would take more than twice as long.
    for scattered in [
        (0..pages / 32).map(|n| (n * 32..n * 32 + 3, true)).collect::<Vec<_>>(),
        (0..pages / 60).map(|n| (n * 60..n * 60 + 20, true)).collect(),
    ] {
        let time = time(scattered);
        assert!(time > LIMIT / 2 && time <= LIMIT, "{time} µs");
    }
}

#[test]
fn few_files_are_taken_along() {
    let file = base_file(500);
    let areas: Vec<_> = (0..5).map(|n| area(n * 100..n * 100 + 90, 3)).collect();
    let mut made = Made::new(areas, &file, &[]);
    for n in 0..5u64 {
        // Each of a file of its own, the later the fuller.
        let own = base_file(10 + 10 * n);
        let base = Base { file: own, offset: 0 };
        made.inherited.insert(n as usize, Inherited { kind: ANONYMOUS, name: format!("anon-1-{n}"), base });
    }
    let kinds: String = made.pieces().0.iter().map(|piece| piece.0).collect();
    assert_eq!(kinds, "oobbb");
}

#[test]
fn files_that_were_made_together_stay_together() {
    let areas = || vec![area(0..100, 3), area(200..300, 3)];
    for (second, expected) in [("anon-1.1", "bb"), ("anon-1-2", "bo")] {
        let mut made = Made::new(areas(), &base_file(100), &[]);
        // Of the second one little is in use, of both together most is.
        let base = Base { file: base_file(250), offset: 0 };
        made.inherited.insert(1, Inherited { kind: ANONYMOUS, name: second.into(), base });
        let kinds: String = made.pieces().0.iter().map(|piece| piece.0).collect();
        assert_eq!(kinds, expected, "{second}");
    }
}
