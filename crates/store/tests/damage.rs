//! Damage of every kind is noticed, said in one sentence, and can be mended by checkpointing again.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rekindle_store::{Encoding, Error, HashedChunks, Image, PartKind, Store};
use serde_json::Value;
use support::{chunk_files, files, noise};
use tempfile::TempDir;

/// A store with one image that has chunks of each encoding and a file kept whole, holes in it.
fn sample() -> (TempDir, Store) {
    let (root, store) = support::store();
    write(&store, root.path(), "job");
    (root, store)
}

fn write(store: &Store, root: &Path, name: &str) {
    let mut kept = noise(3, 400_000);
    kept[70_000..280_000].fill(0);
    let file = root.join("kept.img");
    fs::write(&file, kept).unwrap();
    let draft = store.begin(name).unwrap();
    draft.put(PartKind::GpuBuffer, "raw", Value::Null, &noise(1, 5000)).unwrap();
    draft.put(PartKind::WorkerState, "zstd", Value::Null, &b"compress me ".repeat(1000)).unwrap();
    draft.put(PartKind::Pinned, "zero", Value::Null, &[0; 10_000]).unwrap();
    draft.take_file(PartKind::CpuFile, "kept.img", &file).unwrap();
    let image = draft.commit().unwrap();
    let encodings: Vec<Encoding> =
        image.manifest().parts.iter().flat_map(|part| &part.chunks).map(|chunk| chunk.encoding).collect();
    for encoding in [Encoding::Raw, Encoding::Zstd, Encoding::Zero] {
        assert!(encodings.contains(&encoding));
    }
}

/// Everything that makes the image up.
fn places(root: &Path) -> Vec<PathBuf> {
    let mut places = chunk_files(root);
    places.extend(files(&root.join("store/images")));
    assert_eq!(places.len(), 4);
    places
}

/// Reads all parts; the first error.
fn read_all(image: &Image) -> Result<(), Error> {
    image.manifest().parts.iter().try_for_each(|part| {
        image.read_part_parallel(part, &mut vec![0; part.bytes as usize], 2)?;
        image.check_parts(&[part], 2)
    })
}

/// How reading fails, and what verifying says; both must notice.
fn noticed(store: &Store) -> (String, Vec<String>) {
    let read = store.image("job").and_then(|image| read_all(&image)).unwrap_err().to_string();
    let verified = match store.verify("job", &|_, _| {}) {
        Ok(report) => report.problems,
        Err(error) => vec![error.to_string()],
    };
    assert!(!verified.is_empty());
    for sentence in verified.iter().chain([&read]) {
        assert!(!sentence.contains('\n') && sentence.len() < 700, "{sentence}");
    }
    (read, verified)
}

/// Undoes what was done to a file, also where verifying set it aside.
fn mend(path: &Path, contents: &[u8]) {
    let mut aside = path.to_path_buf().into_os_string();
    aside.push(".damaged");
    let _ = fs::remove_file(aside);
    fs::write(path, contents).unwrap();
}

/// A page file is only glanced at before it is mapped; the glance must see that somebody wrote to it.
#[test]
fn a_page_file_that_was_changed_is_seen_at_a_glance() {
    let (root, store) = support::store();
    let file = root.path().join("pages");
    fs::write(&file, noise(5, 400_000)).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_len(400_000 + (1u64 << 40)).unwrap();
    let draft = store.begin("job").unwrap();
    draft.take_pages(PartKind::CpuPages, "anon-1", &file, 400_000, &HashedChunks::new()).unwrap();
    let image = draft.commit().unwrap();
    let part = image.part(PartKind::CpuPages, "anon-1").unwrap();
    assert_eq!((part.bytes, part.tail), (400_000, 1 << 40));
    let place = image.file_path(part).unwrap();
    image.check_glance(&[part], 2).unwrap();
    assert!(store.verify("job", &|_, _| {}).unwrap().is_sound());

    let open = || fs::File::options().write(true).open(&place).unwrap();
    let time = fs::metadata(&place).unwrap().modified().unwrap();
    let mut byte = [0];
    fs::File::open(&place).unwrap().read_exact_at(&mut byte, 200_000).unwrap();
    open().write_all_at(&[byte[0] ^ 1], 200_000).unwrap();
    assert!(matches!(image.check_glance(&[part], 2), Err(Error::Damaged { .. })));
    assert!(!store.verify("job", &|_, _| {}).unwrap().is_sound());
    open().write_all_at(&byte, 200_000).unwrap();
    image.check_glance(&[part], 2).unwrap();
    // In the block that the contents end in, and far behind it.
    open().write_all_at(b"x", 400_100).unwrap();
    assert!(image.check_glance(&[part], 2).unwrap_err().to_string().contains("beyond"));
    open().write_all_at(&[0], 400_100).unwrap();
    image.check_glance(&[part], 2).unwrap();
    open().write_all_at(b"x", 1 << 30).unwrap();
    assert!(image.check_glance(&[part], 2).unwrap_err().to_string().contains("beyond"));
    assert!(store.verify("job", &|_, _| {}).unwrap().problems[0].contains("beyond"));
    open().set_len(400_000).unwrap();
    open().set_modified(time).unwrap();
    assert!(image.check_glance(&[part], 2).unwrap_err().to_string().contains("bytes long"));
}

