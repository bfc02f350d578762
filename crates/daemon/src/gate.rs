//! The gate: the socket in a sandbox's run directory where a process of the sandbox asks for a GPU.
//!
//! Each process that asks gets a worker of its own: the one that was started with the sandbox if it is free, else a
//! new one. One that has a worker knocks because its GPU half sleeps.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};
use rekindle_protocol::client::{Admission, GATE};
use rekindle_protocol::frame;
use rekindle_protocol::worker::Request;
use rekindle_sandbox::process;

use crate::error::{Error, Result};
use crate::held::Held;
use crate::wake;
use crate::worker::Worker;

/// How long who was answered may take to close its connection.
const PARTING: Duration = Duration::from_secs(2);
/// How long who is at the gate may take in all; a worker may have to be started.
const VISIT: Duration = Duration::from_secs(30);

pub struct Gate {
    listener: UnixListener,
    closed: Arc<AtomicBool>,
    visits: Arc<Visits>,
}

/// Processes that are connected to the gate: CRIU cannot take one of them.
#[derive(Default)]
struct Visits {
    count: Mutex<Count>,
    left: Condvar,
}

#[derive(Default)]
struct Count {
    /// Since the gate was opened.
    came: u64,
    here: u32,
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
        let listening = listener.try_clone().map_err(failed)?;
        let gate = Gate { listener: listening, closed: Arc::default(), visits: Arc::default() };
        let (closed, visits, keeper) = (gate.closed.clone(), gate.visits.clone(), Arc::downgrade(held));
        held.set_gate(gate);
        std::thread::spawn(move || keep(&listener, &keeper, &closed, &visits));
        Ok(())
    }

    /// Waits until nobody is at the gate, and says how many have come.
    pub fn settle(&self) -> u64 {
        let somebody = |count: &mut Count| count.here > 0;
        let waited = self.visits.left.wait_timeout_while(self.visits.lock(), VISIT, somebody);
        waited.unwrap_or_else(PoisonError::into_inner).0.came
    }

    /// How many have come.
    pub fn visitors(&self) -> u64 {
        self.visits.lock().came
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that waits in accept.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
    }
}

impl Visits {
    fn begin(&self) {
        let mut count = self.lock();
        count.came += 1;
        count.here += 1;
    }

    fn end(&self) {
        self.lock().here -= 1;
        self.left.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep(listener: &UnixListener, held: &Weak<Held>, closed: &AtomicBool, visits: &Arc<Visits>) {
    let turn = Arc::new(Mutex::new(()));
    while let Ok((stream, _)) = listener.accept() {
        let Some(held) = held.upgrade().filter(|_| !closed.load(Ordering::SeqCst)) else { return };
        let (turn, visits) = (turn.clone(), visits.clone());
        visits.begin();
        std::thread::spawn(move || {
            let answered = {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                answer(&held, &stream)
            };
            if let Err(error) = answered {
                log::warn!("sandbox {:?}: a process at the gate was not answered: {error}", held.name());
            }
            drop(held);
            wait_for_parting(&stream);
            visits.end();
        });
    }
}

/// Until the other side has closed the connection.
fn wait_for_parting(mut stream: &UnixStream) {
    if stream.set_read_timeout(Some(PARTING)).is_ok() {
        while stream.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
    }
}

fn answer(held: &Arc<Held>, stream: &UnixStream) -> Result<()> {
    let peer = getsockopt(stream, PeerCredentials)
        .map_err(|errno| Error::system("tell who knocks at the gate", errno))?
        .pid();
    if held.live_workers().iter().any(|worker| worker.client() == peer) {
        let problem = wake::knocked(held);
        return Ok(frame::send(stream, &Admission::Waking { problem }, &[])?);
    }
    match admit(held, peer) {
        Ok(client_end) => frame::send(stream, &Admission::Admitted, &[client_end.as_fd()])?,
        Err(error) => {
            log::warn!("sandbox {:?}: a process was refused: {error}", held.name());
            frame::send(stream, &Admission::Refused(error.to_string()), &[])?;
        }
    }
    Ok(())
}

fn admit(held: &Arc<Held>, peer: i32) -> Result<UnixStream> {
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
    worker.set_client(peer);
    held.note_workers();
    Ok(client_end)
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
