//! A worker whose contexts several clients share, on the emulated GPU.

mod common;

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::program::{begin, bytes_of, download, kernel, launch, pinned, upload, words};
use common::{Client, Daemon, LIMIT, Lane, alone};
use rekindle_cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
use rekindle_device::{ModuleKind, Slice};
use rekindle_protocol::operation::*;
use rekindle_protocol::worker::{Contents, ContextLost, Portion, ShareMemory, ask};
use rekindle_ring::{BoardMapping, Ring};
use rekindle_store::Store;
use rekindle_worker::{Ended, Gpu, OpenedDriver, serve_shared};

/// A client has come to rest, and what it needs to outlive its context is noted.
const TO_REST: Duration = Duration::from_millis(500);
/// Longer than any test takes.
const KEEP: Duration = Duration::from_secs(600);

const PTX: &[u8] = b"
.version 7.0
.target sm_70
.address_size 64
.visible .global .u32 unused;
.visible .entry add(.param .u64 word, .param .u32 more)
{
    .reg .u32 %r<3>;
    .reg .u64 %d;
    ld.param.u64 %d, [word];
    ld.param.u32 %r0, [more];
    ld.global.u32 %r1, [%d];
    add.u32 %r2, %r1, %r0;
    st.global.u32 [%d], %r2;
    ret;
}
";

/// The worker's process, in this one.
struct Host {
    directory: PathBuf,
    daemon: Daemon,
    thread: JoinHandle<Ended>,
}

impl Host {
    fn start(directory: &Path) -> Host {
        Host::start_with(directory, true, KEEP)
    }

    fn start_with(directory: &Path, in_pieces: bool, keep: Duration) -> Host {
        let socket = directory.join("host.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let open = move || {
            let opened = Gpu::parse("emulated:memory=1G,devices=2").unwrap().open()?;
            Ok(OpenedDriver { in_pieces, ..opened })
        };
        let whose = ("us".to_string(), "emulated".to_string());
        let thread = std::thread::spawn(move || serve_shared(listener, whose, keep, open));
        let daemon = Daemon::over(UnixStream::connect(socket).unwrap());
        Host { directory: directory.to_owned(), daemon, thread }
    }

    fn socket(&self, slice: Slice) -> PathBuf {
        self.directory.join(format!("{}.sock", slice.number()))
    }

    fn admits(&self, slice: Slice) -> bool {
        let listen = self.socket(slice).to_str().unwrap().to_string();
        self.daemon.ask(ask::Admit {
            log: format!("{listen}.log"),
            listen,
            slice,
            portion: Portion::default(),
            memory: ShareMemory::default(),
        })
    }

    /// The daemon of a client that was admitted, and what closes at its end.
    fn daemon_of(&self, slice: Slice) -> (Daemon, std::io::PipeReader) {
        let daemon = Daemon::over(UnixStream::connect(self.socket(slice)).unwrap());
        let (ended, sign) = std::io::pipe().unwrap();
        daemon.asked(ask::Watch {}, &[sign.as_fd()]).unwrap();
        (daemon, ended)
    }

    fn program(&self, slice: Slice) -> Program {
        assert!(self.admits(slice));
        let (daemon, ended) = self.daemon_of(slice);
        let directory = self.directory.join(format!("run-{}", slice.number()));
        std::fs::create_dir_all(&directory).unwrap();
        let (mut client, welcome) = Client::connect_in(&directory, &daemon);
        assert_eq!(welcome.slice, Some(slice));
        let mut lane = begin(&mut client);
        let source = CodeSource::Trailer;
        let request = ModuleLoad { device: 0, id: 1, kind: ModuleKind::Module, source, options: vec![] };
        assert_eq!(lane.ask_with(request, PTX).unwrap().status, 0);
        kernel(&mut lane, 1, 1, "add");
        let memory = lane.ask(MemoryAllocate { device: 0, bytes: 4 << 20 }).unwrap();
        assert!(slice.device().contains(&memory), "{memory:#x}");
        upload(&mut lane, 0, memory, &bytes_of(&[slice.number(), 0]));
        Program { slice, daemon, ended, client, lane, memory }
    }

    fn free_bytes(&self) -> u64 {
        let slice = Slice::all().last().unwrap();
        assert!(self.admits(slice));
        let (daemon, mut ended) = self.daemon_of(slice);
        let free = daemon.ask(ask::GetStatus {}).free_bytes[0];
        daemon.ask(ask::Shutdown {});
        ended.read_to_end(&mut Vec::new()).unwrap();
        free
    }

    fn end(self) {
        self.daemon.ask(ask::Shutdown {});
        assert_eq!(self.thread.join().unwrap(), Ended::Done);
    }
}

struct Program {
    slice: Slice,
    daemon: Daemon,
    ended: std::io::PipeReader,
    client: Client,
    lane: Lane,
    memory: u64,
}

