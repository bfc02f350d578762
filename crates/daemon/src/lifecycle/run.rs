//! Starting a program in a new sandbox.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::sync::Arc;

use rekindle_protocol::daemon::{Mode, State};
use rekindle_sandbox::{Program, RUN_PATH, Sandbox};

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::{client_library, gpu};
use crate::sandboxes::gate::Gate;
use crate::sandboxes::record::Record;
use crate::sandboxes::{Held, remove_directory};
use crate::sandboxes::{logs, names};
use crate::{fault, frameworks};

/// What the user asks for.
pub struct Wish {
    pub name: Option<String>,
    pub gpu: Option<String>,
    pub mode: Mode,
    pub command: Vec<String>,
    pub directory: String,
    pub environment: Vec<(String, String)>,
    /// What it gets although it cannot be checkpointed with it.
    pub allowed: Vec<String>,
    /// Whether the program is to wait for an app.
    pub framework: bool,
    /// A pipe for its standard input, which is empty without one.
    pub input: Option<OwnedFd>,
}

/// Starts the program; it runs when this returns.
pub fn run(daemon: &Daemon, wish: Wish) -> Result<Arc<Held>> {
    if wish.command.first().is_none_or(String::is_empty) {
        return Err(Error::NoCommand);
    }
    let mut environment = wish.environment.clone();
    let gpu = match wish.mode {
        Mode::Sandbox => gpu::choose(wish.gpu.as_deref())?,
        Mode::Driver => gpu::expose(wish.gpu.as_deref(), &mut environment)?,
    };
    let held = daemon.sandboxes.add(wish.name.as_deref(), &names::stem(&wish.command), |name, _| {
        let record = Record {
            command: wish.command.clone(),
            directory: wish.directory.clone(),
            ..Record::new(daemon.places.new_id()?, name, wish.mode, State::Starting, gpu)
        };
        create(daemon, record, None)
    })?;
    if wish.mode == Mode::Sandbox {
        client_library::add_to(&mut environment, RUN_PATH);
    }
    let door = if wish.framework { frameworks::furnish(&held.run_directory) } else { Ok(()) };
    let started = door.and_then(|()| start(&held, &wish, environment));
    held.fill_pool();
    match started {
        Ok(()) => Ok(held),
        Err(error) => {
            give_back(daemon, &held);
            Err(error)
        }
    }
}

/// Makes the record, the run directory and the log of a new sandbox: an empty one, or with `former` the one of that goes
/// on.
pub fn create(daemon: &Daemon, record: Record, former: Option<&Held>) -> Result<Arc<Held>> {
    let library = match record.mode {
        Mode::Sandbox => Some(client_library::find(&daemon.program)?),
        Mode::Driver => None,
    };
    let held = Held::new(&daemon.places, &daemon.pool, record);
    held.update(|_| {})?;
    let made = DirBuilder::new()
        .mode(0o700)
        .create(&held.run_directory)
        // Users that the program becomes come to it too. Nobody else does: what it lies in is private.
        .and_then(|()| fs::set_permissions(&held.run_directory, Permissions::from_mode(0o777)))
        .map_err(|source| Error::io("make directory", &held.run_directory, source))
        .and_then(|()| held.claim())
        .and_then(|()| match &library {
            Some(library) if held.record().device => client_library::copy_into(&held.run_directory, library),
            Some(library) => client_library::link_into(&held.run_directory, library),
            None => Ok(()),
        })
        .and_then(|()| logs::begin(&held, former));
    if let Err(error) = made {
        let _ = remove_directory(&held.run_directory);
        held.forget();
        return Err(error);
    }
    Ok(held)
}

/// Takes everything back from a sandbox that could not be brought to run.
pub fn give_back(daemon: &Daemon, held: &Arc<Held>) {
    held.ended(None);
    daemon.sandboxes.remove(held);
}

fn start(held: &Arc<Held>, wish: &Wish, environment: Vec<(String, String)>) -> Result<()> {
    fault::point("run-created")?;
    if held.record().mode == Mode::Sandbox {
        start_gpu_half(held)?;
    }
    let program = Program {
        args: wish.command.iter().map(OsString::from).collect(),
        env: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: (&wish.directory).into(),
        allowed: wish.allowed.clone(),
    };
    let cpu = Sandbox::start_with(&held.place(), &program, wish.input.as_ref().map(AsFd::as_fd))?;
    fault::point("run-started")?;
    held.runs(cpu)?;
    held.is_up()
}

fn start_gpu_half(held: &Arc<Held>) -> Result<()> {
    Gate::open(held)?;
    let worker = held.start_worker(None)?;
    // The emulated GPU is up at once, and its settings are the user's; a real one opens beside the program's start.
    if held.record().gpu.starts_with("emulated:") {
        worker.status()?;
        return Ok(());
    }
    worker.check_start()
}
