//! The driver half of the client's process: the real driver, open there without a context, which CRIU cannot take. The
//! driver detaches it, and attaches it again when the client asks for that.

use rekindle_cuda::{CUDA_ERROR_NOT_SUPPORTED, CuResult};

use crate::dispatch::{DispatchError, Remote};

#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverHalfError {
    #[error("the driver could not {step} process {pid}: {code}")]
    Step { step: &'static str, pid: i32, code: CuResult },
    #[error(
        "the driver could not lock process {pid}: {code}: a profiler or debugger has been used in it, such as \
         torch.profiler; run it without, and take it then"
    )]
    Profiled { pid: i32, code: CuResult },
    #[error("the worker was not told the program's pid")]
    NoPid,
    #[error("the driver answered {0}")]
    Attach(#[source] CuResult),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
}

/// `pid`: the client's, if it is not known yet. It stays detached until the client needs it.
pub(crate) fn detach(remote: &Remote, pid: Option<i32>, limit_ms: u32) -> Result<(), DriverHalfError> {
    let (platform, pid) = remote.ask(move |dispatcher| {
        let client = &mut dispatcher.client;
        client.pid = pid.unwrap_or(client.pid);
        (client.gpus.platform.clone(), client.pid)
    })?;
    let failed = |step, code| DriverHalfError::Step { step, pid, code };
    platform.process_lock(pid, limit_ms).map_err(|code| match code {
        // What the driver says of a process to which CUPTI has attached itself.
        CUDA_ERROR_NOT_SUPPORTED => DriverHalfError::Profiled { pid, code },
        code => failed("lock", code),
    })?;
    if let Err(code) = platform.process_checkpoint(pid) {
        let _ = platform.process_unlock(pid);
        return Err(failed("detach from", code));
    }
    remote.run(|dispatcher| dispatcher.client.driver_attached = false);
    Ok(())
}

pub(crate) fn attach(remote: &Remote) -> Result<(), DriverHalfError> {
    let (platform, pid, is_attached) = remote.ask(|dispatcher| {
        let client = &dispatcher.client;
        (client.gpus.platform.clone(), client.pid, client.driver_attached)
    })?;
    // The client had given it up, and it could not be detached.
    if is_attached {
        return Ok(());
    }
    if pid == 0 {
        return Err(DriverHalfError::NoPid);
    }
    let attached = platform.process_restore(pid).and_then(|()| platform.process_unlock(pid));
    attached.map_err(DriverHalfError::Attach)?;
    remote.run(|dispatcher| dispatcher.client.driver_attached = true);
    Ok(())
}
