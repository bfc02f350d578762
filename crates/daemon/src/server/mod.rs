//! Answering the command line: a socket, a thread for each connection, one request on each.

mod error;
mod kill;
mod remove;
mod startup;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::daemon::{Call, Event, Report, Request, Take};
use rekindle_protocol::frame::{self, FrameError, Limits};
use rekindle_protocol::service::ServiceRequest;
use rekindle_sandbox::GuestTask;
use serde_json::{Value, json};

use crate::checkpoint::CheckpointRequest;
use crate::claims::Claim;
use crate::connection_limit::{ConnectionLimit, ConnectionSlot};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::events;
use crate::frameworks::App;
use crate::host::client_library;
use crate::host::doctor;
use crate::host::paths::Paths;
use crate::images::PASSING;
use crate::lifecycle::run::{self, RunRequest};
use crate::lifecycle::{exec, images, portions};
use crate::nodes::NodeError;
use crate::recovery;
use crate::reply::Reply;
use crate::restore::{RestoreRequest, load_order, unwritten};
use crate::sandboxes::Sandbox;
use crate::sandboxes::recovery::Recovery;
use crate::sandboxes::{logs, traces};
use crate::services;
use crate::sleep::wake;
use crate::{checkpoint, containers, migration, nodes, page, restore, sleep, tenants};

pub use error::ServerError;

/// How long a connection may take to say what it wants.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How many connections may be about to say that at once; others wait.
const MOST_ASKING: u32 = 256;

