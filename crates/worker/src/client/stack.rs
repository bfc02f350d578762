//! What a context holds for the stacks of kernels.
//!
//! A driver keeps local memory for every thread that the GPU can run at once, as much as the stack limit says: 277 MB on an
//! H200 with the default of 1024 bytes. It gets more by itself when a kernel is launched that is known to need more. Only
//! kernels whose need nobody knows beforehand, for they recurse or call through pointers, rely on the limit, and such a
//! kernel faults when it has not enough. So where [faults are mended](crate::ondemand::Sharing) less is held, and the
//! program is told of the limit that it knows.

use rekindle_device::Result;
use rekindle_protocol::operation::LimitGet;

use super::Client;

/// `CU_LIMIT_STACK_SIZE`.
const STACK: u32 = 0;
/// Bytes a thread while faults are mended.
const LITTLE: u64 = 512;

impl Client {
    /// Holds less, if the program has asked for nothing else. Nothing is under way on the device.
    pub(crate) fn shrink_stacks(&mut self, device: usize) -> Result<()> {
        let known = self.on(device)?.limit(STACK)?;
        let context = self.context_mut(device)?;
        let asked = context.limits.iter().any(|(limit, _)| *limit == STACK);
        if asked || context.stack.is_some() || known <= LITTLE {
            return Ok(());
        }
        context.device.set_limit(STACK, LITTLE)?;
        context.stack = Some(known);
        log::info!(
            "device {device} holds {LITTLE} bytes for a thread's stack, and {known} when faults count"
        );
        Ok(())
    }

    /// Holds what the program relies on. Nothing is under way on the device.
    pub(crate) fn grow_stacks(&mut self, device: usize) -> Result<()> {
        let Some(known) = self.context(device)?.stack else { return Ok(()) };
        self.on(device)?.set_limit(STACK, known)?;
        self.context_mut(device)?.stack = None;
        log::info!("device {device} holds {known} bytes for a thread's stack again");
        Ok(())
    }

    /// A limit as the program knows it.
    pub(super) fn limit(&mut self, request: LimitGet) -> Result<u64> {
        let device = usize::from(request.device);
        match self.context(device)?.stack.filter(|_| request.limit == STACK) {
            Some(known) => Ok(known),
            None => self.on(device)?.limit(request.limit),
        }
    }
}
