//! Contents of images in pinned host memory and in GPU memory, and on the disk alone.

mod harness;

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Rekindle, wait};
use serde_json::Value;

const WEIGHTS: [&str; 3] =
    ["python3", "-u", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/weights.py")];
const MEGABYTE: u64 = 1 << 20;

/// A program with weights of its own, for each seed others, taken as an image and stopped.
fn image(rekindle: &Rekindle, name: &str, seed: &str) {
    image_of(rekindle, name, &[seed]);
}

fn image_of(rekindle: &Rekindle, name: &str, arguments: &[&str]) {
    rekindle.start(name, &[&WEIGHTS[..], arguments].concat());
    rekindle.goes_on(name);
    rekindle.ok(&["checkpoint", name, "--to", name, "--stop"]);
}

/// Restores an image, sees the program find its weights as they were, and ends it. Where its GPU memory came from.
fn restore(rekindle: &Rekindle, image: &str) -> Value {
    let name = format!("{image}-again");
    rekindle.ok(&["restore", image, "-d", "--name", &name]);
    rekindle.goes_on(&name);
    let from = loaded_from(rekindle, &name);
    rekindle.ok(&["kill", &name]);
    from
}

fn loaded_from(rekindle: &Rekindle, name: &str) -> Value {
    let picture = rekindle.path("picture.svg");
    let mut from = Value::Null;
    wait("the trace's end", || {
        let trace = rekindle.json(&["trace", name, "--svg", picture.to_str().unwrap()]);
        let last = trace["traces"].as_array().unwrap().last().unwrap().clone();
        let loading = last["phases"].as_array().unwrap().iter().find(|phase| phase["name"] == "GPU memory");
        from = loading.map_or(Value::Null, |phase| phase["from"].clone());
        !from.is_null()
    });
    from
}

fn megabytes(from: &Value, place: &str) -> u64 {
    from[place].as_u64().unwrap_or_default() / MEGABYTE
}

/// From the page cache, or from the disk where the kernel has dropped some of that.
fn uncached(from: &Value) -> u64 {
    megabytes(from, "store") + megabytes(from, "disk")
}

/// How many megabytes of an image lie in this cache.
fn cached(rekindle: &Rekindle, image: &str, place: &str) -> u64 {
    let all = rekindle.json(&["images"]);
    let found = all["images"].as_array().unwrap().iter().find(|found| found["name"] == image).unwrap();
    let bytes =
        if place == "host" { &found["cached_bytes"]["host"] } else { &found["cached_bytes"]["gpus"][place] };
    bytes.as_u64().unwrap_or_default() / MEGABYTE
}

fn wait_cached(rekindle: &Rekindle, image: &str, place: &str, expected: u64) {
    wait(&format!("{expected} MB of {image} in {place}"), || cached(rekindle, image, place) == expected);
}

/// Nothing is being cached any more.
fn settled(rekindle: &Rekindle) -> Value {
    let held = || rekindle.json(&["images"])["caches"].clone();
    let (mut last, mut since) = (held(), Instant::now());
    while since.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(50));
        let now = held();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

#[test]
fn without_a_limit_nothing_is_cached() {
    let rekindle = Rekindle::new();
    image(&rekindle, "image", "7");
    let caches = settled(&rekindle);
    assert_eq!(caches["host"]["held_bytes"], 0);
    assert_eq!(caches["gpu_limit_bytes"], 0);
    assert_eq!(uncached(&restore(&rekindle, "image")), 6);
}

#[test]
fn an_image_is_loaded_from_host_memory() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M")]);
    image(&rekindle, "image", "7");
    wait_cached(&rekindle, "image", "host", 6);
    rekindle.pool_for(&Value::from("image"), 1);
    for _ in 0..3 {
        let from = restore(&rekindle, "image");
        assert_eq!((megabytes(&from, "host cache"), uncached(&from)), (6, 0), "{from}");
    }
    let table = rekindle.ok(&["images"]);
    assert!(table.contains("host 6.0 MiB"), "{table}");
}

