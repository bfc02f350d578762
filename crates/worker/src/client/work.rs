//! Kernels, copies, fills and the rest of what a stream does.

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED};
use rekindle_device::{Device, Launch, LaunchAttributes, Result, Stream};
use rekindle_protocol::operation::{
    Copy, CopyStrided, HostCall, LaunchKernel, LaunchKernelWith, Origin, SetMemory, WaitValue, WriteValue,
};

use super::{Client, Step};
use crate::gpu_link::SMALL;
use crate::shared::Direction;

impl Client {
    pub(super) fn launch(&mut self, origin: Origin, request: LaunchKernel, parameters: &[u8]) -> Result<()> {
        let LaunchKernel { device, stream, function, grid, block, shared } = request;
        let attributes = LaunchAttributes::default();
        let launch = Launch { grid, block, shared, cooperative: false, attributes };
        self.launch_as(origin, device, stream, function, launch, parameters)
    }

    pub(super) fn launch_with(
        &mut self,
        origin: Origin,
        request: LaunchKernelWith,
        parameters: &[u8],
    ) -> Result<()> {
        let LaunchKernelWith { device, stream, function, grid, block, shared, cooperative, attributes } =
            request;
        let launch = Launch { grid, block, shared, cooperative, attributes };
        self.launch_as(origin, device, stream, function, launch, parameters)
    }

    #[inline]
    fn launch_as(
        &mut self,
        origin: Origin,
        device: u8,
        stream: u32,
        function: u32,
        launch: Launch,
        parameters: &[u8],
    ) -> Result<()> {
        let (device, handle) = self.enter(origin, device, stream)?;
        let now = self.operations;
        let kernel = self.functions.get_mut(function)?;
        kernel.used = now;
        if kernel.device != device {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let (kernel, bank) = match kernel.handle {
            Some(loaded) => (loaded, kernel.bank),
            None => (self.kernel(function)?.1, self.functions.get(function)?.bank),
        };
        self.note_kernels(device, handle)?;
        if let Some(bank) = bank {
            self.fill_bank(device, bank, handle)?;
        }
        self.context(device)?.device.launch(kernel, &launch, handle, parameters)?;
        self.note(device, handle, |stream| Step::Launch {
            stream,
            function,
            launch,
            parameters: parameters.to_vec(),
        })
    }

    /// Issues one piece of work, and records it if the stream is under capture.
    pub(super) fn issue(
        &mut self,
        origin: Origin,
        device: u8,
        stream: u32,
        work: impl FnOnce(&dyn Device, Stream) -> Result<()>,
        step: impl FnOnce(u64) -> Step,
    ) -> Result<()> {
        let (device, stream) = self.enter(origin, device, stream)?;
        work(&*self.context(device)?.device, stream)?;
        self.note(device, stream, step)
    }

    /// Gives a stream a copy of so many bytes, of which other workers of the GPU are to know.
    pub(super) fn give_copy(
        &self,
        device: usize,
        stream: Stream,
        (to, from, bytes): (u64, u64, u64),
        copy: impl FnOnce(&dyn Device, Stream) -> Result<()>,
    ) -> Result<()> {
        let context = self.context(device)?;
        // What is recorded for a graph uses nothing of the link now.
        let link = context.gpu.link.as_deref().filter(|_| bytes > SMALL && self.recordings.is_empty());
        match link.zip(Direction::of(to, from)) {
            Some((link, way)) => link.program_copies(way, bytes, stream, || copy(&*context.device, stream)),
            None => copy(&*context.device, stream),
        }
    }

    pub(super) fn copy_bytes(&mut self, origin: Origin, request: Copy) -> Result<()> {
        let Copy { device, stream, to, from, bytes } = request;
        let (device, stream) = self.enter(origin, device, stream)?;
        let copy = |device: &dyn Device, stream| device.copy(to, from, bytes, stream);
        self.give_copy(device, stream, (to, from, bytes), copy)?;
        self.note(device, stream, |stream| Step::Copy { stream, to, from, bytes })?;
        self.count_copy(to, from, bytes);
        Ok(())
    }

    pub(super) fn copy_rows(&mut self, origin: Origin, request: CopyStrided) -> Result<()> {
        let CopyStrided { device, stream, copy } = request;
        let (device, stream) = self.enter(origin, device, stream)?;
        let bytes = copy.width.saturating_mul(copy.height).saturating_mul(copy.depth);
        let work = |device: &dyn Device, stream| device.copy_3d(&copy, stream);
        self.give_copy(device, stream, (copy.to, copy.from, bytes), work)?;
        self.note(device, stream, |stream| Step::CopyStrided { stream, copy })?;
        self.count_copy(copy.to, copy.from, bytes);
        Ok(())
    }

    /// Counts what goes between the host and a GPU. What is being recorded for a graph goes nowhere yet.
    pub(super) fn count_copy(&mut self, to: u64, from: u64, bytes: u64) {
        if self.recordings.is_empty() {
            match (self.is_pinned(to), self.is_pinned(from)) {
                (false, true) => self.transferred.to_gpu += bytes,
                (true, false) => self.transferred.from_gpu += bytes,
                _ => {}
            }
        }
    }

    fn is_pinned(&self, address: u64) -> bool {
        self.pinned.iter().any(|pinned| (pinned.address..pinned.address + pinned.bytes).contains(&address))
    }

    pub(super) fn fill(&mut self, origin: Origin, request: SetMemory) -> Result<()> {
        let SetMemory { device, stream, set } = request;
        let work = |device: &dyn Device, stream| device.set(&set, stream);
        self.issue(origin, device, stream, work, |stream| Step::Set { stream, set })
    }

    pub(super) fn await_value(&mut self, origin: Origin, request: WaitValue) -> Result<()> {
        let WaitValue { device, stream, address, value, width, flags } = request;
        if !self.waits_for_values {
            self.waits_for_values = true;
            self.load_what_is_known();
        }
        let work = |device: &dyn Device, stream| device.wait_value(stream, address, value, width, flags);
        let step = |stream| Step::WaitValue { stream, address, value, width, flags };
        self.issue(origin, device, stream, work, step)
    }

    pub(super) fn put_value(&mut self, origin: Origin, request: WriteValue) -> Result<()> {
        let WriteValue { device, stream, address, value, width, flags } = request;
        let work = |device: &dyn Device, stream| device.write_value(stream, address, value, width, flags);
        let step = |stream| Step::WriteValue { stream, address, value, width, flags };
        self.issue(origin, device, stream, work, step)
    }

    pub(super) fn call_host(&mut self, origin: Origin, request: HostCall) -> Result<()> {
        let HostCall { device, stream, token } = request;
        // The client adds a node for it instead.
        let (index, handle) = self.stream(origin, device, stream)?;
        if self.is_captured(index, handle)? {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let call = self.link.host_call(token);
        let work = |device: &dyn Device, stream| device.host_call(stream, call);
        self.issue(origin, device, stream, work, |stream| Step::HostCall { stream, token })
    }
}
