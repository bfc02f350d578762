//! A worker in this process, with a client and a daemon played by the test.

#![allow(dead_code, reason = "each test binary uses some of this")]

pub mod fake;
pub mod program;

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_cuda::CuResult;
use rekindle_device::DEVICE_RANGE;
use rekindle_protocol::client::{CLIENT_VERSION, Quiesced, ToClient, ToWorker, Welcome};
use rekindle_protocol::frame;
use rekindle_protocol::operation::{Asynchronous, ReplyHead, Synchronous, decode_reply};
use rekindle_protocol::worker::{Ask, ClientNumber, Contents, FIRST_CLIENT, Message, Reply, ask, greet};
use rekindle_ring::{Board, BoardMapping, Liveness, Producer, Ring, Spin, Staging, Wait};
use rekindle_worker::{Ended, OpenError, OpenedDriver, serve};

pub use fake::{FakePlatform, Knobs};

/// How long a worker may take to answer.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Device addresses belong to the process: tests that use them run one after the other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    wait_for_addresses();
    one
}

/// The last thread of the former worker may let go of its device a moment after the worker has ended.
pub fn wait_for_addresses() {
    let begun = Instant::now();
    while device_addresses_are_taken() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn device_addresses_are_taken() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let begins = |line: &str| u64::from_str_radix(line.split('-').next()?, 16).ok();
    maps.lines().filter_map(begins).any(|address| DEVICE_RANGE.contains(&address))
}

pub struct Worker {
    pub directory: PathBuf,
    pub knobs: Arc<Knobs>,
    thread: JoinHandle<Ended>,
}

impl Worker {
    /// Starts a worker whose GPU is a fake.
    pub fn start(directory: &Path) -> Worker {
        Worker::start_with(directory, Arc::default())
    }

    pub fn start_with(directory: &Path, knobs: Arc<Knobs>) -> Worker {
        let for_platform = knobs.clone();
        Worker::start_on(directory, knobs, move || {
            let platform = Arc::new(FakePlatform::new(for_platform));
            Ok(OpenedDriver { platform, gpus: vec![0], real_driver: None, in_pieces: false })
        })
    }

