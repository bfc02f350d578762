//! The admission socket, in a sandbox's run directory, where a process of the sandbox asks for a GPU.
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

use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};
use rekindle_protocol::client::{
    ADMISSION_SOCKET, ADMISSION_VERSION, Admission, AdmissionRequest, LONGEST_ADMISSION, OWNER,
};
use rekindle_protocol::frame::{self, Limits};
use rekindle_protocol::worker::ask;
use rekindle_sandbox::{Network, RUN_PATH, process};

use crate::connection_limit::ConnectionLimit;
use crate::error::{Error, Result};
use crate::sandboxes::Sandbox;
use crate::workers::Worker;

/// How many processes may be connected at once; others wait before it.
const MOST_AT_ONCE: u32 = 64;
/// After nobody could be let in, for want of descriptors or memory.
const BETWEEN: Duration = Duration::from_millis(100);
/// How long who connects may take to say what it wants.
const KNOCK: Duration = Duration::from_secs(10);
/// How long who was answered may take to close its connection.
const PARTING: Duration = Duration::from_secs(2);
/// How long a connection may take in all; a worker may have to be started.
const VISIT: Duration = Duration::from_secs(30);

/// Has the GPU half of a program that asks for it woken; why that failed before, if it did.
pub type Wake = fn(&Arc<Sandbox>) -> Option<String>;

pub struct AdmissionSocket {
    listener: UnixListener,
    closed: Arc<AtomicBool>,
    /// Processes that are connected: CRIU cannot take one of them.
    visits: Arc<ConnectionLimit>,
}

impl AdmissionSocket {
    /// Opens the socket of a sandbox and answers there until it is closed.
    pub fn open(sandbox: &Arc<Sandbox>, wake: Wake) -> Result<()> {
        let owner = sandbox.run_directory.join(OWNER);
        fs::write(&owner, sandbox.place()).map_err(|source| Error::io("write", &owner, source))?;
        let path = sandbox.run_directory.join(ADMISSION_SOCKET);
        let failed = |source: io::Error| Error::io("listen on", &path, source);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        // Whatever user the program has become.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).map_err(failed)?;
        let listening = listener.try_clone().map_err(failed)?;
        let visits = Arc::new(ConnectionLimit::new(MOST_AT_ONCE));
        let admission = AdmissionSocket { listener: listening, closed: Arc::default(), visits };
        let (closed, visits, keeper) =
            (admission.closed.clone(), admission.visits.clone(), Arc::downgrade(sandbox));
        sandbox.set_admission(admission);
        std::thread::spawn(move || keep(&listener, &keeper, &closed, &visits, wake));
        Ok(())
    }

