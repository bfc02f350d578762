//! Generations of made-up programs, of which every byte is known: memory is mapped, unmapped, protected, written, moved
//! and given back at random, dumped as CRIU would, rewritten, and brought back as CRIU and the kernel would.
//!
//! An area is mapped, protected or moved as a whole or in parts, and those that fit each other may be one again or not:
//! both are states that a kernel can be in.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::pages::area::PAGE;
use crate::pages::image::Entries;
use crate::pages::{mark, seen_path};
use crate::proto::Message;

/// Where the pages lie that are changed, and how many there are.
const ARENA: u64 = 0x7f00_0000_0000;
const PAGES: u64 = 192;
/// The client's data, with its mark.
const CLIENT: u64 = 0x5500_0000_0000;
const LIBRARY_PAGES: u64 = 96;

const READ: u64 = 1;
const WRITE: u64 = 2;
const DONTFORK: u64 = 1 << 10;

/// What a page holds; 0 for zeros.
type Stamp = u32;

fn bytes(stamp: Stamp) -> Vec<u8> {
    stamp.to_le_bytes().repeat(PAGE as usize / 4)
}

fn of_library(page: u64) -> Stamp {
    0x4000_0000 + page as u32
}

/// What is behind an area, from its first page on.
#[derive(Debug, Clone, PartialEq)]
enum AreaBacking {
    Nothing,
    /// The program's own file.
    Library(u64),
    /// A page file, by its name.
    Pages(String, u64),
}

