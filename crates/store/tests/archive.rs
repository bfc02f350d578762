//! Images as one file: what comes back is the same, and what is not as it should be leaves nothing.

mod support;

use std::fs::{self, File};
use std::path::Path;

use rekindle_store::{Error, PartKind, Store};
use serde_json::Value;
use support::{contents, noise, store};

/// An image with parts of every kind of storage.
fn make(store: &Store, root: &Path, name: &str) {
    let draft = store.begin(name).unwrap();
    let text = "compresses well ".repeat(100_000);
    draft.put(PartKind::GpuBuffer, "noise", Value::Null, &noise(1, 5 << 20)).unwrap();
    draft.put(PartKind::GpuBuffer, "again", Value::Null, &noise(1, 5 << 20)).unwrap();
    draft.put(PartKind::GpuBuffer, "text", Value::Null, text.as_bytes()).unwrap();
    draft.put(PartKind::Pinned, "zeros", Value::Null, &vec![0; 3 << 20]).unwrap();
    let file = root.join("core");
    fs::write(&file, noise(2, 700_001)).unwrap();
    draft.take_file(PartKind::CpuFile, "../core of x", &file).unwrap();
    let pages = root.join("pages");
    let sparse = File::create(&pages).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(3, 1 << 20), 4 << 20).unwrap();
    sparse.set_len(64 << 20).unwrap();
    draft.take_pages(PartKind::CpuPages, "anon", &pages, 16 << 20, &Default::default()).unwrap();
    draft.manifest().program.argv = vec!["python".to_string()];
    draft.commit().unwrap();
}

fn exported(store: &Store, name: &str) -> Vec<u8> {
    let mut archive = Vec::new();
    store.export(name, &mut archive, &|_, _| {}).unwrap();
    archive
}

fn import(store: &Store, archive: &[u8], name: Option<&str>) -> Result<(), Error> {
    store.import(archive, name, &|_| None, &|_, _| {}).map(|_| ())
}

fn assert_same(a: (&Store, &str), b: (&Store, &str)) {
    let (a, b) = (a.0.image(a.1).unwrap(), b.0.image(b.1).unwrap());
    assert_eq!(a.manifest().parts.len(), b.manifest().parts.len());
    assert_eq!(a.manifest().program, b.manifest().program);
    assert_eq!(a.manifest().sizes, b.manifest().sizes);
    assert_ne!(a.manifest().id, b.manifest().id);
    for (part, other) in a.manifest().parts.iter().zip(&b.manifest().parts) {
        assert_eq!((&part.name, part.bytes, part.tail), (&other.name, other.bytes, other.tail));
        assert!(contents(&a, part) == contents(&b, other), "{}", part.name);
    }
}

/// Nothing is left but the images of these names.
fn assert_only(store: &Store, root: &Path, names: &[&str]) {
    let found: Vec<_> = store.images().unwrap().into_iter().map(|image| image.name).collect();
    assert_eq!(found, names);
    assert_eq!(fs::read_dir(root.join("store/staging")).unwrap().count(), 0);
}

#[test]
fn an_image_comes_back_in_another_store_and_under_another_name() {
    let ((root, first), (other_root, second)) = (store(), store());
    make(&first, root.path(), "image");
    let archive = exported(&first, "image");
    // A buffer that is there twice is there once.
    assert!(archive.len() < 8 << 20, "{}", archive.len());
    import(&second, &archive, None).unwrap();
    import(&second, &archive, Some("../other name")).unwrap();
    for name in ["image", "../other name"] {
        assert_same((&first, "image"), (&second, name));
        assert!(second.verify(name, &|_, _| {}).unwrap().is_sound());
    }
    // What it has in common is there once; and a page file is still glanced at, and not read whole.
    let image = second.image("image").unwrap();
    let part = image.part(PartKind::CpuPages, "anon").unwrap();
    let place = image.file_path(part).unwrap();
    let found = fs::metadata(&place).unwrap();
    assert_eq!(part.modified_ns, Some(rekindle_store::modified_ns(&found)));
    assert!(std::os::unix::fs::MetadataExt::blocks(&found) * 512 < 4 << 20, "it has holes");
    assert!(matches!(import(&second, &archive, None), Err(Error::NameInUse { .. })));
    drop(image);
    second.remove("image").unwrap();
    second.collect().unwrap();
    assert_same((&first, "image"), (&second, "../other name"));
    assert_only(&second, other_root.path(), &["../other name"]);
}

#[test]
fn an_image_with_two_names_is_there_until_both_are_removed() {
    let (root, store) = store();
    make(&store, root.path(), "one");
    store.tag("one", "two").unwrap();
    assert_same((&store, "one"), (&store, "two"));
    assert!(matches!(store.tag("one", "two"), Err(Error::NameInUse { .. })));
    assert!(matches!(store.tag("none", "three"), Err(Error::NoImage { .. })));
    store.remove("one").unwrap();
    store.collect().unwrap();
    assert!(store.verify("two", &|_, _| {}).unwrap().is_sound());
    assert_only(&store, root.path(), &["two"]);
}

