//! Whatever lies where a file of a store belongs, no operation waits for it, reads it without end or keeps the name.

mod support;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rekindle_store::{HashedChunks, PageRun, Part, PartKind, Store};
use serde_json::Value;
use support::{files, noise};
use tempfile::TempDir;

/// What bounds a hang.
const LIMIT: Duration = Duration::from_secs(120);
/// More than this no operation may take for a file that is not what it should be.
const MOST_MEMORY: u64 = 64 << 20;
const NAME: &str = "job";

type Replacement = (&'static str, fn(&Path));

/// What may lie there instead.
const STRANGE: [Replacement; 7] = [
    ("a named pipe", |path| mkfifo(path, Mode::S_IRWXU).unwrap()),
    ("a link to /dev/zero", |path| symlink("/dev/zero", path).unwrap()),
    ("a link to nowhere", |path| symlink("nowhere", path).unwrap()),
    ("a directory", |path| {
        fs::create_dir(path).unwrap();
        fs::write(path.join("in it"), b"?").unwrap();
    }),
    ("a terabyte", |path| File::create(path).unwrap().set_len(1 << 40).unwrap()),
    ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
    ("no permission", |path| {
        File::create(path).unwrap().set_permissions(Permissions::from_mode(0o000)).unwrap();
    }),
];

/// An image with parts of all encodings and kinds, and all that is learned of one.
fn write(store: &Store, root: &Path) {
    let kept = root.join("kept.img");
    fs::write(&kept, noise(3, 100_000)).unwrap();
    let pages = root.join("pages");
    fs::write(&pages, noise(4, 100_000)).unwrap();
    File::options().write(true).open(&pages).unwrap().set_len(1 << 30).unwrap();
    let draft = store.begin(NAME).unwrap();
    draft.put(PartKind::GpuBuffer, "raw", Value::Null, &noise(1, 5000)).unwrap();
    draft.put(PartKind::WorkerState, "zstd", Value::Null, &b"compress me ".repeat(1000)).unwrap();
    draft.take_file(PartKind::CpuFile, "kept.img", &kept).unwrap();
    draft.take_pages(PartKind::CpuPages, "anon-1", &pages, 100_000, &HashedChunks::new()).unwrap();
    let image = draft.commit().unwrap();
    image.learn_load_order(&["raw".into()], true).unwrap();
    image.learn_first_pages(&[PageRun { start: 0x1000, pages: 1, written: true }], true).unwrap();
    image.learn_unwritten(&["raw".into()]).unwrap();
}

fn sample() -> (TempDir, Store) {
    let (root, store) = support::store();
    write(&store, root.path());
    (root, store)
}

/// The files of a store with one image, from its root, also some that are there only at times.
fn places(root: &Path) -> Vec<PathBuf> {
    let store = root.join("store");
    let mut places: Vec<PathBuf> =
        files(&store).iter().map(|path| path.strip_prefix(&store).unwrap().to_path_buf()).collect();
    assert_eq!(places.len(), 10, "{places:?}");
    for more in ["advice.new", "cpu/stray.img"] {
        places.push(Path::new("images").join(NAME).join(more));
    }
    for more in ["staging/0123", "staging/0123.lock", "images/stray"] {
        places.push(more.into());
    }
    for directory in ["images/job", "images/job/cpu", "images/job/pages"] {
        places.push(directory.into());
    }
    places
}

fn put(path: &Path, replacement: Replacement) {
    match path.is_dir() {
        true => fs::remove_dir_all(path).unwrap(),
        false => drop(fs::remove_file(path)),
    }
    replacement.1(path);
}

/// One sentence, if it is an error.
fn told<T>(case: &str, result: Result<T, rekindle_store::Error>) -> Option<T> {
    result
        .map_err(|error| {
            let sentence = error.to_string();
            assert!(!sentence.contains('\n') && sentence.len() < 700, "{case}: {sentence}");
        })
        .ok()
}

/// Everything that is done with an image.
fn use_it(case: &str, store: &Store) {
    told(case, store.images());
    let sound = told(case, store.verify(NAME, &|_, _| {})).map(|report| report.problems);
    if let Some(image) = told(case, store.image(NAME)) {
        let parts: Vec<&Part> = image.manifest().parts.iter().collect();
        for part in &parts {
            told(case, image.check_present(&[*part]));
            told(case, image.read_part(part, 0, &mut vec![0; part.bytes as usize]));
            told(case, image.open_raw(part, 0, part.chunks[0].bytes));
        }
        told(case, image.check_parts(&parts, 2));
        let pages: Vec<&Part> = image.parts(PartKind::CpuPages).collect();
        told(case, image.check_glance(&pages, 2));
        told(case, image.load_order());
        told(case, image.first_pages());
        told(case, image.unwritten());
        told(case, store.bytes_of_its_own(&image));
    }
    // What of an image is strange is told of by verifying.
    let spoils =
        !case.contains("staging") && !case.contains("images/stray") && !case.contains("collect.lock");
    let harmless = case.contains("advice.new") && (case.contains("terabyte") || case.contains("permission"));
    if spoils && !harmless {
        assert_ne!(sound, Some(Vec::new()), "{case}: it is called sound");
    }
}

#[test]
fn nothing_strange_is_waited_for_read_without_end_or_in_the_way() {
    let (send, cases) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        // As a case leaves it the next one finds it: that all is well again is part of each.
        let (root, mut store) = sample();
        let places = places(root.path());
        for place in &places {
            for replacement in STRANGE {
                let case = format!("{} at {}", replacement.0, place.display());
                send.send(case.clone()).unwrap();
                let path = root.path().join("store").join(place);
                put(&path, replacement);
                use_it(&case, &store);
                // Another daemon may come.
                let again = told(&case, Store::open(store.root()));
                let of_the_store =
                    [Path::new("format"), Path::new("collect.lock")].contains(&place.as_path());
                assert!(again.is_some() || of_the_store, "{case}: the store cannot be opened");
                // Whatever is there, the name becomes free, and another image can have it.
                for name in [NAME, "stray"] {
                    told(&case, store.remove(name));
                }
                if of_the_store {
                    let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
                }
                if place == Path::new("format") {
                    fs::write(&path, "rekindle store 1\n").unwrap();
                }
                store = Store::open(store.root()).unwrap();
                store.collect().unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(store.images().unwrap(), [], "{case}");
                assert_eq!(fs::read_dir(root.path().join("store/staging")).unwrap().count(), 0, "{case}");
                write(&store, root.path());
                assert_eq!(store.verify(NAME, &|_, _| {}).unwrap().problems, [""; 0], "{case}");
            }
        }
    });
    let mut last = String::new();
    loop {
        match cases.recv_timeout(LIMIT) {
            Ok(case) => last = case,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("still waiting for {last}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes << 10 < MOST_MEMORY, "{kilobytes} kB");
}

/// A chunk whose place something else has taken is written again when its contents come again.
#[test]
fn a_checkpoint_puts_chunks_in_the_place_of_what_is_none() {
    for replacement in STRANGE {
        let (root, store) = sample();
        for chunk in support::chunk_files(root.path()) {
            put(&chunk, replacement);
        }
        store.remove(NAME).unwrap();
        write(&store, root.path());
        assert_eq!(store.verify(NAME, &|_, _| {}).unwrap().problems, [""; 0], "{}", replacement.0);
    }
}

#[test]
fn every_file_of_advice_and_of_the_store_is_verified() {
    let (root, store) = sample();
    let at = |name: &str| store.image(NAME).unwrap().path().join(name);
    for (path, advice) in [
        (at("load-order.json"), true),
        (at("first-pages.json"), true),
        (at("unwritten.json"), true),
        (root.path().join("store/format"), false),
    ] {
        let whole = fs::read(&path).unwrap();
        for place in (0..whole.len()).step_by(7) {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(&path, &changed).unwrap();
            let problems = store.verify(NAME, &|_, _| {}).unwrap().problems;
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(matches!(&problems[..], [one] if one.contains(name)), "{place}: {problems:?}");
        }
        fs::write(&path, &whole).unwrap();
        if advice {
            // Advice that is damaged changes nothing, and is learned anew.
            fs::write(&path, &whole[..whole.len() / 2]).unwrap();
            let image = store.image(NAME).unwrap();
            image.learn_load_order(&["raw".into()], true).unwrap();
            image.learn_first_pages(&[PageRun { start: 0x1000, pages: 1, written: true }], true).unwrap();
            image.learn_unwritten(&["raw".into()]).unwrap();
        }
        assert!(store.verify(NAME, &|_, _| {}).unwrap().is_sound());
    }
}
