//! What is done when work that ran ahead of loading, or wrote to a shared buffer, has met a fault: the worker starts again.
//!
//! ```text
//!   worker ──exec──▶ the same process, without its failed context
//!                      client's socket, daemon's connection, listener   descriptors
//!                      journal                                          a file in memory
//!                      base, if one was taken since the restore         a descriptor of memory
//!                      who holds what a lost worker is mended with      a socket
//!                    opens the GPU ─ restores and loads all ─ base ─ does the journal once more ─ goes on
//! ```
//!
//! The rings lie in files of the run directory; the next request is where it was.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_protocol::frame;
use rekindle_protocol::worker::{Phase, Recording, Reply};
use serde::{Deserialize, Serialize};

use super::OnDemandError;
use super::base::{self, Base, BaseDescription};
use super::conversations::{Conversations, wait_for_parting};
use super::journal::Journal;
use super::mend::Mend;
use super::replace::take_up;
use crate::arguments::Arguments;
use crate::client_thread::ClientThread;
use crate::control::{Control, Kind};
use crate::dispatch::{Activity, DispatchError, Dispatcher, Ended, Inbox, Remote, Shared, remote};
use crate::gpu::Gpu;
use crate::image::{self, RestoreOptions};
use crate::link::Link;
use crate::printed::ProgramOutput;
use crate::{start, successor};

/// The argument before the number of the descriptor that [`Inheritance`] is read from.
pub(crate) const ARGUMENT: &str = "--again";

/// What is passed on; descriptors by their numbers.
#[derive(Serialize, Deserialize)]
struct Inheritance {
    gpu: String,
    image: PathBuf,
    directory: PathBuf,
    listener: RawFd,
    client: RawFd,
    daemon: Option<RawFd>,
    /// The message of the daemon's that waits to hear that all is loaded.
    daemon_waits: Option<u64>,
    journal: RawFd,
    /// What memory held when the journal began, where that is not what the image has.
    base: Option<(BaseDescription, RawFd)>,
    /// How the loss of this worker is to be mended, if it is to be.
    mend: Option<Mendable>,
    /// The client's pid, and whether the driver half of its process is attached.
    pid: i32,
    driver_attached: bool,
    /// Whose arrays it hands on.
    owner: Option<String>,
    /// What becomes of the order in which parts are used, and what was recorded of it.
    record: Recording,
    uses: Vec<String>,
    /// How long ago the restore began, microseconds.
    age_us: u64,
}

/// Of a worker whose loss is to be mended: the daemon's end of a socket, and where states are written.
#[derive(Serialize, Deserialize)]
struct Mendable {
    daemon: RawFd,
    store: PathBuf,
    name: String,
}

/// Starts again. Returns only where that cannot be, with how the worker ends.
pub(crate) fn do_again(
    dispatcher: &mut Dispatcher,
    inbox: &Inbox,
    listener: RawFd,
    conversations: &Conversations,
) -> Ended {
    let fault = dispatcher.client.broken().map_or_else(String::new, |code| code.to_string());
    log::info!(
        "a kernel came to memory that it could not have yet ({fault}): it gets it, and runs once more"
    );
    let (daemon, _client) = conversations.stop(|| {
        inbox.obey(dispatcher);
        dispatcher.refuse_drain(DispatchError::LoadsAgain);
        dispatcher.refuse_unsharing(DispatchError::EndsSharing);
    });
    inbox.obey(dispatcher);
    if let Some(ended) = dispatcher.ended() {
        return ended;
    }
    dispatcher.client.output.forget();
    let failed = |problem: String| Ended::Failed(format!("the worker cannot start again: {problem}"));
    let Some(client) = dispatcher.client.link.socket() else { return Ended::Done };
    let gpu = Arguments::parse(std::env::args_os().skip(2)).map(|arguments| arguments.gpu.to_string());
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => return failed(error.to_string()),
    };
    let Some((image, journal, base, age)) = mending(dispatcher) else {
        return Ended::Failed(format!("the GPU's context has failed, and nothing was to be mended: {fault}"));
    };
    let base = base.map(|base| base.described()).map(|(described, memory)| (described, memory.as_raw_fd()));
    let age_us = age.as_micros() as u64;
    let mendable = |mend: &Mend| {
        let (daemon, (store, name)) = (mend.holder()?.as_raw_fd(), mend.place());
        Some(Mendable { daemon, store: store.to_path_buf(), name: name.to_string() })
    };
    let inheritance = Inheritance {
        gpu,
        image,
        directory: dispatcher.client.directory.clone(),
        listener,
        client: client.as_raw_fd(),
        daemon: daemon.stream,
        daemon_waits: daemon.waits,
        journal: journal.descriptor().as_raw_fd(),
        base,
        mend: dispatcher.mend.as_ref().and_then(mendable),
        pid: dispatcher.client.pid,
        driver_attached: dispatcher.client.driver_attached,
        owner: dispatcher.client.exchange.owner.clone(),
        record: dispatcher.uses.as_ref().map_or(Recording::None, |uses| uses.recording()),
        uses: dispatcher.uses.as_ref().map_or_else(Vec::new, |uses| uses.names()),
        age_us,
    };
    failed(successor::start_again(ARGUMENT, &inheritance, &inheritance.descriptors()).to_string())
}

