//! Full disks and sudden deaths, in every phase.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rekindle_store::{Error, Faults, Image, PartKind, Result, Staging, Store};
use serde_json::Value;
use support::{chunk_files, noise, store};

/// A child has all locks of this process, those of other tests too, until it runs its own program: whoever is dead then
/// looks alive.
static CHILDREN: RwLock<()> = RwLock::new(());

/// No child is started meanwhile.
fn without_children() -> RwLockReadGuard<'static, ()> {
    CHILDREN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody else has locks meanwhile.
fn with_children() -> RwLockWriteGuard<'static, ()> {
    CHILDREN.write().unwrap_or_else(PoisonError::into_inner)
}

/// One checkpoint with every way of writing in it. Shares some of its contents with the image that
/// [`earlier`] makes.
fn checkpoint(store: &Store, scratch: &Path) -> Result<Image> {
    let file = scratch.join("pages.img");
    fs::write(&file, noise(11, 200_000)).unwrap();
    let draft = store.begin("victim")?;
    draft.put(PartKind::GpuBuffer, "shared", Value::Null, &noise(1, 3 << 20))?;
    draft.put(PartKind::GpuBuffer, "own", Value::Null, &noise(2, 3 << 20))?;
    draft.put_file(PartKind::CpuFile, "copied", &file)?;
    draft.put(PartKind::WorkerState, "text", Value::Null, &b"state ".repeat(50_000))?;
    let writer = draft.part(PartKind::Pinned, "pieces", Value::Null, 3 << 20)?;
    writer.write_at(100, &noise(3, 5000))?;
    writer.write_at(2 << 20, &noise(4, 1 << 20))?;
    writer.finish()?;
    let worker = Staging::open(draft.path())?;
    draft.adopt(vec![worker.put(PartKind::Module, "cubin", Value::Null, &noise(5, 70_000))?])?;
    draft.take_file(PartKind::CpuFile, "moved", &file)?;
    draft.commit()
}

fn earlier(store: &Store) {
    let draft = store.begin("earlier").unwrap();
    draft.put(PartKind::GpuBuffer, "shared", Value::Null, &noise(1, 3 << 20)).unwrap();
    draft.put(PartKind::GpuBuffer, "other", Value::Null, &noise(6, 1 << 20)).unwrap();
    draft.commit().unwrap();
}