impl Program {
    fn add(&mut self, stream: u32, more: u64) {
        launch(&mut self.lane, stream, 1, &[self.memory, more]);
    }

    fn word(&mut self) -> u32 {
        words(&download(&mut self.lane, 0, self.memory, 4))[0]
    }

    /// What becomes of it once the context has failed.
    fn lost(&mut self) -> ContextLost {
        let mut said = [0];
        self.ended.read_exact(&mut said).unwrap();
        ContextLost::of(said[0]).unwrap()
    }

    /// Its end, once all is given back that it had.
    fn die(mut self) {
        self.client.die();
        self.ended.read_to_end(&mut Vec::new()).unwrap();
    }

    /// Something on the stream waits for a word of pinned memory from now on.
    fn hold(&mut self, stream: u32) -> &'static std::sync::atomic::AtomicU32 {
        let address = self.slice.pinned().start;
        let flag = pinned(&mut self.lane, &self.client, "pinned-9-0", address);
        self.lane.post(WaitValue { device: 0, stream, address, value: 1, width: 4, flags: 1 });
        flag
    }
}

fn slice(number: u32) -> Slice {
    Slice::new(number).unwrap()
}

#[test]
fn clients_have_the_context_side_by_side_and_give_back_what_they_had() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let host = Host::start(directory.path());
    let before = host.free_bytes();
    let mut programs: Vec<Program> = (3..6).map(|number| host.program(slice(number))).collect();
    for taken in 3..6 {
        assert!(!host.admits(slice(taken)));
    }
    let sharing = host.daemon.ask(ask::GetSharing {});
    assert_eq!((sharing.tenant.as_str(), sharing.pid), ("us", std::process::id() as i32));
    for program in &mut programs {
        program.add(0, 100);
        assert_eq!(program.word(), 100 + program.slice.number());
    }
    // One ends with work under way; the others go on, and the next with its addresses waits until all is given back.
    programs[1].add(0, 1);
    programs.remove(1).client.die();
    let mut again = host.program(slice(4));
    again.add(0, 1);
    assert_eq!(again.word(), 5);
    for mut program in programs {
        program.add(0, 1000);
        assert_eq!(program.word(), 1100 + program.slice.number());
        program.die();
    }
    again.die();
    assert_eq!(host.free_bytes(), before);
    host.end();
}

#[test]
fn contexts_are_kept_without_clients_for_as_long_as_was_said() {
    let _alone = alone();
    for keep in [Duration::ZERO, Duration::from_secs(2)] {
        let directory = tempfile::tempdir().unwrap();
        let host = Host::start_with(directory.path(), true, keep);
        // The first one is waited for, and any is enough.
        std::thread::sleep(TO_REST);
        let (one, other) = (host.program(slice(0)), host.program(slice(1)));
        one.die();
        std::thread::sleep(TO_REST);
        assert!(!host.thread.is_finished());
        other.die();
        let since = Instant::now();
        if !keep.is_zero() {
            host.program(slice(1)).die();
        }
        let Host { daemon: _daemon, thread, .. } = host;
        assert_eq!(thread.join().unwrap(), Ended::Done);
        let kept = since.elapsed();
        assert!(kept >= keep && kept < keep + LIMIT, "{kept:?}");
    }
}

#[test]
fn each_has_a_default_stream_of_its_own() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let host = Host::start(directory.path());
    let (mut one, mut other) = (host.program(slice(0)), host.program(slice(1)));
    // A blocking stream that is held up, the default stream behind it, and the stream again behind that.
    one.lane.post(StreamCreate { device: 0, id: 2, flags: 0, priority: 0 });
    one.lane.post(StreamCreate { device: 0, id: 3, flags: 0, priority: 0 });
    one.lane.post(StreamCreate { device: 0, id: 4, flags: 1, priority: 0 });
    let flag = one.hold(2);
    one.add(0, 10);
    one.lane.send(StreamQuery { device: 0, stream: 0 }, &[]);
    assert_eq!(one.lane.answer::<StreamQuery>(), Ok(false));
    one.add(3, 100);
    assert_eq!(one.lane.ask(StreamQuery { device: 0, stream: 3 }), Ok(false));
    assert_eq!(one.lane.ask(StreamQuery { device: 0, stream: 4 }), Ok(true));
    // The other client sees nothing of it, not even when it waits for its whole context.
    other.add(0, 7);
    other.lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(other.word(), 8);
    flag.store(1, Ordering::Release);
    one.lane.ask(ContextSynchronize { device: 0 }).unwrap();
    assert_eq!(one.word(), 110);
    one.die();
    other.die();
    host.end();
}

