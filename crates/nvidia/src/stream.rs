//! Work on a stream: launches, copies, fills and calls of the host.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
use rekindle_device::{Capture, Copy3D, Function, Launch, MemorySet, Result, Stream};

use crate::device::NvidiaDevice;
use crate::driver::call;
use crate::work::{Attributes, copies, extra};

const CAPTURE_NONE: u32 = 0;

/// What a stream calls on the host, once.
type HostCall = Box<dyn FnOnce() + Send>;

impl NvidiaDevice {
    #[inline]
    pub(crate) fn launch_kernel(
        &self,
        function: Function,
        launch: &Launch,
        stream: Stream,
        parameters: &[u8],
    ) -> Result<()> {
        let size = parameters.len();
        let buffer = extra(parameters, &size);
        let buffer = if parameters.is_empty() { ptr::null() } else { buffer.as_ptr() };
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        if launch.attributes.0.is_empty() && !launch.cooperative {
            // SAFETY: live handles by the crate's contract; the driver copies the parameters during the call, and
            // refuses fewer bytes than the kernel takes.
            return unsafe {
                call!(
                    self.driver,
                    cuLaunchKernel(
                        function.0,
                        gx,
                        gy,
                        gz,
                        bx,
                        by,
                        bz,
                        launch.shared,
                        stream.0,
                        ptr::null_mut(),
                        buffer
                    )
                )
            };
        }
        let attributes = Attributes::new(launch)?;
        let configuration = attributes.configuration(launch, stream.0);
        // SAFETY: as above; the configuration and its attributes are read during the call.
        unsafe { call!(self.driver, cuLaunchKernelEx(&configuration, function.0, ptr::null_mut(), buffer)) }
    }

    pub(crate) fn copy_strided(&self, copy: &Copy3D, stream: Stream) -> Result<()> {
        for one in copies(copy) {
            // SAFETY: the description is read during the call; addresses are the device's or registered memory's.
            unsafe { call!(self.driver, cuMemcpy3DAsync_v2(&one, stream.0)) }?;
        }
        Ok(())
    }

    pub(crate) fn fill(&self, set: &MemorySet, stream: Stream) -> Result<()> {
        let (to, pitch, value) = (set.address, set.pitch as usize, set.value);
        let (width, height) = (set.width as usize, set.height as usize);
        // SAFETY: the GPU checks the address.
        unsafe {
            match (set.element, height) {
                (_, 0) => Ok(()),
                (1, 1) => call!(self.driver, cuMemsetD8Async(to, value as u8, width, stream.0)),
                (2, 1) => call!(self.driver, cuMemsetD16Async(to, value as u16, width, stream.0)),
                (4, 1) => call!(self.driver, cuMemsetD32Async(to, value, width, stream.0)),
                (1, _) => {
                    call!(self.driver, cuMemsetD2D8Async(to, pitch, value as u8, width, height, stream.0))
                }
                (2, _) => {
                    call!(self.driver, cuMemsetD2D16Async(to, pitch, value as u16, width, height, stream.0))
                }
                (4, _) => call!(self.driver, cuMemsetD2D32Async(to, pitch, value, width, height, stream.0)),
                _ => Err(CUDA_ERROR_INVALID_VALUE),
            }
        }
    }

    /// A stream that is being captured is refused: its graph would make the call at every launch, and `call` can be
    /// made once. When the context dies before the stream gets there, the call is never made and its memory not freed.
    pub(crate) fn call_host(&self, stream: Stream, call: HostCall) -> Result<()> {
        if self.capture_state(stream)?.status != CAPTURE_NONE {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let argument = Box::into_raw(Box::new(call));
        // SAFETY: `run_host_call` takes the box back, once.
        let queued =
            unsafe { call!(self.driver, cuLaunchHostFunc(stream.0, run_host_call, argument.cast())) };
        if queued.is_err() {
            // SAFETY: the driver did not take it.
            drop(unsafe { Box::from_raw(argument) });
        }
        queued
    }

    pub(crate) fn capture_state(&self, stream: Stream) -> Result<Capture> {
        let (mut status, mut id) = (0, 0);
        // SAFETY: writes two values; the other outputs are optional.
        unsafe {
            call!(
                self.driver,
                cuStreamGetCaptureInfo_v2(
                    stream.0,
                    &mut status,
                    &mut id,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut()
                )
            )
        }?;
        Ok(Capture { status, id })
    }
}

unsafe extern "C" fn run_host_call(argument: *mut c_void) {
    // SAFETY: the argument is the box that `call_host` gave, and the driver calls this once.
    let call = unsafe { Box::from_raw(argument.cast::<HostCall>()) };
    if catch_unwind(AssertUnwindSafe(*call)).is_err() {
        log::error!("a host call of a stream panicked; the stream goes on");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn run(call: HostCall) {
        // SAFETY: a box as `call_host` makes it.
        unsafe { run_host_call(Box::into_raw(Box::new(call)).cast()) }
    }

    #[test]
    fn a_host_call_runs_once_and_is_freed() {
        let count = Arc::new(AtomicU32::new(0));
        let own = count.clone();
        run(Box::new(move || {
            own.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (1, 1));
    }

    #[test]
    fn a_panic_stays_inside() {
        run(Box::new(|| panic!("as tested")));
    }
}