    pub fn start_on(
        directory: &Path,
        knobs: Arc<Knobs>,
        open: impl FnOnce() -> Result<OpenedDriver, OpenError> + Send + 'static,
    ) -> Worker {
        let _ = env_logger::try_init();
        std::fs::create_dir_all(directory).unwrap();
        let socket = directory.join("worker.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(socket).unwrap();
        let thread = std::thread::spawn(move || serve(listener, open));
        Worker { directory: directory.to_owned(), knobs, thread }
    }

    pub fn daemon(&self) -> Daemon {
        let stream = UnixStream::connect(self.directory.join("worker.sock")).unwrap();
        Daemon::over(stream)
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the worker's end.
    pub fn end(self) -> Ended {
        self.thread.join().unwrap()
    }
}

pub struct Daemon {
    pub stream: UnixStream,
    /// For whom it asks.
    pub client: ClientNumber,
    asked: Cell<u64>,
}

impl Daemon {
    /// Greets the worker at the other end of a connection.
    pub fn over(stream: UnixStream) -> Daemon {
        greet(&stream, "daemon", "worker", LIMIT).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Daemon { stream, client: FIRST_CLIENT, asked: Cell::new(0) }
    }

    /// Its end of the connection closes.
    pub fn die(&self) {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    pub fn ask<A: Ask>(&self, request: A) -> A::Answer {
        self.asked(request, &[]).unwrap()
    }

    pub fn ask_with<A: Ask>(&self, request: A, socket: &UnixStream) -> A::Answer {
        self.asked(request, &[socket.as_fd()]).unwrap()
    }

    pub fn asked<A: Ask>(&self, request: A, descriptors: &[BorrowedFd<'_>]) -> Result<A::Answer, String> {
        self.send(request, descriptors);
        let reply: Reply<A::Answer> = frame::receive(&self.stream).unwrap().0;
        assert_eq!(reply.id, self.asked.get());
        reply.answer
    }

    /// The first half of a request.
    pub fn send<A: Ask>(&self, request: A, descriptors: &[BorrowedFd<'_>]) {
        self.asked.set(self.asked.get() + 1);
        let message = Message { id: self.asked.get(), client: self.client, request: request.into() };
        frame::send(&self.stream, &message, descriptors).unwrap();
    }

    pub fn fails<A: Ask>(&self, request: A) -> String {
        self.asked(request, &[]).err().unwrap()
    }

    pub fn quiesce(&self) -> Quiesced {
        self.ask(ask::Quiesce { limit_ms: LIMIT.as_millis() as u64, contents: Contents::Saved })
    }

    /// Asks for a standstill until it is refused for this. A client that does not answer within so short a limit may be one
    /// that is not let run.
    pub fn quiesce_fails(&self, limit_ms: u64, why: &str) {
        let began = Instant::now();
        loop {
            let problem = self.fails(ask::Quiesce { limit_ms, contents: Contents::Saved });
            if problem.contains(why) {
                return;
            }
            assert!(problem.contains("did not answer in time") && began.elapsed() < LIMIT, "{problem}");
        }
    }
}

/// What the client's control thread shares with the test.
#[derive(Default)]
pub struct Seen {
    pub calls: AtomicU32,
    pub resumed: AtomicU32,
    pub busy: AtomicBool,
    pub closed: AtomicBool,
}

/// A program with one thread, or several: each [`Lane`] is one.
pub struct Client {
    pub directory: PathBuf,
    pub socket: Arc<UnixStream>,
    pub board: &'static Board,
    pub seen: Arc<Seen>,
    ready: Receiver<u32>,
    rings: u32,
}

pub struct Lane {
    ring: Ring,
    producer: Producer<'static>,
    pub staging: Staging,
    seen_replies: u32,
    board: &'static Board,
}

impl Client {
    /// Connects to the worker as the daemon would do it for a program.
    pub fn connect(worker: &Worker, daemon: &Daemon) -> (Client, Welcome) {
        Client::connect_in(&worker.directory, daemon)
    }

    /// As [`Client::connect`], of one whose files are in another directory than the worker's.
    pub fn connect_in(directory: &Path, daemon: &Daemon) -> (Client, Welcome) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let run_directory = directory.to_str().unwrap().to_string();
        daemon.ask_with(ask::Serve { run_directory }, &theirs);
        let (welcome, _) = frame::receive(&ours).unwrap();
        let board = BoardMapping::create(&directory.join("board-9-0")).unwrap();
        board.set_client(Liveness::Alive);
        frame::send(&ours, &ToWorker::Board { name: "board-9-0".to_string(), version: CLIENT_VERSION }, &[])
            .unwrap();
        (Client::over(ours, directory, board), welcome)
    }

    /// A client as CRIU restores it: board and rings are new files of the old names.
    pub fn restored(directory: &Path, socket: UnixStream) -> Client {
        let board = BoardMapping::open(&directory.join("board-9-0")).unwrap();
        board.set_client(Liveness::Alive);
        Client::over(socket, directory, board)
    }

    fn over(socket: UnixStream, directory: &Path, board: &'static Board) -> Client {
        let socket = Arc::new(socket);
        let seen = Arc::new(Seen::default());
        let (sender, ready) = channel();
        let (for_thread, thread_seen) = (socket.clone(), seen.clone());
        std::thread::spawn(move || control(&for_thread, &thread_seen, &sender));
        Client { directory: directory.to_owned(), socket, board, seen, ready, rings: 0 }
    }

    pub fn lane(&mut self) -> Lane {
        let index = self.rings;
        self.rings += 1;
        let name = format!("ring-9-{index}");
        let ring = Ring::create(&self.directory.join(&name)).unwrap();
        frame::send(&self.socket, &ToWorker::Ring { index, name }, &[]).unwrap();
        assert_eq!(self.ready.recv_timeout(LIMIT), Ok(index));
        Lane::over(ring, self.board)
    }

    /// The lane that a restored thread finds.
    pub fn old_lane(&self, index: u32) -> Lane {
        let ring = Ring::open(&self.directory.join(format!("ring-9-{index}"))).unwrap();
        Lane::over(ring, self.board)
    }

    pub fn die(self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

fn control(socket: &UnixStream, seen: &Seen, ready: &Sender<u32>) {
    loop {
        let Ok((message, _)) = frame::receive::<ToClient>(socket) else {
            return seen.closed.store(true, Ordering::Release);
        };
        match message {
            ToClient::RingReady { index } => ready.send(index).unwrap(),
            ToClient::Call { token } => {
                std::thread::sleep(Duration::from_millis(5));
                seen.calls.fetch_add(1, Ordering::AcqRel);
                frame::send(socket, &ToWorker::Called { token }, &[]).unwrap();
            }
            ToClient::Quiesce { .. } if seen.busy.load(Ordering::Acquire) => {
                frame::send(socket, &ToWorker::Busy("a thread is in a call".to_string()), &[]).unwrap();
            }
            ToClient::Quiesce { .. } | ToClient::Step { .. } => {
                let quiesced = Quiesced {
                    version: CLIENT_VERSION,
                    process: 9,
                    socket_inode: 1,
                    driver_attached: false,
                    files: Vec::new(),
                    uncollected: Vec::new(),
                    unused: Vec::new(),
                };
                frame::send(socket, &ToWorker::Quiesced(quiesced), &[]).unwrap();
            }
            ToClient::Resume { .. } => {
                seen.resumed.fetch_add(1, Ordering::AcqRel);
                frame::send(socket, &ToWorker::Resumed, &[]).unwrap();
            }
            ToClient::Release => frame::send(socket, &ToWorker::Released(false), &[]).unwrap(),
            ToClient::TellUnused => frame::send(socket, &ToWorker::Unused(Vec::new()), &[]).unwrap(),
            ToClient::Sleep | ToClient::Attached { .. } | ToClient::Kept | ToClient::GiveBack => {}
        }
    }
}

impl Lane {
    fn over(ring: Ring, board: &'static Board) -> Lane {
        // SAFETY: the test has one lane a ring.
        let (producer, staging) = unsafe { (ring.producer(), ring.staging()) };
        Lane { ring, producer, staging, seen_replies: 0, board }
    }

    fn push<T: serde::Serialize>(&mut self, opcode: u32, request: &T, trailer: &[u8]) {
        self.push_raw(opcode, &postcard::to_stdvec(request).unwrap(), trailer);
    }

    pub fn push_raw(&mut self, opcode: u32, body: &[u8], trailer: &[u8]) {
        self.push_until(opcode, body, trailer, || false);
    }

    /// Waits for room until nobody makes any.
    pub fn push_until(&mut self, opcode: u32, body: &[u8], trailer: &[u8], is_over: impl Fn() -> bool) {
        while !self.producer.try_push(opcode, body, trailer, || self.board.ticket()) && !is_over() {
            std::thread::yield_now();
        }
        self.board.ring();
    }

    pub fn post<T: Asynchronous>(&mut self, request: T) {
        self.push(T::OPCODE, &request, &[]);
    }

    pub fn post_with<T: Asynchronous>(&mut self, request: T, trailer: &[u8]) {
        self.push(T::OPCODE, &request, trailer);
    }

    pub fn ask<T: Synchronous>(&mut self, request: T) -> Result<T::Reply, CuResult> {
        self.ask_with(request, &[])
    }

    pub fn ask_with<T: Synchronous>(&mut self, request: T, trailer: &[u8]) -> Result<T::Reply, CuResult> {
        self.send(request, trailer);
        self.answer::<T>()
    }

    /// The first half of a synchronous request.
    pub fn send<T: Synchronous>(&mut self, request: T, trailer: &[u8]) {
        self.seen_replies = self.ring.header().reply.count();
        self.push(T::OPCODE, &request, trailer);
    }

    pub fn answer<T: Synchronous>(&mut self) -> Result<T::Reply, CuResult> {
        let reply = &self.ring.header().reply;
        let seen = self.seen_replies;
        let alive = || self.board.worker() != Liveness::Dead;
        let waited = reply.wait(Spin(300), alive, || reply.count() != seen);
        assert_eq!(waited, Wait::Ready);
        // SAFETY: the worker has answered and writes no more until the next request.
        let bytes = unsafe { std::slice::from_raw_parts(self.ring.reply_area(), rekindle_ring::REPLY_BYTES) };
        let head = ReplyHead::decode(bytes[..8].try_into().unwrap());
        CuResult(head.status).ok()?;
        decode_reply(&bytes[8..8 + head.bytes as usize])
    }

    pub fn is_answered(&self) -> bool {
        self.ring.header().reply.count() != self.seen_replies
    }

    pub fn is_drained(&self) -> bool {
        self.ring.header().is_drained()
    }

    pub fn error(&self) -> i32 {
        self.board.take_error(0, |code| CuResult(code).is_sticky())
    }
}
