//! A store that nothing of waits for the disk: what it keeps comes back, and it never asks for durability.

mod support;

use std::io;
use std::path::Path;
use std::thread;

use rekindle_store::{Image, PartKind, Staging, Store};
use serde_json::{Value, json};
use support::{contents, noise};

/// Runs it in a thread, and in those that it starts, where `fsync` and `fdatasync` fail with `EIO`, as on a broken disk.
fn where_no_sync_works<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let syncs = [libc::SYS_fsync, libc::SYS_fdatasync];
            // The number of the system call is the first field of what the filter sees.
            let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
            for sync in syncs {
                let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
                filter.push(libc::sock_filter { jf: 1, ..statement(jump, sync as u32) });
                filter
                    .push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EIO as u32));
            }
            filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
            let program =
                libc::sock_fprog { len: u16::try_from(filter.len()).unwrap(), filter: filter.as_mut_ptr() };
            // SAFETY: both calls change this thread alone, and `program` and what it points to outlive the second.
            let done = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
            };
            assert!(done, "no filter of system calls can be set: {}", io::Error::last_os_error());
            work()
        });
        thread.join().unwrap()
    })
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf: 0, k }
}

/// A state as a worker writes it that another one goes on from: by two writers, of parts with chunks and files.
fn write(root: &Path) -> rekindle_store::Result<Image> {
    let store = Store::open_transient(root)?;
    let draft = store.begin("client-1-1")?;
    let staging = Staging::open(draft.path())?;
    let code = staging.put(PartKind::Module, "cubin", json!({"order": 3}), &noise(1, 70_000))?;
    let state = staging.put(PartKind::WorkerState, "state", Value::Null, &noise(2, 3 << 20))?;
    draft.adopt(vec![code, state])?;
    draft.commit()
}

fn check(image: &Image) {
    let (code, state) =
        (image.part(PartKind::Module, "cubin").unwrap(), image.part(PartKind::WorkerState, "state").unwrap());
    assert_eq!((contents(image, code), &code.attributes), (noise(1, 70_000), &json!({"order": 3})));
    assert_eq!(contents(image, state), noise(2, 3 << 20));
}

#[test]
fn a_state_comes_back_without_a_look_at_the_disk() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("store");
    where_no_sync_works(|| {
        let image = write(&path).unwrap();
        check(&image);
        // As whoever takes the place of a lost worker has it, and the daemon, which removes what is not needed any more.
        check(&Image::open(image.path()).unwrap());
        drop(image);
        let store = Store::open_transient(&path).unwrap();
        assert_eq!(store.names_with("client-1-").unwrap(), ["client-1-1"]);
        assert!(store.verify("client-1-1", &|_, _| {}).unwrap().is_sound());
        store.remove("client-1-1").unwrap();
        store.collect().unwrap();
        assert_eq!(support::files(&path.join("chunks")), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn one_that_is_to_last_asks_the_disk_where_a_transient_one_does_not() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("store");
    where_no_sync_works(|| {
        let error = Store::open(&path).unwrap_err();
        assert!(error.to_string().contains("sync"), "{error}");
        write(&path).unwrap();
        let store = Store::open_transient(&path).unwrap();
        store.remove("client-1-1").unwrap();
    });
    let store = Store::open(&path).unwrap();
    where_no_sync_works(|| {
        let draft = store.begin("lasts").unwrap();
        draft.put(PartKind::WorkerState, "state", Value::Null, &noise(2, 3 << 20)).unwrap();
        let error = draft.commit().unwrap_err();
        assert!(error.to_string().contains("sync"), "{error}");
    });
    assert!(store.images().unwrap().is_empty(), "nothing is there that is not on the disk");
}

#[test]
fn both_are_stores_alike_and_have_each_others_images() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("store");
    write(&path).unwrap();
    let store = Store::open(&path).unwrap();
    check(&store.image("client-1-1").unwrap());
    let draft = store.begin("lasts").unwrap();
    draft.put(PartKind::WorkerState, "state", Value::Null, &noise(2, 3 << 20)).unwrap();
    draft.commit().unwrap();
    let transient = Store::open_transient(&path).unwrap();
    let image = transient.image("lasts").unwrap();
    assert_eq!(contents(&image, image.part(PartKind::WorkerState, "state").unwrap()), noise(2, 3 << 20));
}
