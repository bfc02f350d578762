//! Starting a worker and ending it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use rekindle_protocol::fault;
use rekindle_protocol::worker::Contents;

use crate::arguments::{Arguments, Purpose};
use crate::client::Client;
use crate::control::{Control, Kind};
use crate::dispatch::{Dispatcher, Ended, remote};
use crate::gpu::{OpenError, OpenedDriver};
use crate::gpus::Gpus;
use crate::link::Link;
use crate::ondemand::Conversations;
use crate::printed::ProgramOutput;
use crate::shared::LinkSettings;
use crate::{image, keeper, ondemand, shared};

/// Runs a worker; `arguments` are those after `rekindled worker`.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if let [argument, number] = &arguments[..]
        && argument == keeper::ARGUMENT
    {
        return keeper::main(number);
    }
    if let [argument, number] = &arguments[..]
        && argument == ondemand::ARGUMENT
    {
        return ondemand::main(number);
    }
    fix_addresses();
    prepare_process();
    let arguments = match Arguments::parse(arguments.into_iter()) {
        Ok(arguments) => arguments,
        Err(error) => {
            log::error!("{error}");
            return ExitCode::from(2);
        }
    };
    let listener = match listen(&arguments.listen) {
        Ok(listener) => listener,
        Err(error) => {
            log::error!("cannot listen on {}: {error}", arguments.listen.display());
            return ExitCode::FAILURE;
        }
    };
    let ended = match arguments.purpose {
        Purpose::Program => serve_as(listener, false, ProgramOutput::followed(), || arguments.gpu.open()),
        Purpose::Spare => serve_as(listener, true, ProgramOutput::followed(), || arguments.gpu.open()),
        Purpose::Shared { tenant, keep } => {
            shared::serve(listener, (tenant, arguments.gpu.to_string()), keep, || arguments.gpu.open())
        }
    };
    let _ = std::fs::remove_file(&arguments.listen);
    match ended {
        Ended::Done => ExitCode::SUCCESS,
        Ended::Failed(problem) => {
            log::error!("{problem}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn prepare_process() {
    allow_descriptors();
    rekindle_protocol::descriptors::make_room();
    let log = env_logger::Env::new().filter_or("REKINDLE_LOG", "info");
    // A second initialisation in one process would be refused, and the first one serves.
    let _ = env_logger::Builder::from_env(log).try_init();
    end_on_panic();
}

/// Serves one client, as the daemon says that connects to `listener`. `open` opens the driver; the first device's
/// context is made at once, so that it is there when the client comes.
///
/// Threads of the worker may outlast the return; the process is to end after it.
pub fn serve(listener: UnixListener, open: impl FnOnce() -> Result<OpenedDriver, OpenError>) -> Ended {
    serve_as(listener, false, ProgramOutput::default(), open)
}

fn serve_as(
    listener: UnixListener,
    spare: bool,
    output: ProgramOutput,
    open: impl FnOnce() -> Result<OpenedDriver, OpenError>,
) -> Ended {
    let (remote, inbox) = remote();
    let link = Link::new();
    let (conversations, listens) = (Arc::new(Conversations::default()), listener.as_raw_fd());
    let kind = if spare { Kind::Spare } else { Kind::Alone };
    let control = Control::new(listener, remote.clone(), link.clone(), kind, conversations.clone());
    let control_thread = std::thread::Builder::new().name("control".into()).spawn(move || control.run());
    if let Err(error) = control_thread {
        return Ended::Failed(format!("cannot start a thread: {error}"));
    }
    match open().and_then(|opened| first_client(opened, output, link)) {
        Ok(client) => {
            let again = |dispatcher: &mut Dispatcher, inbox: &_| {
                ondemand::do_again(dispatcher, inbox, listens, &conversations)
            };
            let mut dispatcher = Dispatcher::new(client);
            if spare {
                dispatcher.blocks = image::blocks(&dispatcher.client, Contents::Saved);
            }
            let ended = dispatcher.run(&inbox, again);
            dispatcher.client.output.end();
            let _ = fault::point("worker-ending");
            // What it has registered goes with the process; a driver that is asked would wait for work that may go on.
            std::mem::forget(dispatcher.client.ipc.end());
            inbox.refuse(match &ended {
                Ended::Done => "the worker is ending".to_string(),
                Ended::Failed(problem) => problem.clone(),
            });
            ended
        }
        Err(error) => {
            // The daemon hears why when it asks for something.
            let problem = error.to_string();
            log::error!("{problem}");
            inbox.refuse(problem.clone());
            remote.wait_until_heard();
            Ended::Failed(problem)
        }
    }
}

/// A client without a program yet, on GPUs of which the first has a context.
pub(crate) fn first_client(
    opened: OpenedDriver,
    output: ProgramOutput,
    link: Arc<Link>,
) -> Result<Client, OpenError> {
    let settings = LinkSettings::from_env()?;
    let client = Gpus::new(opened, settings).and_then(|gpus| Client::new(Arc::new(gpus), output, link));
    client.map_err(OpenError::Context)
}

pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Starts this program again without address randomisation, so that what a driver places in the address space of the
/// process comes out at the same addresses in the next worker.
fn fix_addresses() {
    const READ: libc::c_ulong = 0xffff_ffff;
    // SAFETY: reads and sets flags of this process that take effect at the next exec.
    let fixed = unsafe {
        let now = libc::personality(READ);
        if now == -1 || now & libc::ADDR_NO_RANDOMIZE != 0 {
            return;
        }
        libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) != -1
            && libc::personality(READ) & libc::ADDR_NO_RANDOMIZE != 0
    };
    if fixed {
        let mut all = std::env::args_os();
        let name = all.next().unwrap_or_default();
        let error = std::process::Command::new("/proc/self/exe").arg0(name).args(all).exec();
        log::warn!("cannot start again without address randomisation: {error}");
    }
}

/// A handle of GPU memory that is passed on takes a descriptor.
fn allow_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads into and sets from one valid structure.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// A worker that has lost a thread would leave its program hanging.
fn end_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        std::process::abort();
    }));
}