impl Inheritance {
    fn descriptors(&self) -> Vec<RawFd> {
        let base = self.base.as_ref().map(|(_, memory)| *memory);
        let mend = self.mend.as_ref().map(|mend| mend.daemon);
        let always = [self.listener, self.client, self.journal];
        always.into_iter().chain(self.daemon).chain(base).chain(mend).collect()
    }
}

/// What is to be done once more, on which image and base, and for how long the restore has been over.
fn mending(dispatcher: &Dispatcher) -> Option<(PathBuf, &Journal, Option<&Base>, Duration)> {
    if let Some(Shared { sharing, journal }) = dispatcher.activity.shared() {
        let (image, base, age) = sharing.mending()?;
        return Some((image, journal, Some(base), age));
    }
    let Activity::Loading { loading, journal: Some(journal) } = &dispatcher.activity else { return None };
    (!journal.is_empty()).then_some((loading.image(), journal, None, loading.age()))
}

/// Runs a worker that has started again.
pub(crate) fn main(number: &OsStr) -> ExitCode {
    start::prepare_process();
    let inheritance: Inheritance = match successor::known(number) {
        Ok(inheritance) => inheritance,
        Err(problem) => {
            log::error!("a worker that was to start again could not: {problem}");
            return ExitCode::FAILURE;
        }
    };
    successor::close_others(&inheritance.descriptors());
    // SAFETY: the program that this process ran before has left them open, each for one owner here.
    let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
    let listener = UnixListener::from(own(inheritance.listener));
    let client = UnixStream::from(own(inheritance.client));
    let daemon = inheritance.daemon.map(|number| UnixStream::from(own(number)));
    let journal = own(inheritance.journal);
    let holder = inheritance.mend.as_ref().map(|mend| UnixStream::from(own(mend.daemon)));
    match go_on(&inheritance, listener, client, (daemon, holder), journal) {
        Ended::Done => ExitCode::SUCCESS,
        Ended::Failed(problem) => {
            log::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn go_on(
    inheritance: &Inheritance,
    listener: UnixListener,
    client: UnixStream,
    (daemon, holder): (Option<UnixStream>, Option<UnixStream>),
    journal: OwnedFd,
) -> Ended {
    let ((remote, inbox), link) = (remote(), Link::new());
    let client = Arc::new(client);
    link.connect(client.clone());
    let dispatcher = restore(inheritance, &inbox, &remote, &link).and_then(|mut dispatcher| {
        let journal = Journal::inherit(journal).map_err(OnDemandError::JournalFile)?;
        take_up(&mut dispatcher, journal)?;
        if let Some((Mendable { store, name, .. }, holder)) = inheritance.mend.as_ref().zip(holder) {
            let mend = Mend::new(store.clone(), name.clone()).map_err(OnDemandError::Kept)?;
            dispatcher.mend.insert(mend).be_held_by(holder, &client);
        }
        Ok(dispatcher)
    });
    let mut dispatcher = match dispatcher {
        Ok(dispatcher) => dispatcher,
        Err(problem) => {
            let problem = format!("the program's GPU half could not be restored once more: {problem}");
            if let Some((daemon, id)) = daemon.zip(inheritance.daemon_waits) {
                let _ = frame::send(&daemon, &Reply::<()> { id, answer: Err(problem.clone()) }, &[]);
                // The daemon ends the program, which is not to see an error before.
                wait_for_parting(&client);
            }
            return Ended::Failed(problem);
        }
    };
    let (conversations, directory) = (Arc::new(Conversations::default()), inheritance.directory.clone());
    let control = Control::new(listener, remote.clone(), link.clone(), Kind::Alone, conversations.clone());
    let waits = inheritance.daemon_waits;
    let control = std::thread::Builder::new().name("control".into()).spawn(move || match daemon {
        Some(daemon) => control.go_on(&daemon, waits),
        None => control.run(),
    });
    let thread = ClientThread { socket: client, directory, remote, link, conversations };
    let client = std::thread::Builder::new().name("client".into()).spawn(move || thread.run());
    if let Err(error) = control.and(client) {
        return Ended::Failed(format!("cannot start a thread: {error}"));
    }
    // Nothing runs ahead any more, so that there is nothing to mend.
    let ended = dispatcher.run(&inbox, |_, _| Ended::Failed("a fault came twice".to_string()));
    inbox.refuse("the worker is ending".to_string());
    ended
}

/// All as it was when the program was let go on.
fn restore(
    inheritance: &Inheritance,
    inbox: &Inbox,
    remote: &Remote,
    link: &Arc<Link>,
) -> Result<Dispatcher, OnDemandError> {
    let began = Instant::now();
    let gpu = Gpu::parse(&inheritance.gpu).ok_or_else(|| OnDemandError::NoGpu(inheritance.gpu.clone()))?;
    let mut dispatcher =
        Dispatcher::new(start::first_client(gpu.open()?, ProgramOutput::followed(), link.clone())?);
    dispatcher.client.pid = inheritance.pid;
    dispatcher.client.driver_attached = inheritance.driver_attached;
    dispatcher.client.exchange.owner.clone_from(&inheritance.owner);
    dispatcher.client.mended = true;
    dispatcher.client.output.of_pid(inheritance.pid);
    let options = RestoreOptions {
        directory: inheritance.directory.clone(),
        record: inheritance.record,
        again: true,
        ..RestoreOptions::default()
    };
    let began_loading = Instant::now();
    image::restore(&mut dispatcher, &inheritance.image, options, remote.clone())?;
    if let Some(board) = dispatcher.client.board {
        remote.use_board(board);
    }
    while dispatcher.activity.is_loading() {
        if !inbox.obey_next(&mut dispatcher) {
            return Err(OnDemandError::NobodyTells);
        }
    }
    if let Some((described, memory)) = &inheritance.base {
        // SAFETY: the program that this process ran before has left it open, for this one owner.
        let memory = unsafe { OwnedFd::from_raw_fd(*memory) };
        let filled = base::put_back(&mut dispatcher.client, described, memory);
        filled.map_err(OnDemandError::Memory)?;
    }
    let mut phases = dispatcher.loaded.take().ok_or(OnDemandError::NothingLoaded)??;
    if let Some(uses) = &mut dispatcher.uses {
        uses.go_on_after(&inheritance.uses);
    }
    let opened_us = began_loading.duration_since(began).as_micros() as u64;
    phases.iter_mut().for_each(|phase| phase.start_us += inheritance.age_us + opened_us);
    let again = Phase {
        name: "a fault mended".to_string(),
        start_us: inheritance.age_us,
        duration_us: opened_us,
        ..Phase::default()
    };
    dispatcher.loaded = Some(Ok([vec![again], phases].concat()));
    Ok(dispatcher)
}
