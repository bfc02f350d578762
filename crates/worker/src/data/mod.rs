//! Data that a program has declared: objects of stores, in buffers that it has before the bytes are there.
//!
//! ```text
//!   program      DataLoad ─▶ address ┄ launch(address) ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ goes when all is there ─▶
//!   dispatch       │ room, window          └ waits ([`hold`])        ▲ mapped for the program
//!   a thread       └▶ memory daemon: Ready ─ Ready ─ … ─ Whole ──────┘
//!   GPU                 └ copied through the window, piece by piece
//! ```
//!
//! The buffer is one of the program's from the start: images, sleep and the rest know nothing else of it, and the program
//! does not come to a stop while one is on its way. What cannot be had is never mapped, and requests that name it are
//! refused until the program frees it.

mod hold;
mod load;

use std::ops::Range;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CuResult};
use rekindle_device::{Access, Memory, Result};
use rekindle_protocol::data::Problem;
use rekindle_protocol::operation::{Answer, DataFound, DataLoad, DataState, Origin, encode_reply};

use crate::client::Client;
use crate::dispatch::{Dispatcher, Remote};
use load::{Job, Left, Loader};

pub(crate) use hold::admit;
pub(crate) use load::connect;

/// What requests that name data which cannot be had are refused with.
const REFUSED: CuResult = CUDA_ERROR_OPERATING_SYSTEM;

/// All of one program.
#[derive(Default)]
pub(crate) struct Data {
    remote: Option<Remote>,
    loads: Vec<Load>,
    begun: u64,
    /// The next request waits for some of it.
    holds: bool,
}

struct Load {
    number: u64,
    device: usize,
    address: u64,
    /// As the program asked, and of the memory.
    bytes: u64,
    room: u64,
    state: State,
    /// Rings whose threads wait for the end.
    waiting: Vec<usize>,
}

enum State {
    Loading { loader: Loader, memory: Memory, window: u64 },
    Failed(Problem),
}

impl Load {
    fn range(&self) -> Range<u64> {
        self.address..self.address + self.room
    }

    fn is_loading(&self) -> bool {
        matches!(self.state, State::Loading { .. })
    }

    fn found(&self) -> DataFound {
        match &self.state {
            State::Loading { .. } => DataFound { loading: true, problem: None },
            State::Failed(problem) => {
                DataFound { loading: false, problem: Some((problem.kind as u32, problem.sentence.clone())) }
            }
        }
    }
}

impl Data {
    /// By whom those that load tell that they have ended.
    pub(crate) fn connect(&mut self, remote: Remote) {
        self.remote = Some(remote);
    }

    pub(crate) fn remote(&self) -> Option<Remote> {
        self.remote.clone()
    }

    /// Nothing is on its way.
    pub(crate) fn is_settled(&self) -> bool {
        !self.loads.iter().any(Load::is_loading)
    }

    pub(crate) fn holds(&self) -> bool {
        self.holds
    }

    /// Why what could not be had was not.
    pub(crate) fn problem(&self) -> Option<&Problem> {
        self.loads.iter().find_map(|load| match &load.state {
            State::Failed(problem) => Some(problem),
            State::Loading { .. } => None,
        })
    }

    /// The program is no more: nothing is loaded for it.
    pub(crate) fn stop(&mut self) {
        for load in self.loads.drain(..) {
            if let State::Loading { loader, .. } = load.state {
                loader.stop();
            }
        }
    }

    fn failed_at(&self, address: u64) -> Option<usize> {
        self.loads.iter().position(|load| load.address == address && !load.is_loading())
    }
}

impl Client {
    /// Begins to load an object into a new buffer, whose address is the answer.
    pub(crate) fn load_data(&mut self, request: DataLoad<'_>) -> Result<u64> {
        let DataLoad { device, url, bytes } = request;
        let device = usize::from(device);
        let remote = self.data.remote.clone().ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.bind(device)?;
        let (address, room, memory) = self.with_memory(device, |client| {
            client.bind(device)?;
            client.heap(device)?.add_unmapped(bytes)
        })?;
        let window = self.open_window(device, room, memory).inspect_err(|_| self.give_up(device, address))?;
        let context = self.context(device)?;
        let gpu = context.device.clone();
        let stream = context.gpu.copies.first().copied().unwrap_or(rekindle_device::Stream::LEGACY);
        self.data.begun += 1;
        let number = self.data.begun;
        let job = Job { url: url.to_string(), bytes, window, gpu, stream };
        let ended = move |outcome| remote.run(move |dispatcher| dispatcher.end_data(number, outcome));
        let loader = match Loader::begin(job, ended) {
            Ok(loader) => loader,
            Err(error) => {
                log::error!("cannot start a thread: {error}");
                if self.on(device)?.unmap(window, room).is_ok() {
                    self.heap(device)?.give_addresses(window, room);
                }
                self.give_up(device, address);
                return Err(REFUSED);
            }
        };
        let state = State::Loading { loader, memory, window };
        self.data.loads.push(Load { number, device, address, bytes, room, state, waiting: Vec::new() });
        Ok(address)
    }

