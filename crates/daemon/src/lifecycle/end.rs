//! Ending a program.

use std::time::Duration;

use nix::sys::signal::Signal;
use rekindle_sandbox::Sandbox as CpuHalf;

use crate::error::Result;
use crate::sandboxes::Sandbox;

/// How long a program has between the request to end and the end.
pub const GRACE: Duration = Duration::from_secs(5);
/// How long the kernel has to take a killed sandbox down.
const END_LIMIT: Duration = Duration::from_secs(10);

/// SIGTERM first, SIGKILL for the whole namespace after the grace.
pub fn end(sandbox: &Sandbox, cpu: &CpuHalf, grace: Duration) -> Result<()> {
    // A program that is just ending needs no signal any more.
    let _ = cpu.signal(Signal::SIGTERM as i32);
    if sandbox.wait_end(Some(grace)).is_none() {
        cpu.kill()?;
        sandbox.wait_end(Some(END_LIMIT));
    }
    Ok(())
}