/// What a page file takes is told by its pages, however long its chunks are.
#[test]
fn the_holes_of_a_page_file_take_no_room() {
    let (root, store) = support::store();
    let path = root.path().join("pages");
    let file = fs::File::create_new(&path).unwrap();
    for page in [0, 1, 300, 900] {
        file.write_all_at(&[7; 4096], page * 4096).unwrap();
    }
    file.write_all_at(&[0; 4096], 500 * 4096).unwrap();
    file.set_len(1000 * 4096).unwrap();
    drop(file);
    let draft = store.begin("base").unwrap();
    draft.take_pages(PartKind::CpuPages, "anon-1", &path, 1000 * 4096, &HashedChunks::new()).unwrap();
    let base = draft.commit().unwrap();
    let part = base.part(PartKind::CpuPages, "anon-1").unwrap().clone();
    assert_eq!((part.stored(), base.manifest().sizes.stored), (4 * 4096, 4 * 4096));
    assert!(store.verify("base", &|_, _| {}).unwrap().is_sound());

    let place = base.file_path(&part).unwrap();
    let draft = store.begin("other").unwrap();
    draft.share_pages(rekindle_store::Part { filled: Some(4096), ..part.clone() }, &place).unwrap();
    draft.commit().unwrap();
    let problems = store.verify("other", &|_, _| {}).unwrap().problems;
    assert!(matches!(&problems[..], [one] if one.contains("16384") && one.contains("4096")), "{problems:?}");
    let draft = store.begin("more than it has").unwrap();
    let more = rekindle_store::Part { filled: Some(5000 * 4096), ..part };
    assert!(matches!(draft.share_pages(more, &place), Err(Error::BadPart { .. })));
}

/// Two images with one page file: each is whole without the other, and what is wrong with it is wrong with both.
#[test]
fn a_page_file_that_two_images_have_is_told_of_by_its_origin() {
    let (root, store) = support::store();
    let file = root.path().join("pages");
    fs::write(&file, noise(5, 400_000)).unwrap();
    let draft = store.begin("base").unwrap();
    draft.take_pages(PartKind::CpuPages, "anon-1", &file, 400_000, &HashedChunks::new()).unwrap();
    let base = draft.commit().unwrap();
    let part = base.part(PartKind::CpuPages, "anon-1").unwrap().clone();
    let place = base.file_path(&part).unwrap();
    for name in ["one", "two"] {
        let draft = store.begin(name).unwrap();
        draft.share_pages(part.clone().passed_on(&base.manifest().origin()), &place).unwrap();
        draft.commit().unwrap();
    }
    drop(base);
    let shared =
        || store.images().unwrap().into_iter().map(|image| image.state.unwrap().shared).collect::<Vec<_>>();
    assert_eq!(shared(), [400_000; 3]);
    store.remove("base").unwrap();
    assert_eq!(shared(), [400_000; 2]);
    let freed = |name: &str| store.bytes_of_its_own(&store.image(name).unwrap()).unwrap();
    assert_eq!(freed("two"), 0);
    store.remove("two").unwrap();
    assert_eq!(shared(), [0]);
    assert_eq!(freed("one"), 400_000);
    assert!(store.verify("one", &|_, _| {}).unwrap().is_sound());

    let image = store.image("one").unwrap();
    let part = image.part(PartKind::CpuPages, "anon-1").unwrap();
    assert_eq!(part.origin().unwrap().image, "base");
    let place = image.file_path(part).unwrap();
    fs::File::options().write(true).open(&place).unwrap().write_all_at(b"?", 7).unwrap();
    let problems = store.verify("one", &|_, _| {}).unwrap().problems;
    assert!(problems[0].contains("\"base\""), "{problems:?}");
    let refused = store.begin("three").unwrap().share_pages(part.clone(), &place).unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
}

/// A frame of zstd's has bits that mean nothing.
fn is_the_same_frame(one: &[u8], other: &[u8]) -> bool {
    let contents = |frame| zstd::decode_all(frame).ok();
    contents(one).is_some_and(|found| contents(other) == Some(found))
}

#[test]
fn a_bit_that_means_nothing_changes_no_contents() {
    let (root, store) = sample();
    let frames =
        places(root.path()).into_iter().filter(|place| place.extension().is_some_and(|of| of == "zst"));
    let [place] = &frames.collect::<Vec<_>>()[..] else { panic!("there is one frame") };
    let whole = fs::read(place).unwrap();
    // "Unused_bit" of the frame header's descriptor (RFC 8878, 3.1.1.1.1).
    let mut changed = whole.clone();
    changed[4] ^= 0x10;
    assert!(is_the_same_frame(&changed, &whole));
    fs::write(place, &changed).unwrap();
    read_all(&store.image("job").unwrap()).unwrap();
}