    /// Where memory is mapped while it is filled.
    fn open_window(&mut self, device: usize, room: u64, memory: Memory) -> Result<u64> {
        let heap = self.heap(device)?;
        let granularity = heap.granularity();
        let window = heap.take_addresses(room, granularity, 0)?;
        let gpu = self.context(device)?.device.clone();
        let mapped = gpu.map(window, room, memory).and_then(|()| {
            gpu.protect(window, room, Access::ReadWrite).inspect_err(|_| {
                let _ = gpu.unmap(window, room);
            })
        });
        if mapped.is_err() {
            self.heap(device)?.give_addresses(window, room);
        }
        mapped.map(|()| window)
    }

    fn give_up(&mut self, device: usize, address: u64) {
        if let Ok(heap) = self.heap(device) {
            heap.remove_unmapped(address, true);
        }
    }

    /// How it stands with the data at this address; with `wait`, once it is all there or cannot be had.
    pub(crate) fn data_found(&mut self, origin: Origin, request: &DataState) -> Answer<DataFound> {
        let found = self.data.loads.iter_mut().find(|load| load.address == request.address);
        match found {
            // An ordinary buffer by now.
            None => Answer::Now(Ok(DataFound { loading: false, problem: None })),
            Some(load) if request.wait && load.is_loading() => {
                load.waiting.push(origin.ring);
                Answer::Later
            }
            Some(load) => Answer::Now(Ok(load.found())),
        }
    }

    /// Forgets data that could not be had and that the program frees; false if it is something else.
    pub(crate) fn forget_data(&mut self, address: u64) -> bool {
        let Some(at) = self.data.failed_at(address) else { return false };
        let load = self.data.loads.swap_remove(at);
        if let Ok(heap) = self.heap(load.device) {
            heap.give_addresses(load.address, load.room);
        }
        true
    }

    /// As [`Client::forget_data`], for all on a device.
    pub(crate) fn forget_all_data(&mut self, device: usize) {
        let of_it = self.data.loads.iter().filter(|load| load.device == device);
        let addresses: Vec<u64> = of_it.map(|load| load.address).collect();
        for address in addresses {
            self.forget_data(address);
        }
    }
}

impl Dispatcher {
    /// All of it is there, or it cannot be had.
    fn end_data(&mut self, number: u64, outcome: std::result::Result<Left, Problem>) {
        let client = &mut self.client;
        let Some(at) = client.data.loads.iter().position(|load| load.number == number) else { return };
        let mut load = client.data.loads.swap_remove(at);
        let State::Loading { memory, window, .. } = load.state else { return };
        let (device, address, room) = (load.device, load.address, load.room);
        let outcome = outcome.and_then(|left| {
            let shown = client.on(device).and_then(|gpu| {
                gpu.map(address, room, memory)?;
                gpu.protect(address, room, Access::ReadWrite)
            });
            shown.map(|()| left).map_err(load::unmapped)
        });
        let waiting = std::mem::take(&mut load.waiting);
        let found = match outcome {
            Ok(left) => {
                client.transferred.to_gpu += load.bytes;
                self.close_window_later((device, window, room), left);
                DataFound { loading: false, problem: None }
            }
            Err(problem) => {
                log::warn!("{}", problem.sentence);
                let closed = client.on(device).and_then(|gpu| gpu.unmap(window, room));
                if let Ok(heap) = client.heap(device) {
                    // Its addresses stay taken until the program frees it.
                    heap.remove_unmapped(address, false);
                    if closed.is_ok() {
                        heap.give_addresses(window, room);
                    }
                }
                load.state = State::Failed(problem);
                let found = load.found();
                client.data.loads.push(load);
                found
            }
        };
        let reply = encode_reply(&Ok(found));
        waiting.into_iter().for_each(|ring| self.client.reply(ring, &reply));
    }

    /// Lets go of what it was loaded through, when that holds up nobody.
    fn close_window_later(&mut self, (device, window, room): (usize, u64, u64), left: Left) {
        let Some(remote) = self.client.data.remote.clone() else { return };
        let Ok(gpu) = self.client.context(device).map(|context| context.device.clone()) else { return };
        self.later.push(move || {
            drop(left);
            match gpu.bind().and_then(|()| gpu.unmap(window, room)) {
                Ok(()) => remote.run(move |dispatcher| {
                    if let Ok(heap) = dispatcher.client.heap(device) {
                        heap.give_addresses(window, room);
                    }
                }),
                Err(code) => log::warn!("the addresses that data was loaded through stay in use: {code}"),
            }
        });
    }
}