impl AreaBacking {
    fn after(&self, pages: u64) -> AreaBacking {
        match self {
            AreaBacking::Nothing => AreaBacking::Nothing,
            AreaBacking::Library(first) => AreaBacking::Library(first + pages),
            AreaBacking::Pages(name, first) => AreaBacking::Pages(name.clone(), first + pages),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Mapped {
    pages: Range<u64>,
    protection: u64,
    advice: u64,
    behind: AreaBacking,
}

impl Mapped {
    fn part(&self, pages: Range<u64>) -> Mapped {
        let behind = self.behind.after(pages.start - self.pages.start);
        Mapped { pages, behind, ..self.clone() }
    }

    fn goes_on_as(&self, next: &Mapped) -> bool {
        let length = self.pages.end - self.pages.start;
        let moved = Mapped { pages: next.pages.clone(), behind: self.behind.after(length), ..self.clone() };
        self.pages.end == next.pages.start && moved == *next
    }
}

/// A process as its kernel has it, and what it must find in its memory.
#[derive(Debug, Clone, Default)]
struct Running {
    /// By their first pages.
    areas: BTreeMap<u64, Mapped>,
    /// Pages of its own, which a dump has.
    own: BTreeMap<u64, Stamp>,
    /// What each page that is mapped must hold.
    known: BTreeMap<u64, Stamp>,
}

/// What a program does. Pages are counted from the arena's first.
#[derive(Debug, Clone)]
enum Operation {
    Map {
        pages: Range<u64>,
        protection: u64,
        library: Option<u64>,
    },
    Unmap(Range<u64>),
    Protect(Range<u64>, u64),
    Advise(Range<u64>, u64),
    /// So many pages and then not so many, in turn; some of them with zeros.
    Write {
        pages: Range<u64>,
        written: u64,
        left: u64,
    },
    /// With what is there.
    WriteAgain(Range<u64>),
    /// What nobody gives back is left alone: what maps a file that is a program.
    GiveBack(Range<u64>),
    Move {
        pages: Range<u64>,
        to: u64,
    },
    Merge,
}

impl Running {
    /// Has no area reach over a border of `pages`.
    fn split(&mut self, pages: &Range<u64>) {
        for at in [pages.start, pages.end] {
            let Some((&first, area)) = self.areas.range(..at).next_back() else { continue };
            if area.pages.end > at {
                let (before, after) = (area.part(area.pages.start..at), area.part(at..area.pages.end));
                self.areas.insert(first, before);
                self.areas.insert(at, after);
            }
        }
    }

    fn within(&mut self, pages: &Range<u64>) -> Vec<Mapped> {
        self.split(pages);
        self.areas.range(pages.clone()).map(|(_, area)| area.clone()).collect()
    }

    fn change(&mut self, pages: &Range<u64>, with: impl Fn(&mut Mapped)) {
        for mut area in self.within(pages) {
            with(&mut area);
            self.areas.insert(area.pages.start, area);
        }
    }

    fn unmap(&mut self, pages: &Range<u64>) {
        self.split(pages);
        self.areas.retain(|first, _| !pages.contains(first));
        self.own.retain(|page, _| !pages.contains(page));
        self.known.retain(|page, _| !pages.contains(page));
    }

    fn map(&mut self, area: Mapped, holds: impl Fn(u64) -> Stamp) {
        self.unmap(&area.pages);
        self.known.extend(area.pages.clone().map(|page| (page, holds(page))));
        self.areas.insert(area.pages.start, area);
    }

    fn write(&mut self, page: u64, stamp: Stamp) {
        self.own.insert(page, stamp);
        self.known.insert(page, stamp);
    }

    fn operate(&mut self, operation: &Operation, next: &mut Stamp) {
        match operation.clone() {
            Operation::Map { pages, protection, library: None } => {
                let area = Mapped { pages, protection, advice: 0, behind: AreaBacking::Nothing };
                self.map(area, |_| 0);
            }
            Operation::Map { pages, protection, library: Some(from) } => {
                // The first page says that it is a program.
                let from = 1 + from % (LIBRARY_PAGES - 1);
                let pages = pages.start..pages.end.min(pages.start + LIBRARY_PAGES - from);
                let first = pages.start;
                let area = Mapped { pages, protection, advice: 0, behind: AreaBacking::Library(from) };
                self.map(area, |page| of_library(from + page - first));
            }
            Operation::Unmap(pages) => self.unmap(&pages),
            Operation::Protect(pages, protection) => self.change(&pages, |area| area.protection = protection),
            Operation::Advise(pages, advice) => self.change(&pages, |area| area.advice = advice),
            Operation::Write { pages, written, left } => {
                let first = pages.start;
                for page in pages.filter(|page| (page - first) % (written + left) < written) {
                    if self.known.contains_key(&page) {
                        *next += 1;
                        let stamp = if next.is_multiple_of(13) { 0 } else { *next };
                        self.write(page, stamp);
                    }
                }
            }
            Operation::WriteAgain(pages) => {
                for page in pages {
                    if let Some(&stamp) = self.known.get(&page) {
                        self.write(page, stamp);
                    }
                }
            }
            Operation::GiveBack(pages) => {
                for area in self.within(&pages) {
                    let is_of_a_program = match &area.behind {
                        AreaBacking::Nothing => false,
                        AreaBacking::Library(_) => true,
                        AreaBacking::Pages(name, _) => name.starts_with(PRIVATE),
                    };
                    if !is_of_a_program {
                        // The client puts anonymous memory where the kernel would show the file.
                        self.map(Mapped { behind: AreaBacking::Nothing, ..area }, |_| 0);
                    }
                }
            }
            Operation::Move { pages, to } => self.shift(&pages, to),
            Operation::Merge => {
                let all = std::mem::take(&mut self.areas);
                let mut last: Option<Mapped> = None;
                for area in all.into_values() {
                    match &mut last {
                        Some(before) if before.goes_on_as(&area) => before.pages.end = area.pages.end,
                        _ => {
                            self.areas.extend(last.replace(area).map(|area| (area.pages.start, area)));
                        }
                    }
                }
                self.areas.extend(last.map(|area| (area.pages.start, area)));
            }
        }
    }

    /// Moves what is one area to where nothing is.
    fn shift(&mut self, pages: &Range<u64>, to: u64) {
        let Some(area) = self.within(pages).into_iter().next() else { return };
        let (from, length) = (area.pages.start, area.pages.end - area.pages.start);
        let new = to..to + length;
        if new.end > PAGES || new.clone().any(|page| self.known.contains_key(&page)) {
            return;
        }
        let moved = |all: &BTreeMap<u64, Stamp>| -> Vec<(u64, Stamp)> {
            all.range(area.pages.clone()).map(|(page, stamp)| (to + page - from, *stamp)).collect()
        };
        let (own, known) = (moved(&self.own), moved(&self.known));
        self.unmap(&area.pages);
        self.own.extend(own);
        self.known.extend(known);
        self.areas.insert(to, Mapped { pages: new, ..area });
    }
}

/// One generation's files.
struct GenerationFiles {
    images: PathBuf,
    /// Page files by name.
    pages: PathBuf,
}

impl GenerationFiles {
    fn make(root: &Path, name: &str) -> GenerationFiles {
        let place = GenerationFiles { images: root.join(name), pages: root.join(format!("{name}-pages")) };
        fs::create_dir(&place.images).unwrap();
        fs::create_dir(&place.pages).unwrap();
        place
    }
}

fn write_entries(path: &Path, entries: Vec<Message>) {
    let mut all = Entries::new(7);
    all.entries = entries;
    all.write(path).unwrap();
}

fn address(page: u64) -> u64 {
    ARENA + page * PAGE
}

/// An entry of a process's memory as CRIU writes it.
fn area_entry(span: Range<u64>, protection: u64, advice: u64, file: Option<(u64, u64)>) -> Message {
    let (offset, id, flags, status) = match file {
        None => (0, 0, 0x22, 1 | 1 << 9),
        Some((id, offset)) => (offset, id, 0x2, 1 | 1 << 6),
    };
    let mut entry = Message::default();
    entry.set(1, span.start).set(2, span.end).set(3, offset).set(4, id).set(5, protection);
    entry.set(6, flags).set(7, status).set(8, u64::MAX).set(9, advice);
    entry
}

/// Writes what CRIU would of these processes, whose client has `word` as its mark.
fn dump(place: &GenerationFiles, processes: &[Running], word: u32, library: &Path) {
    let mut ids: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let mut id_of = |path: PathBuf| {
        let next = 10 + ids.len() as u64;
        *ids.entry(path).or_insert(next)
    };
    for (number, process) in processes.iter().enumerate() {
        let pid = 100 + number;
        let client = id_of(PathBuf::from("/nowhere/libcuda.so.1"));
        let mut memory = Message::default();
        memory.set(1, 77);
        let entry = area_entry(CLIENT..CLIENT + PAGE, READ | WRITE, 0, Some((client, 0)));
        memory.add_bytes(14, entry.write());
        for area in process.areas.values() {
            let file = match &area.behind {
                AreaBacking::Nothing => None,
                AreaBacking::Library(first) => Some((id_of(library.to_path_buf()), first * PAGE)),
                AreaBacking::Pages(name, first) => Some((id_of(seen_path(name)), first * PAGE)),
            };
            let span = address(area.pages.start)..address(area.pages.end);
            memory.add_bytes(14, area_entry(span, area.protection, area.advice, file).write());
        }
        memory.set(15, 5);
        write_entries(&place.images.join(format!("mm-{pid}.img")), vec![memory]);
        let mut page = bytes(0x6060_6060);
        page[64..88].copy_from_slice(mark::MAGIC);
        page[88..92].copy_from_slice(&word.to_le_bytes());
        let (mut pages, mut runs) = (page, vec![(CLIENT, 1)]);
        for (&page, &stamp) in &process.own {
            pages.extend(bytes(stamp));
            match runs.last_mut() {
                Some((start, count)) if *start + *count * PAGE == address(page) => *count += 1,
                _ => runs.push((address(page), 1)),
            }
        }
        let mut head = Message::default();
        head.set(1, number as u64 + 1);
        let entries = runs.into_iter().map(|(start, count)| {
            let mut entry = Message::default();
            entry.set(1, start).set(2, count).set(4, 4).set(5, count);
            entry
        });
        let all = std::iter::once(head).chain(entries).collect();
        write_entries(&place.images.join(format!("pagemap-{pid}.img")), all);
        fs::write(place.images.join(format!("pages-{}.img", number + 1)), pages).unwrap();
    }
    let files = ids.into_iter().map(|(path, id)| {
        let mut regular = Message::default();
        regular.set(1, id).set(2, 0).set(3, 0).set_bytes(6, path.to_str().unwrap().into());
        let mut entry = Message::default();
        entry.set(1, 1).set(2, id).set_bytes(3, regular.write());
        entry
    });
    write_entries(&place.images.join("files.img"), files.collect());
}

/// The paths of regular files by their numbers.
fn paths(images: &Path) -> BTreeMap<u64, String> {
    let files = Entries::read(&images.join("files.img")).unwrap().entries;
    let named = files.iter().map(|entry| {
        let regular = Message::read(entry.all_bytes(3).next().unwrap()).unwrap();
        let name = String::from_utf8(regular.all_bytes(6).next().unwrap().to_vec()).unwrap();
        (entry.number(2).unwrap(), name)
    });
    named.collect()
}

/// A process as CRIU and the kernel make it of images; what it must hold is what it held.
fn bring_back(
    place: &GenerationFiles,
    number: usize,
    before: &Running,
    library: &Path,
) -> Result<Running, TestCaseError> {
    let pid = 100 + number;
    let paths = paths(&place.images);
    let memory = Entries::read(&place.images.join(format!("mm-{pid}.img"))).unwrap().entries.remove(0);
    prop_assert_eq!((memory.number(1), memory.number(15)), (Some(77), Some(5)), "what is not known stays");
    let mut running = Running { known: before.known.clone(), ..Running::default() };
    let mut end = 0;
    for entry in memory.all_bytes(14) {
        let entry = Message::read(entry).unwrap();
        let field = |field| entry.number(field).unwrap_or(0);
        let (span, status) = (field(1)..field(2), field(7));
        prop_assert!(span.start >= end && span.start < span.end, "{:x?} after {:x}", span, end);
        end = span.end;
        if span.start == CLIENT {
            continue;
        }
        let behind = match status & (1 << 9 | 1 << 6) {
            512 => {
                prop_assert_eq!((field(6), field(3), field(4)), (0x22, 0, 0));
                AreaBacking::Nothing
            }
            64 => {
                prop_assert_eq!(field(6), 0x2);
                let path = paths.get(&field(4));
                let path =
                    path.ok_or_else(|| TestCaseError::fail(format!("file {} is not there", field(4))))?;
                match page_file_name(Path::new(path)) {
                    Some(name) => AreaBacking::Pages(name.to_string(), field(3) / PAGE),
                    None => {
                        prop_assert_eq!(Path::new(path), library);
                        AreaBacking::Library(field(3) / PAGE)
                    }
                }
            }
            _ => return Err(TestCaseError::fail(format!("status {status:x}"))),
        };
        let pages = (span.start - ARENA) / PAGE..(span.end - ARENA) / PAGE;
        let area = Mapped { pages, protection: field(5), advice: field(9), behind };
        running.areas.insert(area.pages.start, area);
    }
    let map = Entries::read(&place.images.join(format!("pagemap-{pid}.img"))).unwrap().entries;
    let pages = fs::read(place.images.join(format!("pages-{}.img", map[0].number(1).unwrap()))).unwrap();
    let (mut at, mut end) = (0, 0);
    for entry in &map[1..] {
        let (start, count) = (entry.number(1).unwrap(), entry.number(5).unwrap());
        prop_assert_eq!((entry.number(2), entry.number(4)), (Some(count), Some(4)));
        prop_assert!(start >= end && count > 0, "{:x} after {:x}", start, end);
        end = start + count * PAGE;
        for page in 0..count {
            let found = &pages[at..at + PAGE as usize];
            at += PAGE as usize;
            if start >= ARENA {
                let stamp = Stamp::from_le_bytes(found[..4].try_into().unwrap());
                prop_assert_eq!(found, &bytes(stamp)[..]);
                running.own.insert((start - ARENA) / PAGE + page, stamp);
            }
        }
    }
    prop_assert_eq!(at, pages.len(), "pages that nobody reads");
    Ok(running)
}

/// Compares every byte and border with what is known.
fn compare(place: &GenerationFiles, running: &Running, before: &Running) -> Result<(), TestCaseError> {
    let described = |running: &Running| -> BTreeMap<u64, (u64, u64)> {
        let areas = running.areas.values();
        areas.flat_map(|area| area.pages.clone().map(|page| (page, (area.protection, area.advice)))).collect()
    };
    prop_assert_eq!(described(running), described(before));
    let mut opened: BTreeMap<&str, File> = BTreeMap::new();
    for area in running.areas.values() {
        for page in area.pages.clone() {
            let known = running.known[&page];
            let found = match (running.own.get(&page), area.behind.after(page - area.pages.start)) {
                (Some(stamp), _) => bytes(*stamp),
                (None, AreaBacking::Nothing) => bytes(0),
                (None, AreaBacking::Library(at)) => bytes(of_library(at)),
                (None, AreaBacking::Pages(_, at)) => {
                    let AreaBacking::Pages(name, _) = &area.behind else { unreachable!() };
                    let open = || File::open(place.pages.join(name)).unwrap();
                    let mut found = vec![0; PAGE as usize];
                    opened.entry(name).or_insert_with(open).read_exact_at(&mut found, at * PAGE).unwrap();
                    found
                }
            };
            prop_assert!(found == bytes(known), "page {} has {:x?}.. for {:x}", page, &found[..8], known);
        }
    }
    prop_assert!(running.own.keys().all(|page| running.known.contains_key(page)), "a page of no area");
    Ok(())
}

/// One generation: what its processes do, whether one more is forked before that, and what is wished.
#[derive(Debug, Clone)]
struct Generation {
    operations: Vec<(bool, Operation)>,
    forks: bool,
    maps: bool,
    shares: bool,
}

fn pages() -> impl Strategy<Value = Range<u64>> {
    let length = prop_oneof![3 => 1..8u64, 3 => 8..48u64, 1 => 48..PAGES];
    (0..PAGES, length).prop_map(|(start, length)| start..(start + length).min(PAGES))
}

fn protection() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![READ | WRITE, READ | WRITE, READ | WRITE, READ, 0, READ | WRITE | 4])
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (pages(), protection()).prop_map(|(pages, protection)| Operation::Map { pages, protection, library: None }),
        1 => (pages(), protection(), 0..LIBRARY_PAGES)
            .prop_map(|(pages, protection, from)| Operation::Map { pages, protection, library: Some(from) }),
        1 => pages().prop_map(Operation::Unmap),
        2 => (pages(), protection()).prop_map(|(pages, to)| Operation::Protect(pages, to)),
        1 => (pages(), prop::sample::select(vec![0, DONTFORK])).prop_map(|(pages, to)| Operation::Advise(pages, to)),
        6 => (pages(), 1..20u64, 0..5u64)
            .prop_map(|(pages, written, left)| Operation::Write { pages, written, left }),
        1 => pages().prop_map(Operation::WriteAgain),
        1 => pages().prop_map(Operation::GiveBack),
        2 => (pages(), 0..PAGES).prop_map(|(pages, to)| Operation::Move { pages, to }),
        2 => Just(Operation::Merge),
    ]
}