#[test]
fn a_fault_is_told_to_who_has_work_there_and_holds_who_is_at_rest() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let host = Host::start(directory.path());
    let [mut one, mut busy, mut rests] = [0, 1, 2].map(|number| host.program(slice(number)));
    busy.hold(0);
    std::thread::sleep(TO_REST);
    assert!(rests.daemon.asked(ask::Leave {}, &[]).is_err());
    launch(&mut one.lane, 0, 1, &[0x10, 1]);
    assert_eq!(one.lane.ask(StreamSynchronize { device: 0, stream: 0 }), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!((one.lost(), busy.lost()), (ContextLost::Told, ContextLost::Told));
    assert_eq!(busy.lane.ask(ContextSynchronize { device: 0 }), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert!(!host.admits(slice(3)));
    // Its requests wait, and it can be brought to no stand.
    assert_eq!(rests.lost(), ContextLost::AtRest);
    rests.lane.send(ContextSynchronize { device: 0 }, &[]);
    assert_eq!(rests.daemon.ask(ask::GetStatus {}).pinned_bytes, 0);
    let stand = ask::Quiesce { limit_ms: 1000, contents: Contents::Left };
    assert!(rests.daemon.asked(stand, &[]).unwrap_err().contains("about to go on in another one"));
    rests.daemon.ask(ask::Leave {});
    // What is known of it is written without the context.
    let store = Store::open(&directory.path().join("store")).unwrap();
    let draft = store.begin("image").unwrap();
    let staging = draft.path().to_str().unwrap().to_string();
    rests.daemon.ask(ask::Save { staging, contents: Contents::Left });
    assert!(!rests.daemon.ask(ask::HandOver { from: 0 }).is_empty());
    // It does not go on elsewhere: it is told after all.
    rests.daemon.ask(ask::Resume { restored: false, driver_attached: false });
    assert_eq!(rests.lane.answer::<ContextSynchronize>(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    for program in [one, busy, rests] {
        program.die();
    }
    host.end();
}

#[test]
fn a_fault_that_is_met_by_a_question_for_the_state_is_one_to_all() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let host = Host::start(directory.path());
    let [mut one, mut rests] = [0, 1].map(|number| host.program(slice(number)));
    std::thread::sleep(TO_REST);
    launch(&mut one.lane, 0, 1, &[0x10, 1]);
    // Nobody waits for the kernel.
    for _ in 0..100 {
        one.daemon.ask(ask::GetStatus {});
        rests.daemon.ask(ask::GetStatus {});
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((one.lost(), rests.lost()), (ContextLost::Told, ContextLost::AtRest));
    for program in [one, rests] {
        program.die();
    }
    host.end();
}

#[test]
fn who_is_at_rest_is_told_of_a_fault_once_nobody_is_there_to_have_it_go_on_elsewhere() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let host = Host::start(directory.path());
    let [mut one, mut alone, mut found] = [0, 1, 2].map(|number| host.program(slice(number)));
    std::thread::sleep(TO_REST);
    // A daemon that is dying has closed its connections, and can be written to yet.
    alone.daemon.die();
    found.daemon.die();
    std::thread::sleep(TO_REST);
    launch(&mut one.lane, 0, 1, &[0x10, 1]);
    assert_eq!(one.lane.ask(StreamSynchronize { device: 0, stream: 0 }), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!((alone.lost(), found.lost()), (ContextLost::AtRest, ContextLost::AtRest));
    for program in [&mut alone, &mut found] {
        program.lane.send(ContextSynchronize { device: 0 }, &[]);
    }
    // The next daemon comes while the one before has not gone.
    let (_next, mut ended) = host.daemon_of(found.slice);
    let mut said = [0];
    ended.read_exact(&mut said).unwrap();
    assert_eq!(ContextLost::of(said[0]), Some(ContextLost::Told));
    assert_eq!(found.lane.answer::<ContextSynchronize>(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    // Or none comes.
    assert!(!alone.lane.is_answered());
    let (next, sign) = std::io::pipe().unwrap();
    drop((std::mem::replace(&mut alone.ended, next), sign));
    assert_eq!(alone.lane.answer::<ContextSynchronize>(), Err(CUDA_ERROR_ILLEGAL_ADDRESS));
    for program in [one, alone, found] {
        program.die();
    }
    host.end();
}

#[test]
fn work_that_goes_on_after_its_clients_end_keeps_the_context_from_others() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let host = Host::start(directory.path());
    let before = host.free_bytes();
    let (mut one, mut other) = (host.program(slice(0)), host.program(slice(1)));
    let flag = one.hold(0);
    one.add(0, 1);
    assert_eq!(one.lane.ask(StreamQuery { device: 0, stream: 0 }), Ok(false));
    one.die();
    assert!(!host.admits(slice(2)));
    let during = other.daemon.ask(ask::GetStatus {}).free_bytes[0];
    flag.store(1, Ordering::Release);
    let freed = || other.daemon.ask(ask::GetStatus {}).free_bytes[0] > during;
    let began = Instant::now();
    while !freed() {
        assert!(began.elapsed() < LIMIT, "its memory does not come back");
    }
    other.add(0, 1);
    assert_eq!(other.word(), 2);
    other.die();
    assert!(during < before);
    host.end();
}

#[test]
fn where_globals_lie_as_others_let_them_there_is_no_image() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let host = Host::start_with(state.path(), false, KEEP);
    let mut program = host.program(slice(0));
    let staging = |name: &str| state.path().join(name).to_str().unwrap().to_string();
    let save = || {
        program.daemon.quiesce();
        let request = ask::Save { staging: staging("draft"), contents: Contents::Saved };
        let saved = program.daemon.asked(request, &[]).map(drop);
        program.daemon.ask(ask::Resume { restored: false, driver_attached: false });
        saved
    };
    // The program does not know where they lie.
    assert!(!save().unwrap_err().contains("--share"));
    program.lane.ask(GlobalGet { module: 1, name: "unused" }).unwrap();
    let problem = save().unwrap_err();
    assert!(problem.contains("global unused") && problem.contains("`--share`"), "{problem}");
    program.add(0, 1);
    assert_eq!(program.word(), 1);
    program.die();
    host.end();
}

#[test]
fn an_image_comes_back_to_its_slice_in_a_shared_context_or_one_of_its_own() {
    let _alone = alone();
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&state.path().join("store")).unwrap();
    let host = Host::start(state.path());
    let mut program = host.program(slice(9));
    let mut other = host.program(slice(2));
    program.add(0, 40);
    let draft = store.begin("image").unwrap();
    program.daemon.quiesce();
    // Others do not stand still for that.
    other.add(0, 1);
    assert_eq!(other.word(), 3);
    let staging = draft.path().to_str().unwrap().to_string();
    let parts = program.daemon.ask(ask::Save { staging, contents: Contents::Saved }).parts;
    draft.adopt(parts.into_iter().map(|part| serde_json::from_value(part).unwrap()).collect()).unwrap();
    let image = draft.commit().unwrap().path().to_str().unwrap().to_string();
    let memory = program.memory;
    program.die();

    let restore = |daemon: &Daemon, directory: &Path| {
        std::fs::create_dir_all(directory).unwrap();
        BoardMapping::create(&directory.join("board-9-0")).unwrap();
        Ring::create(&directory.join("ring-9-0")).unwrap();
        let run_directory = directory.to_str().unwrap().to_string();
        daemon.asked(
            ask::Restore {
                image: image.clone(),
                run_directory,
                cached: Vec::new(),
                beside: false,
                runs: false,
            },
            &[],
        )
    };
    let goes_on = |daemon: &Daemon, directory: &Path| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        daemon.ask_with(ask::Adopt { pid: 1, driver_attached: false }, &theirs);
        drop(theirs);
        let client = Client::restored(directory, ours);
        daemon.ask(ask::Resume { restored: true, driver_attached: false });
        daemon.ask(ask::Loaded {});
        let mut lane = client.old_lane(0);
        launch(&mut lane, 0, 1, &[memory, 1]);
        assert_eq!(words(&download(&mut lane, 0, memory, 4)), [50]);
        client
    };
    // Not with other addresses.
    assert!(host.admits(slice(8)));
    let (wrong, mut ended) = host.daemon_of(slice(8));
    let problem = restore(&wrong, &state.path().join("wrong")).unwrap_err();
    assert!(problem.contains("address slice 9") && problem.contains("has 8"), "{problem}");
    wrong.ask(ask::Shutdown {});
    ended.read_to_end(&mut Vec::new()).unwrap();

    assert!(host.admits(slice(9)));
    let (daemon, mut ended) = host.daemon_of(slice(9));
    restore(&daemon, &state.path().join("shared")).unwrap();
    let client = goes_on(&daemon, &state.path().join("shared"));
    other.add(0, 1);
    assert_eq!(other.word(), 4);
    client.die();
    ended.read_to_end(&mut Vec::new()).unwrap();
    other.die();
    host.end();

    // Alone it keeps to its addresses.
    let worker = common::Worker::start_on(&state.path().join("alone"), Default::default(), || {
        Gpu::parse("emulated:memory=1G,devices=2").unwrap().open()
    });
    let daemon = worker.daemon();
    restore(&daemon, &state.path().join("alone")).unwrap();
    let client = goes_on(&daemon, &state.path().join("alone"));
    let mut lane = client.old_lane(0);
    let more = lane.ask(MemoryAllocate { device: 0, bytes: 100 << 20 }).unwrap();
    assert!(slice(9).device().contains(&more));
    client.die();
    worker.end();
}