/// Takes the socket's place, unless another daemon answers there.
pub fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |source| Error::io("listen on", path, source);
    if UnixStream::connect(path).is_ok() {
        return Err(ServerError::SocketInUse { socket: path.to_path_buf() }.into());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let former = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    nix::sys::stat::umask(former);
    let listener = listener.map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Answers until the process ends.
pub fn serve(daemon: &Arc<Daemon>, listener: &UnixListener) -> Result<()> {
    let asking = Arc::new(ConnectionLimit::new(MOST_ASKING));
    loop {
        asking.wait();
        match listener.accept() {
            Ok((stream, _)) => {
                let (daemon, asking) = (daemon.clone(), asking.enter());
                let begun = std::thread::Builder::new().spawn(move || {
                    if let Err(error) = converse(&daemon, &stream, asking) {
                        log::warn!("a request was not answered: {error}");
                    }
                });
                if let Err(error) = begun {
                    log::error!("a connection is closed unheard: {error}");
                }
            }
            // The listener is gone, so that nobody would ever be heard again.
            Err(source)
                if matches!(source.raw_os_error(), Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK)) =>
            {
                return Err(Error::io("listen on", &daemon.paths.socket, source));
            }
            Err(error) => {
                log::error!("the next connection waits: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn converse(daemon: &Arc<Daemon>, stream: &UnixStream, asking: ConnectionSlot) -> Result<()> {
    // One for a program's standard input, or three for a command's input and output.
    let limits = Limits { descriptors: 3, time: Some(REQUEST_LIMIT), ..Limits::default() };
    let received = frame::receive_within(stream, &limits);
    drop(asking);
    let (call, descriptors): (Call, _) = match received {
        Ok(received) => received,
        Err(frame::FrameError::Closed) => return Ok(()),
        Err(error) => {
            frame::send(stream, &Event::Failed { message: error.to_string(), exit_code: None }, &[])?;
            return Err(error.into());
        }
    };
    let reply = Reply::new(stream);
    let is_for_us = check_places(daemon, &call);
    let last = is_for_us.is_ok() && matches!(call.request, Request::Shutdown);
    let answered = is_for_us.and_then(|()| answer_with(daemon, call.request, descriptors, &reply));
    let event = match answered {
        Ok(value) => Event::Done { value },
        Err(error) => {
            log::info!("a request failed: {error}");
            Event::Failed { message: error.to_string(), exit_code: error.exit_code() }
        }
    };
    if last {
        log::info!("asked to shut down; sandboxes go on");
        // The next command is to find no daemon rather than one that ends.
        let _ = fs::remove_file(&daemon.paths.socket);
        daemon.pool.close();
        client_library::clear(&daemon.paths);
    }
    let sent = reply.send(&event);
    if last {
        std::process::exit(0);
    }
    match sent {
        // A user who did not wait for the answer misses nothing.
        Err(frame::FrameError::Closed) => Ok(()),
        other => Ok(other?),
    }
}

/// A user who names directories does not mean a daemon that has others.
fn check_places(daemon: &Daemon, call: &Call) -> Result<()> {
    let Paths { state, runs, socket, .. } = &daemon.paths;
    let canonical = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let pairs = [
        ("state directory", state, &call.wanted_state),
        ("directory for what runs", runs, &call.wanted_runs),
    ];
    for (what, found, wanted) in pairs {
        if let Some(wanted) = wanted
            && canonical(wanted) != canonical(found)
        {
            let (socket, found, wanted) = (socket.clone(), found.clone(), wanted.clone());
            return Err(ServerError::OtherDaemon { socket, what, found, wanted }.into());
        }
    }
    Ok(())
}

/// What came with a request to be a program's standard input: a pipe, which CRIU can take with what is in it.
fn input(descriptors: Vec<OwnedFd>) -> Result<Option<OwnedFd>> {
    let found = descriptors.len();
    if found > 1 {
        return Err(FrameError::TooManyDescriptors { found, most: 1 }.into());
    }
    let Some(input) = descriptors.into_iter().next() else { return Ok(None) };
    let kind = nix::sys::stat::fstat(&input).map(|found| found.st_mode & libc::S_IFMT);
    match kind {
        Ok(libc::S_IFIFO) => Ok(Some(input)),
        _ => Err(Error::system("take a program's standard input", std::io::Error::other("it is no pipe"))),
    }
}

/// What came with a request to use a terminal by.
fn terminal_user(descriptor: OwnedFd) -> Result<OwnedFd> {
    match rekindle_sandbox::terminal::is_packet_socket(descriptor.as_fd()) {
        true => Ok(descriptor),
        false => {
            Err(Error::system("use a terminal", std::io::Error::other("what came is no socket for packets")))
        }
    }
}

/// Tells of an image that was made, by the field of the answer that has its name.
fn made(answer: Value) -> Value {
    let name = answer["image"].as_str().or(answer["name"].as_str());
    events::tell_of_image("image-made", name.unwrap_or_default());
    answer
}

/// Has the name of an image that is made be nobody else's meanwhile.
fn making<'a>(daemon: &'a Daemon, name: &str) -> Result<Claim<'a, String>> {
    match name.starts_with(PASSING) {
        true => Err(NodeError::PassingName { name: name.to_string() }.into()),
        false => daemon.making.take(name),
    }
}

fn one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd> {
    let mut all = descriptors.into_iter();
    all.next().filter(|_| all.len() == 0).ok_or(Error::Descriptors { expected: 1 })
}

/// Answers what comes with descriptors, and what does not.
fn answer_with(
    daemon: &Arc<Daemon>,
    request: Request,
    descriptors: Vec<OwnedFd>,
    reply: &Reply<'_>,
) -> Result<Value> {
    let (name, work) = match request {
        Request::Exec { name, command, environment, directory } => {
            let own = |(name, value): (String, String)| (name.into(), value.into());
            let work = GuestTask::Command {
                args: command.into_iter().map(Into::into).collect(),
                env: environment.into_iter().map(own).collect(),
                cwd: directory.map(Into::into),
            };
            let sandbox = daemon.sandboxes.get(&name)?;
            let code = exec::exec(daemon, &sandbox, work, descriptors, reply)?;
            return Ok(json!({ "name": name, "exit_code": code }));
        }
        Request::Export { image } => {
            return images::export(&daemon.store, &image, one(descriptors)?, reply);
        }
        Request::Import { name } => {
            let _making = name.as_ref().map(|name| making(daemon, name)).transpose()?;
            return Ok(made(images::import(daemon, one(descriptors)?, name.as_deref(), reply)?));
        }
        Request::Tag { image, other } => {
            let _making = making(daemon, &other)?;
            return Ok(made(images::tag(&daemon.store, &image, &other)?));
        }
        Request::CopyOut { name, path } => (name, GuestTask::Pack(path.into())),
        Request::CopyIn { name, path } => (name, GuestTask::Unpack(path.into())),
        Request::Attach { name, again } => {
            let user = terminal_user(one(descriptors)?)?;
            let attached = exec::attach(daemon, &name, user, again, reply)?;
            return Ok(json!({ "name": name, "attached": attached }));
        }
        Request::Run(ref run) if run.terminal.is_some() && !descriptors.is_empty() => {
            let user = terminal_user(one(descriptors)?)?;
            return answer(daemon, request, Some(user), reply);
        }
        request => return answer(daemon, request, input(descriptors)?, reply),
    };
    exec::copy(daemon, &*daemon.sandboxes.get(&name)?, work, descriptors, reply)?;
    Ok(json!({ "name": name }))
}

/// Brings back what an image was taken of: a program, or a container.
fn restore(daemon: &Daemon, request: &RestoreRequest<'_>, reply: &Reply<'_>) -> Result<Report> {
    let opened = restore::open(daemon, request, reply)?;
    match &opened.metadata.container {
        Some(of) => containers::restore(daemon, &opened.image, &opened.metadata, of, request, reply),
        None => restore::restore(daemon, opened, request, reply),
    }
}

/// An image that the user asks for.
fn image_of(take: &Take) -> CheckpointRequest<'_> {
    let gpu_wait = Duration::from_millis(take.gpu_wait_ms);
    let Take { to, leave_running, prove, .. } = take;
    CheckpointRequest { to, leave_running: *leave_running, gpu_wait, prove: *prove, ..Default::default() }
}

/// The answer's fields are documented in `docs/commands.md`.
fn answer(
    daemon: &Arc<Daemon>,
    request: Request,
    input: Option<OwnedFd>,
    reply: &Reply<'_>,
) -> Result<Value> {
    let sandbox = |name: &str| daemon.sandboxes.get(name);
    Ok(match request {
        Request::Run(run) => match &run.from {
            Some(image) => {
                let app = App::new(run.command.clone(), run.directory.clone(), run.environment.clone())?;
                let request = RestoreRequest {
                    image,
                    name: run.name.as_deref(),
                    gpu: run.gpu.as_deref(),
                    app: Some(&app),
                    order: load_order::usual(),
                    network: run.network,
                    publish: &run.publish,
                    limits: run.limits,
                    volumes: &run.mounts.volumes,
                    tenant: run.tenant.as_deref(),
                    ..RestoreRequest::default()
                };
                json!(sandbox(&restore(daemon, &request, reply)?.name)?.shown())
            }
            None => {
                let recovery = run.recovery.clone();
                let recovery =
                    recovery.map(|plan| Recovery::new(plan, run.environment.clone(), run.allow.clone()));
                let request = RunRequest { run: *run, framework: false, input, recovery };
                let sandbox = run::run(daemon, request)?;
                recovery::follow(daemon, &sandbox);
                json!(sandbox.shown())
            }
        },
        Request::Framework(request) => {
            let _making = making(daemon, &request.image)?;
            made(json!(checkpoint::framework::make(daemon, request, reply)?))
        }
        Request::Wait { name } => json!(wait(sandbox(&name)?, reply)),
        Request::List => {
            let all = daemon.sandboxes.all();
            let sandboxes: Vec<_> = all.iter().map(|sandbox| sandbox.shown()).collect();
            let (pool, contexts) = (daemon.pool.shown(), daemon.pool.contexts.shown());
            let (handed_on, _) = daemon.data.handed_on();
            let targets = daemon.pool.targets();
            json!({
                "sandboxes": sandboxes,
                "pool": pool,
                "pool_targets": targets,
                "contexts": contexts,
                "handed_on": handed_on,
            })
        }
        Request::Stats { names } => {
            let wanted = match names.is_empty() {
                true => daemon.sandboxes.all().into_iter().filter(|sandbox| sandbox.is_live()).collect(),
                false => names.iter().map(|name| sandbox(name)).collect::<Result<Vec<_>>>()?,
            };
            let stats: Vec<_> = wanted.iter().map(|sandbox| sandbox.stats()).collect();
            let (handed_on, moves) = daemon.data.handed_on();
            let (pool, targets) = (daemon.pool.shown(), daemon.pool.targets());
            json!({
                "sandboxes": stats,
                "pool": pool,
                "pool_targets": targets,
                "handed_on": handed_on,
                "handed_on_moves": moves,
            })
        }
        Request::Logs { name, follow, own, since_us, tail, lines } => {
            let request = logs::LogRequest { follow, own, since_us, tail, lines };
            logs::show(&sandbox(&name)?, &request, reply)?;
            json!({ "name": name })
        }
        Request::Kill { names, signal, grace_ms } => {
            kill::kill(daemon, &names, signal, grace_ms.map(Duration::from_millis))?
        }
        Request::Checkpoint { name, take } => {
            let _making = making(daemon, &take.to)?;
            made(json!(checkpoint::checkpoint(daemon, &sandbox(&name)?, &image_of(&take), reply)?))
        }
        Request::CheckpointPid { pid, mode, take } => {
            let _making = making(daemon, &take.to)?;
            made(json!(checkpoint::checkpoint_pid(daemon, pid, mode, &image_of(&take), reply)?))
        }
        Request::CheckpointContainer { container, engine, take } => {
            let _making = making(daemon, &take.to)?;
            let engine = engine.as_deref();
            made(json!(containers::checkpoint(daemon, &container, engine, &image_of(&take), reply)?))
        }
        Request::Restore(wanted) => {
            let request = RestoreRequest {
                image: &wanted.image,
                name: wanted.name.as_deref(),
                gpu: wanted.gpu.as_deref(),
                gpu_map: &wanted.gpu_map,
                order: wanted.order.unwrap_or_else(load_order::usual),
                record: wanted.record,
                verify: wanted.verify,
                network: wanted.network,
                publish: &wanted.publish,
                limits: wanted.limits,
                volumes: &wanted.volumes,
                tenant: wanted.tenant.as_deref(),
                input,
                ..RestoreRequest::default()
            };
            json!(restore(daemon, &request, reply)?)
        }
        Request::Device { name, gpu } => containers::device::make(daemon, &name, gpu.as_deref())?,
        Request::KeepOrder { name } => load_order::keep(daemon, &*sandbox(&name)?)?,
        Request::Mark { name } => unwritten::mark(&*sandbox(&name)?)?,
        Request::KeepUnwritten { name } => unwritten::keep(daemon, &*sandbox(&name)?)?,
        Request::SetLimits { name, link_weight, sm_share, sm_weight, sm_most } => {
            let none = rekindle_protocol::daemon::Limits::default();
            let wished =
                rekindle_protocol::daemon::Limits { link_weight, sm_share, sm_weight, sm_most, ..none };
            portions::set(daemon, &*sandbox(&name)?, wished)?
        }
        Request::Sleep { name, level } => json!(sleep::sleep(daemon, &sandbox(&name)?, level, reply)?),
        Request::Wake { name } => json!(wake::wake(&sandbox(&name)?, reply)?),
        Request::Migrate { name, gpu, rounds } => {
            json!(migration::migrate(daemon, &sandbox(&name)?, (&gpu, rounds), reply)?)
        }
        Request::MigrateTo { name, node, gpu, rounds, publish, forward_ms } => {
            let forward = forward_ms.map(Duration::from_millis);
            let request = nodes::Departure { node: &node, gpu, rounds, publish, forward };
            json!(nodes::depart(daemon, &sandbox(&name)?, request, reply)?)
        }
        Request::TakeBack { name } => nodes::take_back(&*sandbox(&name)?)?,
        Request::Node => nodes::own(daemon)?,
        Request::Nodes => nodes::list(daemon),
        Request::AddNode { name, address, key, arrays } => nodes::add(daemon, name, address, &key, arrays)?,
        Request::RemoveNode { name } => nodes::remove(daemon, &name)?,
        Request::Serve { name, image, service } => services::serve(daemon, &name, &image, &service)?,
        Request::ServeWorkflow { name, workflow } => services::serve_workflow(daemon, &name, &workflow)?,
        Request::Services { tenant } => services::list(daemon, tenant.as_deref())?,
        Request::Page => page::address(daemon)?,
        Request::Scale { name, tenant, min, max, stages, context_ms } => {
            let wanted = ServiceRequest { min, max, stages, context_ms, ..ServiceRequest::default() };
            services::scale(daemon, (&name, tenant.as_deref()), &wanted)?
        }
        Request::Drain { name, tenant, remove, now } => {
            services::drain(daemon, (&name, tenant.as_deref()), (remove, now), reply)?
        }
        Request::CreateTenant { name, quota } => tenants::create(daemon, &name, quota)?,
        Request::Tenants => tenants::list(daemon),
        Request::SetTenant { name, quota } => tenants::set(daemon, &name, quota)?,
        Request::TenantToken { name, revoke: None } => tenants::add_token(daemon, &name)?,
        Request::TenantToken { name, revoke: Some(id) } => tenants::revoke(daemon, &name, &id)?,
        Request::RemoveTenant { name } => tenants::remove(daemon, &name)?,
        Request::Events => {
            events::show(reply)?;
            json!({})
        }
        Request::Trace { name } => {
            let sandbox = sandbox(&name)?;
            json!({ "name": name, "traces": traces::read(&sandbox.traces) })
        }
        Request::Images => images::list(daemon)?,
        Request::Inspect { image } => images::inspect(&daemon.store, &image)?,
        Request::Verify { image } => images::verify(&daemon.store, &image, reply)?,
        Request::Remove { images } => images::remove(daemon, &images)?,
        Request::Forget { names, only_sandboxes } => remove::remove(daemon, &names, only_sandboxes)?,
        Request::Prune { images } => remove::prune(daemon, images)?,
        Request::Doctor => json!(doctor::examine(&daemon.paths, &daemon.program)),
        Request::Version => json!({ "version": env!("CARGO_PKG_VERSION") }),
        Request::Shutdown => json!({}),
        // Answered above.
        Request::Exec { .. }
        | Request::Attach { .. }
        | Request::CopyOut { .. }
        | Request::CopyIn { .. }
        | Request::Export { .. }
        | Request::Import { .. }
        | Request::Tag { .. } => Value::Null,
    })
}

/// Waits for the sandbox's end, and for that of those who go on in its place; gives up when the user is gone.
fn wait(mut sandbox: Arc<Sandbox>, reply: &Reply<'_>) -> Value {
    while !reply.is_gone() {
        match sandbox.successor() {
            Some(successor) => sandbox = successor,
            None if sandbox.wait_end(Some(Duration::from_millis(500))).is_none() => {}
            None if sandbox.record().goes_on() => std::thread::sleep(Duration::from_millis(20)),
            None => break,
        }
    }
    json!(sandbox.shown())
}
