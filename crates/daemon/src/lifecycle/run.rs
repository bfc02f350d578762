//! Starting a program in a new sandbox.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::sync::Arc;

use rekindle_protocol::daemon::{Mode, Run, State, User};
use rekindle_sandbox::{Program, RUN_PATH, Sandbox as CpuHalf, Standard};
use rekindle_store::Image;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::client_library::{self, Build};
use crate::host::{gpu, mounts};
use crate::lifecycle::LifecycleError;
use crate::sandboxes::admission::AdmissionSocket;
use crate::sandboxes::record::Record;
use crate::sandboxes::recovery::Recovery;
use crate::sandboxes::{Sandbox, SandboxError, remove_directory};
use crate::sandboxes::{logs, names};
use crate::sleep::wake;
use crate::{fault, frameworks, network};

use super::{mode, portions, slices};

/// What the user asks for.
#[derive(Default)]
pub struct RunRequest {
    pub run: Run,
    /// Whether the program is to wait for an app.
    pub framework: bool,
    /// A pipe for its standard input, which is empty without one; with a terminal the socket of who uses that.
    pub input: Option<OwnedFd>,
    /// How it is brought back after a failure.
    pub recovery: Option<Recovery>,
}

/// Starts the program; it runs when this returns.
pub fn run(daemon: &Daemon, request: RunRequest) -> Result<Arc<Sandbox>> {
    let wanted = &request.run;
    if wanted.command.first().is_none_or(String::is_empty) {
        return Err(SandboxError::NoCommand.into());
    }
    let network = wanted.network.unwrap_or_default();
    let (network, ports) = network::choose(Some(network), &wanted.publish, (network, &[]))?;
    let mounts = mounts::settle(&wanted.mounts)?;
    let mut environment = wanted.environment.clone();
    let program = mode::program(&request);
    let (mode, reason) = match wanted.choose {
        false => (wanted.mode.unwrap_or_default(), None),
        true => {
            let (mode, reason) = mode::choose(daemon, &request, program.as_deref());
            (mode, Some(reason))
        }
    };
    portions::check(&wanted.limits, wanted.tenant.as_deref(), mode)?;
    let gpu = match mode {
        Mode::Sandbox => gpu::choose(wanted.gpu.as_deref())?,
        Mode::Driver => gpu::expose(wanted.gpu.as_deref(), &mut environment)?,
    };
    let shares = match (&wanted.tenant, mode) {
        (None, _) => None,
        (Some(tenant), Mode::Sandbox) => Some((tenant, slices::of_images(daemon, tenant)?)),
        (Some(_), Mode::Driver) => return Err(LifecycleError::OwnContext.into()),
    };
    let sandbox = daemon.sandboxes.add(wanted.name.as_deref(), &names::stem(&wanted.command), |at| {
        // One that starts anew goes on with its log.
        let former = at.former.filter(|_| request.recovery.as_ref().is_some_and(Recovery::has_failed));
        let slice = shares.map(|(tenant, of_images)| slices::choose(tenant, of_images, at.live()));
        let record = Record {
            command: wanted.command.clone(),
            directory: wanted.directory.clone(),
            recovery: request.recovery.clone(),
            network,
            ports: ports.clone(),
            limits: wanted.limits,
            mounts: mounts.clone(),
            tenant: wanted.tenant.clone(),
            slice,
            user: wanted.user.clone(),
            terminal: wanted.terminal,
            mode_reason: reason,
            program,
            ..Record::new(daemon.paths.new_id()?, at.name, mode, State::Starting, gpu)
        };
        create(daemon, record, former, None)
    })?;
    if mode == Mode::Sandbox {
        client_library::add_to(&mut environment, RUN_PATH);
        gpu::tell(&sandbox.record().gpu, &mut environment);
    }
    let door = if request.framework { frameworks::furnish(&sandbox.run_directory) } else { Ok(()) };
    let started = door
        .and_then(|()| portions::check_room(daemon, &sandbox))
        .and_then(|()| sandbox.limit())
        .and_then(|()| sandbox.furnish_network(&daemon.publisher))
        .and_then(|()| start(&sandbox, &request, environment));
    sandbox.fill_pool();
    match started {
        Ok(()) => Ok(sandbox),
        Err(error) => {
            give_back(daemon, &sandbox);
            Err(error)
        }
    }
}