#[test]
fn an_image_is_loaded_from_gpu_memory() {
    // With and without contents in host memory to fill it from.
    for host in ["0", "64M"] {
        let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", host), ("REKINDLE_GPU_CACHE", "64M")]);
        image(&rekindle, "image", "7");
        wait_cached(&rekindle, "image", "emulated", 6);
        for _ in 0..3 {
            rekindle.pool_for(&Value::from("image"), 1);
            let from = restore(&rekindle, "image");
            assert_eq!((megabytes(&from, "GPU cache"), uncached(&from)), (6, 0), "{from}");
        }
        assert!(rekindle.ok(&["images"]).contains("emulated 6.0 MiB"));
        rekindle.assert_tidy();
    }
}

#[test]
fn a_worker_that_was_not_made_ready_for_it_copies_from_host_memory() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M"), ("REKINDLE_POOL", "0")]);
    image(&rekindle, "image", "7");
    wait_cached(&rekindle, "image", "host", 6);
    assert_eq!(megabytes(&restore(&rekindle, "image"), "host cache"), 6);
}

#[test]
fn a_limit_below_an_image_holds_as_much_of_it_as_fits() {
    for (variable, place, source) in
        [("REKINDLE_HOST_CACHE", "host", "host cache"), ("REKINDLE_GPU_CACHE", "emulated", "GPU cache")]
    {
        let rekindle = Rekindle::with(&[(variable, "5M")]);
        image(&rekindle, "image", "7");
        wait_cached(&rekindle, "image", place, 4);
        let from = restore(&rekindle, "image");
        assert_eq!((megabytes(&from, source), uncached(&from)), (4, 2), "{from}");
        wait_cached(&rekindle, "image", place, 4);
    }
}

#[test]
fn equal_content_is_held_once() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M"), ("REKINDLE_GPU_CACHE", "64M")]);
    for name in ["one", "same"] {
        image(&rekindle, name, "7");
        wait_cached(&rekindle, name, "host", 6);
        wait_cached(&rekindle, name, "emulated", 6);
    }
    let caches = settled(&rekindle);
    assert_eq!(caches["host"]["used_bytes"], 6 * MEGABYTE);
    assert_eq!(caches["gpus"]["emulated"]["used_bytes"], 6 * MEGABYTE);
}

#[test]
fn what_was_used_longest_ago_gives_way_and_what_was_removed_before_that() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "12M")]);
    for (name, seed) in [("old", "1"), ("removed", "2")] {
        image(&rekindle, name, seed);
        wait_cached(&rekindle, name, "host", 6);
    }
    rekindle.ok(&["rm", "removed"]);
    image(&rekindle, "third", "3");
    wait_cached(&rekindle, "third", "host", 6);
    assert_eq!(cached(&rekindle, "old", "host"), 6);
    // Both were made and never restored; now the older one is.
    assert_eq!(megabytes(&restore(&rekindle, "old"), "host cache"), 6);
    settled(&rekindle);
    image(&rekindle, "fourth", "4");
    wait_cached(&rekindle, "fourth", "host", 6);
    assert_eq!((cached(&rekindle, "old", "host"), cached(&rekindle, "third", "host")), (6, 0));
    assert_eq!(uncached(&restore(&rekindle, "third")), 6);
}

#[test]
fn an_image_can_be_removed_while_it_is_cached_and_restored() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M"), ("REKINDLE_GPU_CACHE", "64M")]);
    for round in 0..4 {
        image(&rekindle, "image", "7");
        if round > 1 {
            wait_cached(&rekindle, "image", "emulated", 6);
        }
        let restores: Vec<_> = (0..2)
            .map(|n| {
                let name = format!("raced-{round}-{n}");
                rekindle.command(&["restore", "image", "-d", "--name", &name]).spawn().unwrap()
            })
            .collect();
        // In use, perhaps, but never half gone.
        wait("its removal", || rekindle.output(&["rm", "image"]).status.success());
        for (n, restored) in restores.into_iter().enumerate() {
            let name = format!("raced-{round}-{n}");
            if harness::end_of(restored).status.success() {
                rekindle.goes_on(&name);
                rekindle.ok(&["kill", &name]);
            }
        }
    }
    rekindle.assert_tidy();
}

