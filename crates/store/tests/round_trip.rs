//! What goes into a store comes out of it again.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use proptest::prelude::*;
use rekindle_store::{Encoding, Error, Image, Part, PartKind, Staging, Store};
use serde_json::{Value, json};
use support::{contents, noise, store};

#[test]
fn every_kind_of_part_comes_back() {
    let (root, store) = store();
    let noisy = noise(1, 5 << 20);
    let text = b"page ".repeat(300_000);
    let mut sparse = vec![0; 7 << 20];
    sparse[6 << 20..(6 << 20) + 3].copy_from_slice(b"end");

    let draft = store.begin("job").unwrap();
    draft.put(PartKind::GpuBuffer, "weights", json!({"address": 0x7000_0000_0000u64}), &noisy).unwrap();
    draft.put(PartKind::CpuFile, "text", Value::Null, &text).unwrap();
    draft.put(PartKind::Pinned, "empty", Value::Null, &[]).unwrap();
    draft.put(PartKind::Other("graph".into()), "g", Value::Null, b"tiny").unwrap();
    let file = root.path().join("pages.img");
    fs::write(&file, &sparse).unwrap();
    draft.put_file(PartKind::CpuFile, "pages.img", &file).unwrap();
    draft.take_file(PartKind::CpuFile, "core-1.img", &file).unwrap();
    assert!(!file.exists());
    draft.manifest().program.argv = vec!["python".into(), "train.py".into()];
    let image = draft.commit().unwrap();

    let check = |image: &Image| {
        let part = |kind, name| image.part(kind, name).unwrap();
        assert_eq!(contents(image, part(PartKind::GpuBuffer, "weights")), noisy);
        assert_eq!(contents(image, part(PartKind::CpuFile, "text")), text);
        assert_eq!(contents(image, part(PartKind::Pinned, "empty")), b"");
        assert_eq!(contents(image, part(PartKind::Other("graph".into()), "g")), b"tiny");
        assert_eq!(contents(image, part(PartKind::CpuFile, "pages.img")), sparse);
        let kept = part(PartKind::CpuFile, "core-1.img");
        assert_eq!(contents(image, kept), sparse);
        assert_eq!(image.file_path(kept).unwrap(), image.path().join("cpu/core-1.img"));
        assert_eq!(fs::read(image.path().join("cpu/core-1.img")).unwrap(), sparse);
        assert_eq!(image.parts(PartKind::CpuFile).count(), 3);
        assert_eq!(part(PartKind::GpuBuffer, "weights").attributes, json!({"address": 0x7000_0000_0000u64}));
    };
    check(&image);
    check(&Image::open(image.path()).unwrap());
    drop(image);
    drop(store);
    let store = Store::open(&root.path().join("store")).unwrap();
    let image = store.image("job").unwrap();
    check(&image);
    assert_eq!(image.manifest().program.argv, ["python", "train.py"]);
    let sizes = image.manifest().sizes;
    assert_eq!(sizes.gpu, noisy.len() as u64);
    assert_eq!(sizes.logical, (noisy.len() + text.len() + 4 + 2 * sparse.len()) as u64);
    assert!(sizes.stored < sizes.logical - sizes.zero);
    assert!(store.verify("job", &|_, _| {}).unwrap().is_sound());
}

#[test]
fn extracted_files_keep_their_holes() {
    let (root, store) = store();
    let path = root.path().join("in");
    let file = fs::File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&noise(3, 10_000), 40 << 20).unwrap();
    let draft = store.begin("sparse").unwrap();
    draft.put_file(PartKind::CpuFile, "f", &path).unwrap();
    let image = draft.commit().unwrap();
    let out = root.path().join("out");
    let part = image.part(PartKind::CpuFile, "f").unwrap();
    image.extract(part, &out).unwrap();
    assert_eq!(fs::read(&path).unwrap(), fs::read(&out).unwrap());
    use std::os::unix::fs::MetadataExt;
    assert!(fs::metadata(&out).unwrap().blocks() * 512 < 4 << 20);
    let refused = image.extract(part, &out).unwrap_err();
    assert!(refused.to_string().contains("exists"), "{refused}");
}