fn generation() -> impl Strategy<Value = Generation> {
    let operations = prop::collection::vec((any::<bool>(), operation()), 1..14);
    (operations, prop::bool::weighted(0.2), prop::bool::weighted(0.85), prop::bool::weighted(0.85))
        .prop_map(|(operations, forks, maps, shares)| Generation { operations, forks, maps, shares })
}

fn live(generations: &[Generation]) -> Result<(), TestCaseError> {
    let root = TempDir::new().unwrap();
    let library = root.path().join("program");
    let mut text = b"\x7fELF".to_vec();
    text.extend((0..LIBRARY_PAGES).flat_map(|page| bytes(of_library(page))).skip(4));
    fs::write(&library, text).unwrap();
    let mut processes = vec![Running::default()];
    let whole = Operation::Map { pages: 0..PAGES / 2, protection: READ | WRITE, library: None };
    let mut next = 0;
    processes[0].operate(&whole, &mut next);
    let (mut earlier, mut word) = (root.path().join("none"), mark::LIVE);
    let mut holds: HashMap<String, u64> = HashMap::new();
    for (number, generation) in generations.iter().enumerate() {
        if generation.forks && processes.len() < 3 {
            let mut child = processes[0].clone();
            for area in child.areas.clone().into_values().filter(|area| area.advice == DONTFORK) {
                child.unmap(&area.pages);
            }
            processes.push(child);
        }
        for (is_last, operation) in &generation.operations {
            let which = if *is_last { processes.len() - 1 } else { 0 };
            processes[which].operate(operation, &mut next);
        }
        let place = GenerationFiles::make(root.path(), &number.to_string());
        dump(&place, &processes, word, &library);
        let files = PageFiles::open(&[&earlier]);
        let options = RewriteOptions {
            earlier: &earlier,
            files: &files,
            last: None,
            map: generation.maps,
            share: generation.shares.then_some(&holds),
        };
        let made = rewrite(&place.images, &place.pages, &options)
            .map_err(|refusal| TestCaseError::fail(format!("refused: {refusal}")))?;
        prop_assert_eq!(&made.warnings, &Vec::<String>::new());
        for name in &made.shared {
            fs::hard_link(earlier.join(name), place.pages.join(name)).unwrap();
        }
        holds.retain(|name, _| made.shared.contains(name));
        for file in &made.files {
            prop_assert!(holds.insert(file.name.clone(), file.bytes).is_none(), "{} twice", file.name);
            prop_assert_eq!(fs::metadata(&file.path).unwrap().len(), file.bytes + super::super::TAIL);
        }
        for (number, before) in processes.iter_mut().enumerate() {
            let running = bring_back(&place, number, before, &library)?;
            compare(&place, &running, before)?;
            *before = running;
        }
        if !made.files.is_empty() {
            word = mark::CONVERTED;
        }
        earlier = place.pages;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_generation_has_every_byte(generations in prop::collection::vec(generation(), 2..7)) {
        live(&generations)?;
    }
}
