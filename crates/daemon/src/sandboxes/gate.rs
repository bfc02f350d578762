//! The gate: the socket in a sandbox's run directory where a process of the sandbox asks for a GPU.
//!
//! Each process that asks gets a worker of its own: the one that was started with the sandbox if it is free, else a
//! new one. One that has a worker knocks because its GPU half sleeps.
//!
//! Whatever runs in the sandbox can come here and send anything. Nothing is done before it has knocked in the protocol's
//! own words, and a worker that it was given and never took up with ends without being missed.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};
use rekindle_protocol::client::{Admission, GATE, GATE_VERSION, LONGEST_AT_GATE, ToGate};
use rekindle_protocol::frame::{self, Limits};
use rekindle_protocol::worker::Request;
use rekindle_sandbox::{RUN_PATH, process};

use crate::error::{Error, Result};
use crate::room::Room;
use crate::sandboxes::Held;
use crate::sleep::wake;
use crate::workers::Worker;

/// How many processes may be at a gate at once; others wait before it.
const MOST_AT_ONCE: u32 = 64;
/// After nobody could be let in, for want of descriptors or memory.
const BETWEEN: Duration = Duration::from_millis(100);
/// How long who comes to the gate may take to say what it wants.
const KNOCK: Duration = Duration::from_secs(10);
/// How long who was answered may take to close its connection.
const PARTING: Duration = Duration::from_secs(2);
/// How long who is at the gate may take in all; a worker may have to be started.
const VISIT: Duration = Duration::from_secs(30);

pub struct Gate {
    listener: UnixListener,
    closed: Arc<AtomicBool>,
    /// Processes that are connected to the gate: CRIU cannot take one of them.
    visits: Arc<Room>,
}

impl Gate {
    /// Opens the gate of a sandbox and answers at it until it is closed.
    pub fn open(held: &Arc<Held>) -> Result<()> {
        let path = held.run_directory.join(GATE);
        let failed = |source: io::Error| Error::io("listen on", &path, source);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        // Whatever user the program has become.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
        let listening = listener.try_clone().map_err(failed)?;
        let visits = Arc::new(Room::new(MOST_AT_ONCE));
        let gate = Gate { listener: listening, closed: Arc::default(), visits };
        let (closed, visits, keeper) = (gate.closed.clone(), gate.visits.clone(), Arc::downgrade(held));
        held.set_gate(gate);
        std::thread::spawn(move || keep(&listener, &keeper, &closed, &visits));
        Ok(())
    }

    /// Waits until nobody is at the gate, and says how many have come.
    pub fn settle(&self) -> u64 {
        self.visits.settle(VISIT)
    }

    /// How many have come.
    pub fn visitors(&self) -> u64 {
        self.visits.came()
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that waits in accept.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        self.visits.close();
    }
}

fn keep(listener: &UnixListener, held: &Weak<Held>, closed: &AtomicBool, visits: &Arc<Room>) {
    let turn = Arc::new(Mutex::new(()));
    loop {
        visits.wait();
        let accepted = listener.accept();
        let Some(held) = held.upgrade().filter(|_| !closed.load(Ordering::SeqCst)) else { return };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("sandbox {:?}: nobody can come to the gate just now: {error}", held.name());
                std::thread::sleep(BETWEEN);
                continue;
            }
        };
        let visit = visits.enter();
        let turn = turn.clone();
        let begun = std::thread::Builder::new().spawn(move || {
            if let Err(error) = receive_visitor(&held, &stream, &turn) {
                log::debug!("sandbox {:?}: a process at the gate was not answered: {error}", held.name());
            }
            drop(held);
            wait_for_parting(&stream);
            drop(visit);
        });
        if let Err(error) = begun {
            log::warn!("a process at a gate is sent away: {error}");
        }
    }
}

/// Until the other side has closed the connection.
fn wait_for_parting(mut stream: &UnixStream) {
    let until = Instant::now() + PARTING;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        && stream.set_read_timeout(Some(left)).is_ok()
        && stream.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0)
    {}
}