fn sound(store: &Store, name: &str) {
    let report = store.verify(name, &|_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
}

fn staged(root: &Path) -> usize {
    fs::read_dir(root.join("store/staging")).unwrap().count()
}

#[test]
fn disk_full_in_every_phase_leaves_nothing() {
    let _alone = without_children();
    let (root, store) = store();
    earlier(&store);
    let before = chunk_files(root.path());
    let mut phases = 0;
    let mut budget = 0;
    loop {
        let faulty = Store::open_with(&root.path().join("store"), Faults::disk_full_after(budget)).unwrap();
        match checkpoint(&faulty, root.path()) {
            Ok(_) => break,
            Err(error) => {
                assert!(error.is_disk_full(), "with {budget} bytes: {error}");
                assert!(error.to_string().contains("free"));
            }
        }
        assert_eq!(store.images().unwrap().len(), 1, "with {budget} bytes");
        assert_eq!(staged(root.path()), 0, "with {budget} bytes");
        assert_eq!(chunk_files(root.path()), before, "with {budget} bytes");
        phases += 1;
        budget += 60_000;
    }
    assert!(phases > 50);
    sound(&store, "earlier");
    sound(&store, "victim");
}

#[test]
fn death_at_every_step_leaves_no_image_or_a_whole_one() {
    let _alone = without_children();
    let (root, store) = store();
    earlier(&store);
    let mut seen_whole = 0;
    for steps in 1.. {
        let mortal = Store::open_with(&root.path().join("store"), Faults::dead_after(steps));
        let Ok(mortal) = mortal else { continue };
        let survived = checkpoint(&mortal, root.path()).is_ok();
        drop(mortal);

        let next = Store::open(&root.path().join("store")).unwrap();
        assert_eq!(staged(root.path()), 0, "after {steps} steps");
        if next.images().unwrap().len() == 2 {
            sound(&next, "victim");
            next.remove("victim").unwrap();
            seen_whole += 1;
        } else {
            assert!(!survived, "after {steps} steps");
        }
        next.collect().unwrap();
        sound(&next, "earlier");
        assert_eq!(chunk_files(root.path()).len(), 3, "after {steps} steps");
        if survived {
            break;
        }
    }
    assert!(seen_whole >= 1);
}

#[test]
fn the_next_to_open_tells_what_was_abandoned() {
    let _alone = without_children();
    let (root, store) = store();
    let place = root.path().join("store");
    let mortal = Store::open_with(&place, Faults::dead_after(12)).unwrap();
    assert!(checkpoint(&mortal, root.path()).is_err());
    drop(mortal);
    let living = store.begin("under way").unwrap();
    let next = Store::open(&place).unwrap();
    assert_eq!(next.abandoned(), ["victim"]);
    living.commit().unwrap();
}

#[test]
fn death_while_removing_and_collecting() {
    let _alone = without_children();
    let (root, store) = store();
    let place = root.path().join("store");
    earlier(&store);
    for steps in 1.. {
        checkpoint(&store, root.path()).unwrap();
        let mortal = Store::open_with(&place, Faults::dead_after(steps));
        let survived =
            mortal.is_ok_and(|mortal| mortal.remove("victim").and_then(|()| mortal.collect()).is_ok());
        let next = Store::open(&place).unwrap();
        assert_eq!(staged(root.path()), 0);
        if next.images().unwrap().len() == 2 {
            sound(&next, "victim");
            next.remove("victim").unwrap();
        }
        sound(&next, "earlier");
        next.collect().unwrap();
        assert_eq!(chunk_files(root.path()).len(), 3);
        if survived {
            break;
        }
    }
}

/// Not a test of its own: what the next test runs in a process to be killed.
#[test]
fn writer_process() {
    let Ok(place) = std::env::var("STORE_TO_WRITE") else { return };
    let place = Path::new(&place);
    let store = Store::open(place).unwrap();
    let scratch = place.parent().unwrap();
    loop {
        checkpoint(&store, scratch).unwrap();
        store.remove("victim").unwrap();
        store.collect().unwrap();
    }
}

#[test]
fn killed_writers_are_swept() {
    let _alone = with_children();
    let (root, store) = store();
    earlier(&store);
    for round in 0..12u64 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer_process"])
            .env("STORE_TO_WRITE", root.path().join("store"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(40 + 13 * round));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let next = Store::open(&root.path().join("store")).unwrap();
        assert_eq!(staged(root.path()), 0);
        if next.images().unwrap().len() == 2 {
            sound(&next, "victim");
            next.remove("victim").unwrap();
        }
        next.collect().unwrap();
        sound(&next, "earlier");
        assert_eq!(chunk_files(root.path()).len(), 3);
    }
}

#[test]
fn a_real_full_disk_is_told_with_its_room() {
    let _alone = with_children();
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: mounting a small file system takes root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
        .arg(root.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        println!("skipped: cannot mount here");
        return;
    }
    let store = Store::open(&root.path().join("store")).unwrap();
    let draft = store.begin("big").unwrap();
    let error = draft.put(PartKind::GpuBuffer, "b", Value::Null, &noise(1, 20 << 20)).unwrap_err();
    let text = error.to_string();
    drop(draft);
    let (staged, chunks) = (staged(root.path()), chunk_files(root.path()).len());
    drop(store);
    Command::new("umount").arg(root.path()).status().unwrap();
    match error {
        Error::DiskFull { needed, free, .. } => assert!(needed == 2 << 20 && free < 2 << 20, "{text}"),
        other => panic!("{other}"),
    }
    assert_eq!((staged, chunks), (0, 0));
}