#[test]
fn what_was_cut_or_changed_is_refused_and_leaves_nothing() {
    let ((root, first), (other_root, second)) = (store(), store());
    make(&first, root.path(), "image");
    let archive = exported(&first, "image");
    let whole = archive.len() - 1024;
    for length in [0, 100, 511, 512, 5_000, archive.len() / 3, archive.len() / 2, whole - 512] {
        let error = import(&second, &archive[..length], None).unwrap_err();
        assert!(matches!(error, Error::BadArchive { .. }), "{length}: {error}");
        assert_only(&second, other_root.path(), &[]);
    }
    // Any byte of the entries, but for those that fill blocks up or that nobody looks at.
    for at in (0..whole).step_by(whole / 60) {
        let mut changed = archive.clone();
        changed[at] ^= 0x10;
        match import(&second, &changed, None) {
            Err(Error::BadArchive { .. }) => {}
            Err(error) => panic!("{at}: {error}"),
            Ok(()) => {
                assert_same((&first, "image"), (&second, "image"));
                second.remove("image").unwrap();
            }
        }
        assert_only(&second, other_root.path(), &[]);
    }
}

/// The archive with its entries changed.
fn rebuilt(archive: &[u8], mut change: impl FnMut(usize, &mut tar::Header, &mut Vec<u8>) -> bool) -> Vec<u8> {
    let mut from = tar::Archive::new(archive);
    let mut to = tar::Builder::new(Vec::new());
    for (at, entry) in from.entries().unwrap().enumerate() {
        let mut entry = entry.unwrap();
        let (mut header, mut bytes) = (entry.header().clone(), Vec::new());
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        if change(at, &mut header, &mut bytes) {
            header.set_cksum();
            to.append(&header, &*bytes).unwrap();
        }
    }
    to.into_inner().unwrap()
}

fn rename(header: &mut tar::Header, name: &[u8]) {
    let place = &mut header.as_old_mut().name;
    place.fill(0);
    place[..name.len()].copy_from_slice(name);
}

#[test]
fn entries_that_are_not_due_are_refused_whatever_they_are() {
    let ((root, first), (other_root, second)) = (store(), store());
    make(&first, root.path(), "image");
    let archive = exported(&first, "image");
    let count = tar::Archive::new(&*archive).entries().unwrap().count();
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("where \"manifest.json\" is due", rebuilt(&archive, |at, _, _| at != 0)),
        ("is due", rebuilt(&archive, |at, _, _| at != 3)),
        ("is due", rebuilt(&archive, |at, _, _| at != count - 1)),
        (
            "\"../../../etc/passwd\"",
            rebuilt(&archive, |at, header, _| {
                if at == 2 {
                    rename(header, b"../../../etc/passwd");
                }
                true
            }),
        ),
        (
            "\"/etc/passwd\"",
            rebuilt(&archive, |at, header, _| {
                if at == 1 {
                    rename(header, b"/etc/passwd");
                }
                true
            }),
        ),
        (
            "no regular file",
            rebuilt(&archive, |at, header, bytes| {
                if at == 1 {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_link_name("/etc/passwd").unwrap();
                    header.set_size(0);
                    bytes.clear();
                }
                true
            }),
        ),
        (
            "no regular file",
            rebuilt(&archive, |at, header, _| {
                if at == 1 {
                    header.set_entry_type(tar::EntryType::GNULongName);
                }
                true
            }),
        ),
        (
            "bytes, and",
            rebuilt(&archive, |at, header, bytes| {
                if at == 1 {
                    bytes.push(0);
                    header.set_size(bytes.len() as u64);
                }
                true
            }),
        ),
        (
            "hash",
            rebuilt(&archive, |at, _, bytes| {
                if at == 1 {
                    bytes[0] ^= 1;
                }
                true
            }),
        ),
        (
            "at most",
            rebuilt(&archive, |at, header, _| {
                if at == 0 {
                    header.set_size(1 << 40);
                }
                true
            }),
        ),
    ];
    for (expected, archive) in hostile {
        let error = import(&second, &archive, None).unwrap_err();
        assert!(matches!(error, Error::BadArchive { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert_only(&second, other_root.path(), &[]);
    }
    let mut more = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(&*archive).entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header().clone();
        more.append(&header, entry).unwrap();
    }
    let mut header = tar::Header::new_ustar();
    header.set_size(1);
    more.append_data(&mut header, "more", &b"x"[..]).unwrap();
    let error = import(&second, &more.into_inner().unwrap(), None).unwrap_err();
    assert!(error.to_string().contains("\"more\" where its end is due"), "{error}");
    assert_only(&second, other_root.path(), &[]);
    assert!(import(&second, b"no archive at all", None).is_err());
    let unsound = second.import(
        &*archive,
        None,
        &|directory| {
            assert!(directory.join("cpu").is_dir() && directory.join("pages").is_dir());
            Some("it is unsound".to_string())
        },
        &|_, _| {},
    );
    assert!(unsound.unwrap_err().to_string().contains("unsound"));
    assert_only(&second, other_root.path(), &[]);
}

#[test]
fn a_damaged_image_is_not_exported() {
    let (root, store) = store();
    make(&store, root.path(), "image");
    let chunks = support::chunk_files(root.path());
    let mut bytes = fs::read(&chunks[0]).unwrap();
    bytes[0] ^= 1;
    fs::write(&chunks[0], bytes).unwrap();
    let error = store.export("image", Vec::new(), &|_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}