#[test]
fn contents_are_shared_between_images() {
    let (root, store) = store();
    let weights = noise(5, 8 << 20);
    for name in ["a", "b", "c"] {
        let draft = store.begin(name).unwrap();
        draft.put(PartKind::GpuBuffer, "w", Value::Null, &weights).unwrap();
        draft.put(PartKind::GpuBuffer, "own", Value::Null, &noise(name.as_bytes()[0], 1 << 20)).unwrap();
        draft.commit().unwrap();
    }
    for summary in store.images().unwrap() {
        let outline = summary.state.unwrap();
        assert_eq!((outline.shared, outline.sizes.stored), (8 << 20, 9 << 20), "{}", summary.name);
    }
    let chunks = support::chunk_files(root.path());
    assert_eq!(chunks.len(), 4 + 3);
    store.remove("a").unwrap();
    store.remove("b").unwrap();
    assert_eq!(store.collect().unwrap().chunks, 2);
    assert_eq!(store.images().unwrap()[0].state.as_ref().unwrap().shared, 0);
    assert!(store.verify("c", &|_, _| {}).unwrap().is_sound());
    store.remove("c").unwrap();
    let collected = store.collect().unwrap();
    assert_eq!((collected.chunks, collected.kept), (5, 0));
    assert!(support::chunk_files(root.path()).is_empty());
}

#[test]
fn what_a_commit_returns_is_what_is_read() {
    let (_root, store) = store();
    for name in ["a", "b"] {
        let draft = store.begin(name).unwrap();
        draft.put(PartKind::GpuBuffer, "w", json!({ "address": 4096 }), &noise(5, 5 << 20)).unwrap();
        draft.put(PartKind::WorkerState, "text", Value::Null, &b"state ".repeat(50_000)).unwrap();
        draft.manifest().program.argv = vec!["p".to_string()];
        let made = draft.commit().unwrap();
        assert_eq!(made.manifest(), store.image(name).unwrap().manifest());
        // It is held from the beginning.
        assert!(matches!(store.remove(name), Err(Error::ImageInUse { .. })));
        assert!(store.verify(name, &|_, _| {}).unwrap().is_sound());
    }
}

#[test]
fn raw_chunks_are_the_contents_and_nothing_else() {
    let (_root, store) = store();
    let data = noise(9, 3 << 20);
    let draft = store.begin("raw").unwrap();
    draft.put(PartKind::GpuBuffer, "w", Value::Null, &data).unwrap();
    let image = draft.commit().unwrap();
    let part = image.part(PartKind::GpuBuffer, "w").unwrap();
    let mut joined = Vec::new();
    for chunk in &part.chunks {
        assert_eq!(chunk.encoding, Encoding::Raw);
        joined.extend(fs::read(image.chunk_path(chunk).unwrap()).unwrap());
    }
    assert_eq!(joined, data);
}

