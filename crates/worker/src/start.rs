//! Starting a worker and ending it.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::arguments::{Arguments, Purpose};
use crate::client::Client;
use crate::dispatch::Ended;
use crate::gpu::{OpenError, OpenedDriver};
use crate::link::Link;
use crate::printed::ProgramOutput;
use crate::{keeper, ondemand, serve, shared};

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
        Purpose::Program => serve::serve_last(listener, false, || arguments.gpu.open()),
        Purpose::Spare => serve::serve_last(listener, true, || arguments.gpu.open()),
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

/// A client without a program yet, on GPUs of which the first has a context.
pub(crate) fn first_client(
    opened: OpenedDriver,
    output: ProgramOutput,
    link: Arc<Link>,
) -> Result<Client, OpenError> {
    let gpus = serve::open_gpus(opened)?;
    Client::new(Arc::new(gpus), output, link).map_err(OpenError::Context)
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