/// Makes the record, the run directory and the log of a new sandbox: an empty one, or with `former` the one of that goes
/// on. `image`: what its program is to come from, with the client that it has mapped.
pub fn create(
    daemon: &Daemon,
    record: Record,
    former: Option<&Sandbox>,
    image: Option<&Image>,
) -> Result<Arc<Sandbox>> {
    let library = match (record.mode, image) {
        (Mode::Driver, _) => None,
        (Mode::Sandbox, None) => Some(Build::installed(&daemon.paths, &daemon.program)?),
        (Mode::Sandbox, Some(image)) => Some(match Build::of_image(&daemon.paths, image)? {
            Some(build) => build,
            None => Build::installed(&daemon.paths, &daemon.program)?,
        }),
    };
    let sandbox = Sandbox::new(&daemon.paths, &daemon.pool, record);
    sandbox.update(|_| {})?;
    let made = DirBuilder::new()
        .mode(0o700)
        .create(&sandbox.run_directory)
        // Users that the program becomes come to it too. Nobody else does: what it lies in is private.
        .and_then(|()| fs::set_permissions(&sandbox.run_directory, Permissions::from_mode(0o777)))
        .map_err(|source| Error::io("make directory", &sandbox.run_directory, source))
        .and_then(|()| sandbox.claim())
        .and_then(|()| library.iter().try_for_each(|build| build.put_into(&sandbox.run_directory)))
        .and_then(|()| logs::begin(&sandbox, former));
    if let Err(error) = made {
        let _ = remove_directory(&sandbox.run_directory);
        sandbox.forget();
        return Err(error);
    }
    Ok(sandbox)
}

/// Takes everything back from a sandbox that could not be brought to run.
pub fn give_back(daemon: &Daemon, sandbox: &Arc<Sandbox>) {
    sandbox.ended(None);
    daemon.sandboxes.remove(sandbox);
}

fn start(sandbox: &Arc<Sandbox>, request: &RunRequest, environment: Vec<(String, String)>) -> Result<()> {
    fault::point("run-created")?;
    if sandbox.record().mode == Mode::Sandbox {
        start_gpu_half(sandbox)?;
    }
    let wanted = &request.run;
    let program = Program {
        args: wanted.command.iter().map(OsString::from).collect(),
        env: environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: (&wanted.directory).into(),
        allowed: wanted.allow.clone(),
        user: wanted.user.clone().map(|User { uid, gid, groups }| rekindle_sandbox::User {
            uid,
            gid,
            groups,
        }),
    };
    let standard = match (wanted.terminal, request.input.as_ref().map(AsFd::as_fd)) {
        (Some(size), user) => Standard::Terminal(size, user),
        (None, Some(pipe)) => Standard::Pipe(pipe),
        (None, None) => Standard::Empty,
    };
    let cpu = CpuHalf::start_with(&sandbox.spec(), &program, standard)?;
    fault::point("run-started")?;
    sandbox.runs(cpu)?;
    sandbox.is_up()
}

fn start_gpu_half(sandbox: &Arc<Sandbox>) -> Result<()> {
    AdmissionSocket::open(sandbox, wake::knocked)?;
    let worker = sandbox.start_worker()?;
    // The emulated GPU is up at once, and its settings are the user's; a real one opens beside the program's start.
    if sandbox.record().gpu.starts_with("emulated:") {
        worker.status()?;
        return Ok(());
    }
    worker.check_start()
}
