//! Several users of one store at once. Each opens it for itself, as another process would.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rekindle_store::{ContentHash, Error, PartKind, Staging, Store};
use serde_json::Value;
use support::{chunk_files, noise, store};

#[test]
fn many_open_a_new_store() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("deep/store");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| Store::open(&place).unwrap());
        }
    });
}

#[test]
fn collecting_takes_nothing_from_images_in_the_making() {
    let (root, first) = store();
    let second = Store::open(&root.path().join("store")).unwrap();
    let shared = noise(1, 4 << 20);
    let draft = first.begin("old").unwrap();
    draft.put(PartKind::GpuBuffer, "b", Value::Null, &shared).unwrap();
    draft.commit().unwrap();

    let draft = first.begin("new").unwrap();
    draft.put(PartKind::GpuBuffer, "b", Value::Null, &shared).unwrap();
    draft.put(PartKind::GpuBuffer, "c", Value::Null, &noise(2, 1 << 20)).unwrap();
    second.remove("old").unwrap();
    assert_eq!(second.collect().unwrap().chunks, 2);
    assert!(chunk_files(root.path()).is_empty());
    draft.commit().unwrap();
    assert!(second.verify("new", &|_, _| {}).unwrap().is_sound());
}

#[test]
fn an_image_that_is_held_is_not_removed() {
    let (root, first) = store();
    first.begin("held").unwrap().commit().unwrap();
    let second = Store::open(&root.path().join("store")).unwrap();
    let image = first.image("held").unwrap();
    assert!(matches!(second.remove("held"), Err(Error::ImageInUse { .. })));
    drop(image);
    second.remove("held").unwrap();
}

#[test]
fn an_image_that_is_removed_while_it_is_opened_is_none() {
    let (root, first) = store();
    let second = Store::open(&root.path().join("store")).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let seen = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match second.image("n") {
                    Ok(_) | Err(Error::NoImage { .. }) => {}
                    Err(other) => return Some(other.to_string()),
                }
            }
            None
        });
        for _ in 0..300 {
            first.begin("n").unwrap().commit().unwrap();
            while matches!(first.remove("n"), Err(Error::ImageInUse { .. })) {}
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(seen.join().unwrap(), None);
    });
}

#[test]
fn a_worker_outliving_its_draft_is_told() {
    let (_root, store) = store();
    let draft = store.begin("given up").unwrap();
    let worker = Staging::open(draft.path()).unwrap();
    let path = draft.path().to_path_buf();
    drop(draft);
    assert!(worker.put(PartKind::GpuBuffer, "b", Value::Null, &noise(1, 9000)).is_err());
    assert!(matches!(Staging::open(&path), Err(Error::BadStore { .. })));
    assert!(!path.exists());
}

#[test]
fn what_was_written_for_a_draft_that_is_given_up_is_not_written_again() {
    let (root, store) = store();
    let (kept, dropped) = (noise(1, 4 << 20), noise(2, 2 << 20));
    let draft = store.begin("n").unwrap();
    let worker = Staging::open(draft.path()).unwrap();
    worker.put(PartKind::GpuBuffer, "b", Value::Null, &kept).unwrap();
    worker.put(PartKind::GpuBuffer, "c", Value::Null, &dropped).unwrap();
    let path = draft.path().to_path_buf();

    let draft = store.begin_again(draft).unwrap();
    assert!(!path.exists());
    assert!(worker.put(PartKind::GpuBuffer, "d", Value::Null, &noise(3, 9000)).is_err());
    let worker = Staging::open(draft.path()).unwrap();
    let part = worker.part(PartKind::GpuBuffer, "b", Value::Null, kept.len() as u64).unwrap();
    let size = part.chunk_bytes();
    for (number, chunk) in kept.chunks(size as usize).enumerate() {
        assert!(part.enter_known(number as u64 * size, ContentHash::of(chunk)).unwrap(), "{number}");
    }
    let other = worker.part(PartKind::GpuBuffer, "d", Value::Null, size).unwrap();
    assert!(!other.enter_known(0, ContentHash::of(&noise(4, size as usize))).unwrap());
    draft.adopt(vec![part.finish().unwrap()]).unwrap();
    draft.commit().unwrap();
    assert!(store.verify("n", &|_, _| {}).unwrap().is_sound());

    // Nothing is left of the rest.
    store.remove("n").unwrap();
    store.collect().unwrap();
    assert!(chunk_files(root.path()).is_empty());
    assert_eq!(root.path().join("store/staging").read_dir().unwrap().count(), 0);
}

#[test]
fn a_chunk_that_was_cut_short_is_written_again() {
    let (_root, store) = store();
    let draft = store.begin("n").unwrap();
    let data = noise(1, 2 << 20);
    let part =
        Staging::open(draft.path()).unwrap().put(PartKind::GpuBuffer, "b", Value::Null, &data).unwrap();
    let chunk = draft.path().join("chunks").read_dir().unwrap().next().unwrap().unwrap().path();
    std::fs::File::options().write(true).open(chunk).unwrap().set_len(5).unwrap();
    let draft = store.begin_again(draft).unwrap();
    let again =
        Staging::open(draft.path()).unwrap().put(PartKind::GpuBuffer, "b", Value::Null, &data).unwrap();
    assert_eq!(part.chunks, again.chunks);
    draft.adopt(vec![again]).unwrap();
    draft.commit().unwrap();
    assert!(store.verify("n", &|_, _| {}).unwrap().is_sound());
}

#[test]
fn everyone_at_once() {
    let (root, store) = store();
    let place = root.path().join("store");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4u8)
            .map(|who| {
                let place = &place;
                scope.spawn(move || {
                    let store = Store::open(place).unwrap();
                    for round in 0..12u8 {
                        let name = format!("{who}/{round}");
                        let draft = store.begin(&name).unwrap();
                        // Contents that others write, remove and collect at the same time.
                        for part in 0..4u8 {
                            let data = noise((round + part) % 6, 100_000);
                            draft.put(PartKind::Pinned, &part.to_string(), Value::Null, &data).unwrap();
                        }
                        draft.commit().unwrap();
                        assert!(store.verify(&name, &|_, _| {}).unwrap().is_sound(), "{name}");
                        if round % 3 != 0 {
                            store.remove(&name).unwrap();
                        }
                    }
                })
            })
            .collect();
        let (place, stop) = (&place, &stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let store = Store::open(place).unwrap();
                store.collect().unwrap();
                store.images().unwrap();
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    for summary in store.images().unwrap() {
        assert!(store.verify(&summary.name, &|_, _| {}).unwrap().is_sound(), "{}", summary.name);
    }
    assert_eq!(std::fs::read_dir(place.join("staging")).unwrap().count(), 0);
}