fn receive_visitor(held: &Arc<Held>, stream: &UnixStream, turn: &Mutex<()>) -> Result<()> {
    let within = |time| Limits { bytes: LONGEST_AT_GATE, descriptors: 0, time: Some(time) };
    let refuse = |why: String| Ok(frame::send(stream, &Admission::Refused(why), &[])?);
    match frame::receive_within(stream, &within(KNOCK))? {
        (ToGate::Knock { version: GATE_VERSION }, _) => {}
        (ToGate::Knock { version }, _) => {
            return refuse(format!(
                "its libcuda.so.1 speaks version {version} of the gate's protocol, and the daemon version \
                 {GATE_VERSION}; use both of one installation"
            ));
        }
        (ToGate::Settled, _) => return refuse("it has not knocked".to_string()),
    }
    let peer = getsockopt(stream, PeerCredentials)
        .map_err(|errno| Error::system("tell who knocks at the gate", errno))?
        .pid();
    if !is_inside(held, peer) {
        return refuse(format!("process {peer} is not in the sandbox whose gate this is"));
    }
    let answered = turn.lock().unwrap_or_else(PoisonError::into_inner);
    if held.live_workers().iter().any(|worker| worker.client() == peer) {
        let problem = wake::knocked(held);
        return Ok(frame::send(stream, &Admission::Waking { problem }, &[])?);
    }
    let (worker, client_end) = match admit(held, peer) {
        Ok(admitted) => admitted,
        Err(error) => {
            log::warn!("sandbox {:?}: a process was refused: {error}", held.name());
            return refuse(error.to_string());
        }
    };
    drop(answered);
    let sent = frame::send(stream, &Admission::Admitted, &[client_end.as_fd()]);
    drop(client_end);
    match sent.and_then(|()| frame::receive_within(stream, &within(VISIT))) {
        Ok((ToGate::Settled, _)) => worker.set_settled(true),
        // It never was this process's, whose end would be its loss.
        other => {
            held.end_worker(&worker);
            held.note_workers();
            other?;
        }
    }
    Ok(())
}

/// Whether a process sees this sandbox's run directory where its programs do.
fn is_inside(held: &Held, pid: i32) -> bool {
    let place = Path::new("/proc").join(pid.to_string()).join("root").join(RUN_PATH.trim_start_matches('/'));
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    pid > 0
        && fs::metadata(place)
            .is_ok_and(|seen| fs::metadata(&held.run_directory).is_ok_and(|own| same(seen, own)))
}

/// A worker for the process, and the process's end of their connection.
fn admit(held: &Arc<Held>, peer: i32) -> Result<(Arc<Worker>, UnixStream)> {
    let (client_end, worker_end) =
        pair_for(peer).map_err(|source| Error::system("make a pair of sockets", source))?;
    if held.record().device {
        // Its program is not the one that was restored here last.
        held.note(|record| record.image = None);
    }
    let serve = Request::Serve { run_directory: held.run_directory.to_string_lossy().into_owned() };
    let mut worker = free_worker(held)?;
    let mut served = worker.command("serve", &serve, &[worker_end.as_fd()]);
    if served.is_err() && worker.ended().is_some() {
        // One that nobody needed may have ended just now.
        worker = held.start_worker(None)?;
        held.fill_pool();
        served = worker.command("serve", &serve, &[worker_end.as_fd()]);
    }
    served?;
    worker.set_settled(false);
    worker.set_client(peer);
    held.note_workers();
    Ok((worker, client_end))
}

/// Two connected sockets in the process's network namespace: CRIU finds a program's sockets in that alone.
fn pair_for(peer: i32) -> io::Result<(UnixStream, UnixStream)> {
    if process::namespace(peer, "net") == process::namespace(std::process::id() as i32, "net") {
        return UnixStream::pair();
    }
    let network = fs::File::open(format!("/proc/{peer}/ns/net"))?;
    // The thread ends in that namespace; the daemon's others stay where they are.
    let made = std::thread::spawn(move || {
        setns(&network, CloneFlags::CLONE_NEWNET)?;
        UnixStream::pair()
    });
    made.join().unwrap_or_else(|_| Err(io::Error::other("the thread that made them panicked")))
}

fn free_worker(held: &Arc<Held>) -> Result<Arc<Worker>> {
    match held.live_workers().into_iter().find(|worker| worker.client() == 0) {
        Some(worker) => Ok(worker),
        None => held.start_worker(None).inspect(|_| held.fill_pool()),
    }
}