#[test]
fn what_is_damaged_is_not_cached() {
    let rekindle = Rekindle::with(&[("REKINDLE_HOST_CACHE", "64M"), ("REKINDLE_GPU_CACHE", "64M")]);
    image(&rekindle, "image", "7");
    wait_cached(&rekindle, "image", "emulated", 6);
    // The next daemon has nothing cached, and reads the image anew.
    rekindle.ok(&["shutdown"]);
    let chunk = rekindle.large_chunks().remove(1);
    let mut damaged = fs::read(&chunk).unwrap();
    damaged[12_345] ^= 1;
    fs::write(&chunk, &damaged).unwrap();
    let output = rekindle.output(&["restore", "image", "-d", "--name", "damaged"]);
    if output.status.success() {
        wait("its end", || rekindle.sandbox("damaged")["pid"] == 0);
        assert!(rekindle.lines("damaged").iter().all(|line| line.parse::<u64>().is_err()));
    }
    settled(&rekindle);
    assert!(cached(&rekindle, "image", "host") < 6 && cached(&rekindle, "image", "emulated") < 6);
}

#[test]
fn a_gpu_without_room_for_a_cache_is_restored_to_all_the_same() {
    // Each worker has this much to itself: an image and a view of the cache do not fit side by side.
    let rekindle = Rekindle::with(&[("REKINDLE_GPU_CACHE", "64M"), ("REKINDLE_EMULATED", "memory=64M")]);
    rekindle.start("image", &[&WEIGHTS[..], &["7", "60"]].concat());
    rekindle.goes_on("image");
    rekindle.ok(&["checkpoint", "image", "--to", "image", "--stop"]);
    rekindle.pool_for(&Value::from("image"), 1);
    settled(&rekindle);
    assert_eq!(cached(&rekindle, "image", "emulated"), 0, "the last memory is the image's own");
    assert_eq!(uncached(&restore(&rekindle, "image")), 60);
}

/// Has no memory hold what the store keeps. What becomes of it is read past the page cache where the machine can do that.
fn forget_chunks(rekindle: &Rekindle) -> &'static str {
    let mut direct = true;
    for chunk in rekindle.large_chunks() {
        let file = fs::File::open(&chunk).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice about an open file.
        assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        let flags = libc::O_DIRECT;
        direct &=
            fs::File::options().read(true).custom_flags(flags).open(&chunk).is_ok() && !is_tmpfs(&chunk);
    }
    let mut parameters = [0u8; 256];
    // SAFETY: asks for a ring, with parameters of more bytes than it has.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if ring < 0 || !direct {
        eprintln!("this machine refuses io_uring or direct reads: what is tested is the way without");
        return "store";
    }
    // SAFETY: opened above, and nobody else's.
    drop(unsafe { OwnedFd::from_raw_fd(ring as i32) });
    "disk"
}

fn is_tmpfs(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).unwrap().filesystem_type() == nix::sys::statfs::TMPFS_MAGIC
}

#[test]
fn what_only_the_disk_has_is_read_past_the_page_cache_and_lies_there_for_the_next() {
    for hashed_by_gpu in ["off", "on"] {
        let rekindle = Rekindle::with(&[("REKINDLE_GPU_HASH", hashed_by_gpu)]);
        image(&rekindle, "image", "7");
        let place = forget_chunks(&rekindle);
        assert_eq!(megabytes(&restore(&rekindle, "image"), place), 6);
        wait("the page cache", || megabytes(&restore(&rekindle, "image"), "store") == 6);
    }
}

#[test]
fn damage_is_seen_in_what_is_read_past_the_page_cache() {
    for hashed_by_gpu in ["off", "on"] {
        let rekindle = Rekindle::with(&[("REKINDLE_GPU_HASH", hashed_by_gpu)]);
        image(&rekindle, "image", "7");
        let chunk = &rekindle.large_chunks()[1];
        let mut bytes = fs::read(chunk).unwrap();
        bytes[1_234_567] ^= 1;
        fs::write(chunk, bytes).unwrap();
        forget_chunks(&rekindle);
        let output = rekindle.output(&["restore", "image", "-d", "--name", "damaged"]);
        let problem = match output.status.success() {
            true => {
                wait("the end", || rekindle.sandbox("damaged")["pid"] == 0);
                rekindle.sandbox("damaged")["problem"].as_str().unwrap().to_string()
            }
            false => String::from_utf8(output.stderr).unwrap(),
        };
        let name = chunk.file_name().unwrap().to_str().unwrap();
        assert!(problem.contains(name) && problem.contains("hash to"), "{problem}");
    }
}