    /// Waits until nobody is connected, and says how many have come.
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

fn keep(
    listener: &UnixListener,
    sandbox: &Weak<Sandbox>,
    closed: &AtomicBool,
    visits: &Arc<ConnectionLimit>,
    wake: Wake,
) {
    let answering = Arc::new(Mutex::new(()));
    loop {
        visits.wait();
        let accepted = listener.accept();
        let Some(sandbox) = sandbox.upgrade().filter(|_| !closed.load(Ordering::SeqCst)) else { return };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("sandbox {:?}: no process can ask for a GPU just now: {error}", sandbox.name());
                std::thread::sleep(BETWEEN);
                continue;
            }
        };
        let visit = visits.enter();
        let answering = answering.clone();
        let begun = std::thread::Builder::new().spawn(move || {
            if let Err(error) = receive_visitor(&sandbox, &stream, &answering, wake) {
                log::debug!(
                    "sandbox {:?}: a process that asked for a GPU was not answered: {error}",
                    sandbox.name()
                );
            }
            drop(sandbox);
            wait_for_parting(&stream);
            drop(visit);
        });
        if let Err(error) = begun {
            log::warn!("a process that asked for a GPU is sent away: {error}");
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

fn receive_visitor(
    sandbox: &Arc<Sandbox>,
    stream: &UnixStream,
    answering: &Mutex<()>,
    wake: Wake,
) -> Result<()> {
    let within = |time| Limits { bytes: LONGEST_ADMISSION, descriptors: 0, time: Some(time) };
    let refuse = |why: String| Ok(frame::send(stream, &Admission::Refused(why), &[])?);
    match frame::receive_within(stream, &within(KNOCK))? {
        (AdmissionRequest::Knock { version: ADMISSION_VERSION }, _) => {}
        (AdmissionRequest::Knock { version }, _) => {
            return refuse(format!(
                "its libcuda.so.1 speaks version {version} of the admission protocol, and the daemon version \
                 {ADMISSION_VERSION}; use both of one installation"
            ));
        }
        (AdmissionRequest::Settled, _) => return refuse("it has not knocked".to_string()),
    }
    let peer = getsockopt(stream, PeerCredentials)
        .map_err(|errno| Error::system("tell who asks for a GPU", errno))?
        .pid();
    if !is_inside(sandbox, peer) {
        return refuse(format!("process {peer} is not in the sandbox whose socket this is"));
    }
    let answered = answering.lock().unwrap_or_else(PoisonError::into_inner);
    if sandbox.live_workers().iter().any(|worker| worker.client() == peer) {
        let problem = wake(sandbox);
        return Ok(frame::send(stream, &Admission::Waking { problem }, &[])?);
    }
    let (worker, client_end) = match admit(sandbox, peer) {
        Ok(admitted) => admitted,
        Err(error) => {
            log::warn!("sandbox {:?}: a process was refused: {error}", sandbox.name());
            return refuse(error.to_string());
        }
    };
    drop(answered);
    let sent = frame::send(stream, &Admission::Admitted, &[client_end.as_fd()]);
    drop(client_end);
    match sent.and_then(|()| frame::receive_within(stream, &within(VISIT))) {
        Ok((AdmissionRequest::Settled, _)) => {
            worker.set_settled(true);
            sandbox.see_to_mending();
        }
        // It never was this process's, whose end would be its loss.
        other => {
            sandbox.end_worker(&worker);
            sandbox.note_workers();
            other?;
        }
    }
    Ok(())
}

/// Whether a process sees this sandbox's run directory where its programs do.
fn is_inside(sandbox: &Sandbox, pid: i32) -> bool {
    let place = Path::new("/proc").join(pid.to_string()).join("root").join(RUN_PATH.trim_start_matches('/'));
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    pid > 0
        && fs::metadata(place)
            .is_ok_and(|seen| fs::metadata(&sandbox.run_directory).is_ok_and(|own| same(seen, own)))
}

/// A worker for the process, and the process's end of their connection.
fn admit(sandbox: &Arc<Sandbox>, peer: i32) -> Result<(Arc<Worker>, UnixStream)> {
    let (client_end, worker_end) =
        pair_for(peer).map_err(|source| Error::system("make a pair of sockets", source))?;
    if sandbox.record().device {
        // Its program is not the one that was restored here last.
        sandbox.note(|record| record.image = None);
    }
    let serve = ask::Serve { run_directory: sandbox.run_directory.to_string_lossy().into_owned() };
    let mut worker = free_worker(sandbox)?;
    let ask = |worker: &Worker| {
        worker.tell_owner()?;
        worker.ask("serve", serve.clone(), &[worker_end.as_fd()])
    };
    let mut served = ask(&worker);
    if served.is_err() && worker.ended().is_some() {
        // One that nobody needed may have ended just now.
        worker = sandbox.start_worker()?;
        sandbox.fill_pool();
        served = ask(&worker);
    }
    served?;
    worker.set_settled(false);
    worker.set_client(peer);
    sandbox.note_workers();
    Ok((worker, client_end))
}

/// Two connected sockets in the process's network namespace: CRIU finds a program's sockets in that alone.
fn pair_for(peer: i32) -> io::Result<(UnixStream, UnixStream)> {
    if process::namespace(peer, "net") == process::namespace(std::process::id() as i32, "net") {
        return UnixStream::pair();
    }
    Network::of(peer)?.within(UnixStream::pair)
}

fn free_worker(sandbox: &Arc<Sandbox>) -> Result<Arc<Worker>> {
    // One that is followed is there for another process, which it does not have yet.
    let is_free = |worker: &Arc<Worker>| worker.client() == 0 && !worker.is_followed();
    match sandbox.live_workers().into_iter().find(is_free) {
        Some(worker) => Ok(worker),
        None => sandbox.start_worker().inspect(|_| sandbox.fill_pool()),
    }
}
