//! A GPU half that holds still: from `Quiesce` until the program may go on, whatever happens in between.

use std::time::Duration;

use rekindle_protocol::client::Quiesced;
use rekindle_protocol::worker::{Contents, ask};

use crate::error::Result;
use crate::sandboxes::Sandbox;
use crate::workers::{Worker, gpu_half};

/// How long calls and kernels under way may take to finish.
const QUIESCE_LIMIT: Duration = Duration::from_secs(30);
/// How long the driver may take to let go of the program.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

/// Dropped, it lets the client go on as before.
pub struct QuiesceBarrier<'a> {
    sandbox: &'a Sandbox,
    worker: &'a Worker,
    pub client: Quiesced,
    /// Whether the driver half of the client is attached.
    driver_attached: bool,
    over: bool,
}

impl<'a> QuiesceBarrier<'a> {
    /// `contents`: what will become of those of GPU memory.
    pub fn begin(sandbox: &'a Sandbox, worker: &'a Worker, contents: Contents) -> Result<QuiesceBarrier<'a>> {
        let limit_ms = QUIESCE_LIMIT.as_millis() as u64;
        let action = "bring the program's GPU work to a stand";
        let client = worker.ask(action, ask::Quiesce { limit_ms, contents }, &[])?;
        let driver_attached = client.driver_attached;
        Ok(QuiesceBarrier { sandbox, worker, client, driver_attached, over: false })
    }

    /// Has each thread of the client make so many calls more. If that fails the client goes on.
    pub fn step(mut self, contents: Contents, calls: u32) -> Result<QuiesceBarrier<'a>> {
        // Whatever comes of it is the worker's to undo.
        self.over = true;
        let limit_ms = QUIESCE_LIMIT.as_millis() as u64;
        let asked = ask::Step { calls, limit_ms, contents };
        let client = self.worker.ask("have the program make a step", asked, &[])?;
        Ok(QuiesceBarrier { driver_attached: client.driver_attached, client, over: false, ..self })
    }

    /// Detaches the driver half of the client, where there is one. It stays so until the program needs it.
    pub fn detach(&mut self, pid: i32) -> Result<()> {
        if self.driver_attached {
            let limit_ms = DETACH_LIMIT.as_millis() as u32;
            self.worker.ask("detach the driver from the program", ask::Detach { pid, limit_ms }, &[])?;
            self.driver_attached = false;
        }
        Ok(())
    }

    /// Lets the client go on.
    pub fn resume(mut self) -> Result<()> {
        self.go_on()
    }

    /// The client is gone, as was wanted.
    pub fn end(mut self) {
        self.over = true;
    }

    fn go_on(&mut self) -> Result<()> {
        self.over = true;
        gpu_half::resume(self.worker, false, self.driver_attached)
    }
}

impl Drop for QuiesceBarrier<'_> {
    fn drop(&mut self) {
        if !self.over
            && let Err(error) = self.go_on()
            && !self.sandbox.is_ending()
        {
            self.sandbox
                .report_problem(format!("its GPU work was held, and could not be let go on: {error}"));
        }
    }
}