/// Has the kernel refuse a system call to a command and to all that it starts, as containers do.
fn refuse(command: &mut Command, call: i64) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: a whole filter, borrowed for the call.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(install) };
}

#[test]
fn where_the_kernel_refuses_it_all_is_read_through_the_page_cache() {
    const CACHESTAT: i64 = 451;
    let rekindle = Rekindle::new();
    image(&rekindle, "image", "7");
    for call in [libc::SYS_io_uring_setup, CACHESTAT] {
        forget_chunks(&rekindle);
        rekindle.ok(&["shutdown"]);
        let mut command = rekindle.command(&["images"]);
        refuse(&mut command, call);
        assert!(command.output().unwrap().status.success(), "the next daemon, which inherits that");
        assert_eq!(uncached(&restore(&rekindle, "image")), 6);
    }
}

const MODEL: [&str; 3] = ["python3", "-u", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/model.py")];
const KERNEL_WRITES: &str = "10";
const FILL_WRITES: &str = "12";

/// A daemon that shares what it knows nobody to write to.
fn sharing(limit: &str) -> Rekindle {
    let rekindle = Rekindle::with(&[("REKINDLE_GPU_CACHE", limit), ("REKINDLE_GPU_HASH", "on")]);
    rekindle.start("model", &MODEL);
    rekindle.goes_on("model");
    rekindle.ok(&["checkpoint", "model", "--to", "model", "--stop"]);
    rekindle
}

/// The buffers that nobody was seen to write to, once that is known.
fn unwritten(rekindle: &Rekindle) -> Option<Vec<String>> {
    let path = rekindle.json(&["inspect", "model"])["path"].as_str().unwrap().to_string();
    let text = fs::read_to_string(format!("{path}/unwritten.json")).ok()?;
    let list: Value = serde_json::from_str(&text).unwrap();
    Some(list["parts"].as_array().unwrap().iter().map(|part| part.as_str().unwrap().to_string()).collect())
}

/// Until instances can share this much of the GPU's cache.
fn wait_shared(rekindle: &Rekindle, megabytes: u64) {
    wait("buffers to share", || {
        let caches = rekindle.json(&["images"])["caches"].clone();
        caches["gpus"]["emulated"]["shared_bytes"] == megabytes * MEGABYTE
    });
}

fn restore_sharing(rekindle: &Rekindle, name: &str) {
    rekindle.ok(&["restore", "model", "-d", "--name", name]);
    rekindle.goes_on(name);
    let from = loaded_from(rekindle, name);
    assert_eq!(megabytes(&from, "shared"), 6, "{from}");
    assert_eq!(shared(rekindle, name), 6);
    assert_eq!(rekindle.sandbox(name)["device_bytes"], 12 * MEGABYTE);
}

/// Megabytes that a running program shares.
fn shared(rekindle: &Rekindle, name: &str) -> u64 {
    let sandbox = rekindle.sandbox(name);
    assert!(sandbox["pid"].as_i64().unwrap() > 0, "{sandbox} {:?}", rekindle.lines(name));
    sandbox["shared_bytes"].as_u64().unwrap() / MEGABYTE
}

fn write(rekindle: &Rekindle, name: &str, how: &str) {
    rekindle.ok(&["kill", name, "--signal", how]);
    wait("memory of its own", || shared(rekindle, name) == 0);
    rekindle.goes_on(name);
}

#[test]
fn instances_share_what_none_writes_to_and_who_writes_gets_its_own() {
    let rekindle = sharing("64M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    assert_eq!(
        unwritten(&rekindle).unwrap().len(),
        1,
        "the weights, and not what is written again and again"
    );
    let told = |row: &Value| row["problem"].as_str().is_some_and(|problem| problem.contains("profile"));
    assert!(rekindle.json(&["ps"])["sandboxes"].as_array().unwrap().iter().any(told));
    wait_shared(&rekindle, 6);
    for name in ["one", "other", "third"] {
        restore_sharing(&rekindle, name);
    }
    // What each sees of weights and state is what it would be alone, or it ends.
    write(&rekindle, "one", KERNEL_WRITES);
    rekindle.goes_on("other");
    assert_eq!(shared(&rekindle, "other"), 6);
    write(&rekindle, "other", FILL_WRITES);
    rekindle.goes_on("third");
    assert_eq!(shared(&rekindle, "third"), 6);
    wait("the lesson", || unwritten(&rekindle).unwrap().is_empty());
    // An image of one that shares has all.
    rekindle.ok(&["checkpoint", "third", "--to", "later", "--stop"]);
    rekindle.ok(&["restore", "later", "-d", "--name", "fourth"]);
    rekindle.goes_on("fourth");
    rekindle.ok(&["kill", "one", "other", "fourth"]);
    rekindle.assert_tidy();
}

#[test]
fn who_shares_and_rests_holds_less_for_stacks_and_is_told_of_the_same_limit() {
    let rekindle = sharing("64M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    wait_shared(&rekindle, 6);
    restore_sharing(&rekindle, "one");
    let says = |text: &str| {
        let logs = fs::read_dir(rekindle.path("state/logs")).unwrap();
        logs.flatten().any(|log| fs::read_to_string(log.path()).is_ok_and(|log| log.contains(text)))
    };
    rekindle.ok(&["kill", "one", "--signal", "19"]);
    wait("its rest", || says("holds 512 bytes for a thread's stack"));
    rekindle.ok(&["kill", "one", "--signal", "1"]);
    rekindle.ok(&["kill", "one", "--signal", "18"]);
    rekindle.goes_on("one");
    assert_eq!(shared(&rekindle, "one"), 6);
    assert!(!says("for a thread's stack again"));
    write(&rekindle, "one", FILL_WRITES);
    assert!(says("for a thread's stack again"));
    rekindle.ok(&["kill", "one"]);
}

#[test]
fn what_is_learned_by_itself_and_proves_wrong_is_not_shared_again() {
    let rekindle = sharing("64M");
    rekindle.ok(&["restore", "model", "-d", "--name", "first"]);
    // What was written there has been there before, so that hashes do not tell.
    wait("what is not written to", || unwritten(&rekindle).is_some());
    assert_eq!(unwritten(&rekindle).unwrap().len(), 2);
    wait_shared(&rekindle, 10);
    rekindle.ok(&["restore", "model", "-d", "--name", "second"]);
    rekindle.goes_on("second");
    assert_eq!(shared(&rekindle, "second"), 0);
    wait("the lesson", || unwritten(&rekindle).unwrap().is_empty());
    rekindle.ok(&["kill", "first", "second"]);
}

#[test]
fn who_shares_goes_on_without_daemon_and_image_and_through_sleep() {
    let rekindle = sharing("64M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    wait_shared(&rekindle, 6);
    for name in ["one", "other", "third"] {
        restore_sharing(&rekindle, name);
    }
    rekindle.ok(&["sleep", "other", "--level", "gpu"]);
    rekindle.goes_on("other");
    assert_eq!(shared(&rekindle, "other"), 0);
    rekindle.kill_daemon();
    rekindle.goes_on("one");
    write(&rekindle, "one", KERNEL_WRITES);
    rekindle.ok(&["rm", "model"]);
    assert_eq!(shared(&rekindle, "third"), 0);
    rekindle.goes_on("third");
    write(&rekindle, "third", KERNEL_WRITES);
    rekindle.ok(&["kill", "one", "other", "third"]);
    rekindle.assert_tidy();
}

#[test]
fn what_an_instance_shares_stays_when_others_need_the_room_and_goes_after_it() {
    let rekindle = sharing("14M");
    rekindle.ok(&["profile", "model", "--", "sleep", "0.2"]);
    wait_shared(&rekindle, 6);
    restore_sharing(&rekindle, "one");
    for (other, megabytes, stays) in [("other", "8", 6), ("third", "10", 0)] {
        image_of(&rekindle, other, &["8", megabytes]);
        restore(&rekindle, other);
        wait_cached(&rekindle, other, "emulated", megabytes.parse().unwrap());
        wait_shared(&rekindle, stays);
        if stays > 0 {
            rekindle.goes_on("one");
            assert_eq!(shared(&rekindle, "one"), 6);
            rekindle.ok(&["kill", "one"]);
        }
    }
    rekindle.ok(&["restore", "model", "-d", "--name", "again"]);
    rekindle.goes_on("again");
    rekindle.ok(&["kill", "again"]);
    rekindle.assert_tidy();
}