#[test]
fn a_flipped_byte_anywhere_is_noticed() {
    let (root, store) = sample();
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    let places = places(root.path());
    let whole: Vec<Vec<u8>> = places.iter().map(|path| fs::read(path).unwrap()).collect();
    proptest!(config, |(which in 0..places.len(), at in any::<prop::sample::Index>(), flip in 1u8..)| {
        let mut changed = whole[which].clone();
        let at = at.index(changed.len());
        changed[at] ^= flip;
        fs::write(&places[which], &changed).unwrap();
        match is_the_same_frame(&changed, &whole[which]) {
            true => read_all(&store.image("job").unwrap()).unwrap(),
            false => drop(noticed(&store)),
        }
        mend(&places[which], &whole[which]);
    });
    assert!(store.verify("job", &|_, _| {}).unwrap().is_sound());
}

#[test]
fn a_changed_length_is_noticed() {
    let (root, store) = sample();
    for place in places(root.path()) {
        let whole = fs::read(&place).unwrap();
        let mut longer = whole.clone();
        longer.push(0);
        for changed in
            [&whole[..0], &whole[..1], &whole[..whole.len() / 2], &whole[..whole.len() - 1], &longer]
        {
            fs::write(&place, changed).unwrap();
            noticed(&store);
            mend(&place, &whole);
        }
    }
    assert!(store.verify("job", &|_, _| {}).unwrap().is_sound());
}

#[test]
fn a_missing_file_is_noticed() {
    let (root, store) = sample();
    for place in places(root.path()) {
        let whole = fs::read(&place).unwrap();
        fs::remove_file(&place).unwrap();
        let (read, _) = noticed(&store);
        assert!(read.contains("missing") || read.contains("no manifest.json"), "{read}");
        mend(&place, &whole);
    }
}

#[test]
fn a_file_that_does_not_belong_is_noticed() {
    let (_root, store) = sample();
    let path = store.image("job").unwrap().path().join("cpu/stray");
    fs::write(&path, b"?").unwrap();
    let report = store.verify("job", &|_, _| {}).unwrap();
    assert!(report.problems[0].contains("not in the manifest"), "{report:?}");
}

#[test]
fn a_manifest_that_is_not_one_says_so() {
    let (root, store) = sample();
    let manifest = files(&root.path().join("store/images")).pop().unwrap();
    assert!(manifest.ends_with("manifest.json"));
    let whole = fs::read_to_string(&manifest).unwrap();
    for (text, expected) in [
        ("garbage".to_string(), "does not begin as a manifest does"),
        (String::new(), "does not begin as a manifest does"),
        (whole.replacen("\"format\": 3", "\"format\": 5", 1), "image format 5, this version reads up to 4"),
        (whole.replacen("\"job\"", "\"jab\"", 1), "do not match its checksum"),
    ] {
        fs::write(&manifest, text).unwrap();
        let (read, _) = noticed(&store);
        assert!(read.contains(expected), "{read}");
        let listed = &store.images().unwrap()[0];
        assert_eq!(listed.name, "job");
        assert!(listed.state.as_ref().unwrap_err().contains(expected));
        let refused = store.collect().unwrap_err().to_string();
        assert!(refused.contains("nothing was collected"), "{refused}");
    }
    store.remove("job").unwrap();
    store.collect().unwrap();
    assert!(chunk_files(root.path()).is_empty());
}

#[test]
fn an_image_moved_to_another_name_is_not_that_image() {
    let (root, store) = sample();
    let images = root.path().join("store/images");
    fs::rename(images.join("job"), images.join("other")).unwrap();
    let error = store.image("other").unwrap_err().to_string();
    assert!(error.contains("\"job\"") && error.contains("\"other\""), "{error}");
}

#[test]
fn checkpointing_again_mends_what_verifying_set_aside() {
    let (root, store) = sample();
    for place in chunk_files(root.path()) {
        let mut contents = fs::read(&place).unwrap();
        contents[7] ^= 1;
        fs::write(&place, contents).unwrap();
    }
    let (_, problems) = noticed(&store);
    assert_eq!(problems.len(), 2, "{problems:?}");
    write(&store, root.path(), "again");
    for name in ["job", "again"] {
        assert!(store.verify(name, &|_, _| {}).unwrap().is_sound(), "{name}");
    }
    assert_eq!(store.collect().unwrap().chunks, 2);
}

#[test]
fn a_truncated_chunk_is_replaced_when_its_contents_come_again() {
    let (root, store) = sample();
    for place in chunk_files(root.path()) {
        let contents = fs::read(&place).unwrap();
        fs::write(&place, &contents[..if place.extension().is_some() { 0 } else { 100 }]).unwrap();
    }
    write(&store, root.path(), "again");
    for name in ["job", "again"] {
        assert!(store.verify(name, &|_, _| {}).unwrap().is_sound(), "{name}");
    }
}

#[test]
fn progress_reaches_its_end() {
    let (_root, store) = sample();
    let last = std::cell::Cell::new((0, 1));
    store.verify("job", &|done, total| last.set((done, total))).unwrap();
    let (done, total) = last.get();
    assert!(done == total && total > 400_000, "{done} of {total}");
}