#[test]
fn nobody_else_can_read_it() {
    let (root, store) = store();
    let draft = store.begin("private").unwrap();
    let file = root.path().join("f");
    fs::write(&file, b"secret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    draft.take_file(PartKind::CpuFile, "f", &file).unwrap();
    draft.put(PartKind::Pinned, "p", Value::Null, &noise(2, 9000)).unwrap();
    draft.commit().unwrap();
    support::walk(&root.path().join("store"), &mut |path| {
        let found = fs::metadata(path).unwrap();
        let mode = found.permissions().mode() & 0o777;
        assert_eq!(mode, if found.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    });
}

#[test]
fn a_program_may_write_into_the_draft_itself() {
    let (_root, store) = store();
    let draft = store.begin("in place").unwrap();
    let directory = draft.directory(&PartKind::CpuFile).unwrap();
    fs::write(directory.join("pages-1.img"), noise(1, 100_000)).unwrap();
    fs::write(directory.join("dump.log"), b"not taken").unwrap();
    fs::write(draft.path().join("core"), b"nor this").unwrap();
    draft.take_file(PartKind::CpuFile, "pages-1.img", &directory.join("pages-1.img")).unwrap();
    let image = draft.commit().unwrap();
    assert_eq!(fs::read(image.path().join("cpu/pages-1.img")).unwrap(), noise(1, 100_000));
    assert!(!image.path().join("cpu/dump.log").exists() && !image.path().join("core").exists());
    assert!(store.verify("in place", &|_, _| {}).unwrap().is_sound());
}

#[test]
fn a_file_is_taken_from_another_file_system() {
    let (_root, store) = store();
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = elsewhere.path().join("pages");
    let mut data = noise(1, 5 << 20);
    data[1 << 20..3 << 20].fill(0);
    data[4 << 20..].fill(0);
    fs::write(&path, &data).unwrap();
    let draft = store.begin("far").unwrap();
    draft.take_file(PartKind::CpuFile, "pages", &path).unwrap();
    let image = draft.commit().unwrap();
    assert!(!path.exists());
    let kept = image.path().join("cpu/pages");
    assert!(fs::read(&kept).unwrap() == data);
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(store.verify("far", &|_, _| {}).unwrap().is_sound());
}

#[test]
fn a_worker_adds_parts_by_path_and_message() {
    let (_root, store) = store();
    let draft = store.begin("two processes").unwrap();
    let worker = Staging::open(draft.path()).unwrap();
    let data = noise(4, 5_000_000);
    let part = worker.put(PartKind::GpuBuffer, "b0", json!({"size": 5}), &data).unwrap();
    let message = serde_json::to_string(&vec![part]).unwrap();
    draft.adopt(serde_json::from_str::<Vec<Part>>(&message).unwrap()).unwrap();
    let image = draft.commit().unwrap();
    let seen = Image::open(image.path()).unwrap();
    assert_eq!(contents(&seen, seen.part(PartKind::GpuBuffer, "b0").unwrap()), data);
}

#[test]
fn a_part_that_was_not_written_is_not_adopted() {
    let (_root, store) = store();
    let (one, other) = (store.begin("one").unwrap(), store.begin("other").unwrap());
    let part =
        Staging::open(one.path()).unwrap().put(PartKind::Pinned, "p", Value::Null, &noise(1, 100)).unwrap();
    let error = other.adopt(vec![part]).unwrap_err();
    assert!(matches!(error, Error::BadPart { .. }), "{error}");
}

#[test]
fn names_are_free_until_committed() {
    let (_root, store) = store();
    let first = store.begin("n").unwrap();
    let second = store.begin("n").unwrap();
    first.commit().unwrap();
    assert!(matches!(second.commit(), Err(Error::NameInUse { .. })));
    assert!(matches!(store.begin("n"), Err(Error::NameInUse { .. })));
    store.remove("n").unwrap();
    store.begin("n").unwrap().commit().unwrap();
}

#[test]
fn an_image_is_removed_by_who_made_it_and_not_another_of_its_name() {
    let (_root, store) = store();
    let first = store.begin("n").unwrap().commit().unwrap().manifest().id.clone();
    store.remove("n").unwrap();
    let second = store.begin("n").unwrap().commit().unwrap().manifest().id.clone();
    assert!(matches!(store.remove_made("n", &first), Err(Error::NoImage { .. })));
    assert_eq!(store.image("n").unwrap().manifest().id, second);
    store.remove_made("n", &second).unwrap();
    assert!(store.image("n").is_err());
}

#[test]
fn hostile_names_stay_inside() {
    let (root, store) = store();
    let names =
        ["..", ".", "/etc/passwd", "../../../x", "$(reboot)", "a b;c|d\n", "é\u{202e}x", "-rf", "%2F"];
    let long = "長".repeat(2000);
    for name in names.into_iter().chain([long.as_str()]) {
        let draft = store.begin(name).unwrap();
        draft.put(PartKind::Other(name.into()), name, Value::Null, b"x").unwrap();
        let file = root.path().join("f");
        fs::write(&file, b"kept").unwrap();
        draft.take_file(PartKind::CpuFile, name, &file).unwrap();
        draft.commit().unwrap();
    }
    let listed: Vec<String> = store.images().unwrap().into_iter().map(|summary| summary.name).collect();
    assert_eq!(listed.len(), names.len() + 1);
    for name in names.into_iter().chain([long.as_str()]) {
        assert!(listed.iter().any(|listed| listed == name));
        assert_eq!(store.image(name).unwrap().manifest().name, name);
        store.remove(name).unwrap();
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    assert!(matches!(store.image("gone"), Err(Error::NoImage { .. })));
    assert!(matches!(store.remove("gone"), Err(Error::NoImage { .. })));
    assert!(matches!(store.begin(""), Err(Error::BadName { .. })));
}

#[test]
fn one_name_for_two_parts_is_refused() {
    let (_root, store) = store();
    let draft = store.begin("twice").unwrap();
    draft.put(PartKind::Pinned, "p", Value::Null, b"1").unwrap();
    draft.put(PartKind::Pinned, "p", Value::Null, b"2").unwrap();
    assert!(matches!(draft.commit(), Err(Error::PartExists { .. })));
    assert!(store.images().unwrap().is_empty());
}

#[test]
fn ranges_beyond_a_part_are_refused() {
    let (_root, store) = store();
    let draft = store.begin("r").unwrap();
    draft.put(PartKind::Pinned, "p", Value::Null, b"0123456789").unwrap();
    let image = draft.commit().unwrap();
    let part = image.part(PartKind::Pinned, "p").unwrap();
    assert!(matches!(image.read_part(part, 5, &mut [0; 6]), Err(Error::OutOfRange { .. })));
    assert!(matches!(image.read_part(part, u64::MAX, &mut [0; 6]), Err(Error::OutOfRange { .. })));
    let mut middle = [0; 4];
    image.read_part(part, 3, &mut middle).unwrap();
    assert_eq!(&middle, b"3456");
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("thesis.tex"), b"...").unwrap();
    let error = Store::open(root.path()).unwrap_err();
    assert!(matches!(error, Error::BadStore { .. }), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    fs::remove_file(root.path().join("thesis.tex")).unwrap();
    Store::open(root.path()).unwrap();
    fs::write(root.path().join("format"), b"rekindle store 2\n").unwrap();
    assert!(Store::open(Path::new(root.path())).unwrap_err().to_string().contains("store 2"));
}

/// Where pieces end: in chunks of 2 MiB, so that some fill a chunk, some meet in one.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(
        prop_oneof![0..TOTAL, (0usize..4).prop_map(|n| n << 21), (0usize..4).prop_map(|n| (n << 21) + 1)],
        0..12,
    )
}

const TOTAL: usize = (7 << 20) + 123;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pieces_in_any_order_and_from_many_threads(
        cuts in cuts(), skip in any::<u16>(), turn in any::<usize>(), seed in any::<u8>(),
    ) {
        let (_root, store) = store();
        let mut expected = noise(seed, TOTAL);
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < TOTAL).chain([0, TOTAL]).collect();
        cuts.sort_unstable();
        let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let count = pieces.len();
        pieces.rotate_left(turn % count);
        let mut kept = Vec::new();
        for (at, (start, end)) in pieces.into_iter().enumerate() {
            if skip >> (at % 16) & 1 == 1 {
                expected[start..end].fill(0);
            } else {
                kept.push((start, end));
            }
        }
        let draft = store.begin("pieces").unwrap();
        let writer = draft.part(PartKind::GpuBuffer, "b", Value::Null, TOTAL as u64).unwrap();
        std::thread::scope(|scope| {
            for half in kept.chunks(kept.len() / 2 + 1) {
                let (writer, expected) = (&writer, &expected);
                scope.spawn(move || {
                    for (start, end) in half {
                        writer.write_at(*start as u64, &expected[*start..*end]).unwrap();
                    }
                });
            }
        });
        if let Some((start, end)) = kept.iter().find(|(start, end)| end > start) {
            let again = writer.write_at(*start as u64, &expected[*start..*end]);
            prop_assert!(again.is_err());
        }
        writer.finish().unwrap();
        let image = draft.commit().unwrap();
        prop_assert!(contents(&image, image.part(PartKind::GpuBuffer, "b").unwrap()) == expected);
    }

    #[test]
    fn any_range_reads_as_written(seed in any::<u8>(), offset in 0..TOTAL, length in 0..TOTAL) {
        let (_root, store) = store();
        let mut data = noise(seed, TOTAL);
        data[2 << 20..5 << 20].fill(0);
        let draft = store.begin("ranges").unwrap();
        draft.put(PartKind::GpuBuffer, "b", Value::Null, &data).unwrap();
        let image = draft.commit().unwrap();
        let end = (offset + length).min(TOTAL);
        let mut read = vec![7; end - offset];
        image.read_part(image.part(PartKind::GpuBuffer, "b").unwrap(), offset as u64, &mut read).unwrap();
        prop_assert!(read == data[offset..end]);
    }
}
