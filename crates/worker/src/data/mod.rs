//! Data that a program has declared: objects of stores, in buffers that it has before the bytes are there.
//!
//! ```text
//!   program      DataLoad ─▶ address ┄ launch(address) ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ goes when all is there ─▶
//!   dispatch       │ addresses           └ waits ([`hold`])        ▲ mapped for the program
//!   an errand      └▶ memory daemon: Ready ─ Ready ─ … ─ Whole ────┤
//!   GPU                 │ └ poured into a window, piece by piece    │
//!                       └ OnGpu: memory that others have too ───────┘
//! ```
//!
//! The program does not come to a stop while one is on its way. What is there is a buffer which cannot be written to, and
//! which programs of one owner have together ([`declared`]). What cannot be had is never mapped, and requests that name it
//! are refused until the program frees it.

mod basin;
mod declared;
mod deferred;
mod dump;
mod dumped;
mod errand;
mod hold;
mod load;
mod pour;
mod ranges;
mod read;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Instant;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CuResult};
use rekindle_device::{Memory, Result};
use rekindle_protocol::data::{Problem, Write};
use rekindle_protocol::operation::{Answer, DataFound, DataLoad, DataOpen, DataState, Origin, encode_reply};

use crate::client::Client;
use crate::dispatch::{Dispatcher, Remote};
use errand::Errand;
use load::{Job, LoadOutcome};
use source::Source;

pub(crate) use basin::Basin;
pub(crate) use declared::{Declared, Joined, join};
pub(crate) use deferred::catch_up;
pub(crate) use dumped::Written;
pub(crate) use errand::connect;
pub(crate) use hold::admit;

/// What requests that name data which cannot be had are refused with.
const REFUSED: CuResult = CUDA_ERROR_OPERATING_SYSTEM;

/// All of one program.
#[derive(Default)]
pub(crate) struct Data {
    remote: Option<Remote>,
    loads: Vec<Load>,
    begun: u64,
    /// What is there, by address.
    declared: BTreeMap<u64, Declared>,
    /// What the program writes to and dumps, by address.
    written: BTreeMap<u64, Written>,
    /// Requests that wait for some of it.
    later: deferred::DeferredRequests,
    /// The next request waits for some of it.
    holds: bool,
}

struct Load {
    number: u64,
    device: usize,
    url: String,
    address: u64,
    /// As the program asked, and of the memory.
    bytes: u64,
    room: u64,
    state: State,
    /// Rings whose threads wait for the end.
    waiting: Vec<usize>,
}

enum State {
    Loading {
        errand: Errand,
        /// Where it is copied to: the window, and the memory there.
        hidden: Option<(u64, Memory)>,
    },
    Failed(Problem),
}

impl Load {
    fn range(&self) -> Range<u64> {
        self.address..self.address + self.room
    }

    /// Its number, as requests wait for it.
    fn part(&self) -> usize {
        self.number as usize
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
        let loaded = !self.loads.iter().any(Load::is_loading) && self.later.is_empty();
        loaded && !self.written.values().any(Written::is_under_way)
    }

    /// Requests are put aside until what they wait for is there.
    pub(crate) fn has_aside(&self) -> bool {
        !self.later.is_empty()
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
            if let State::Loading { errand, .. } = load.state {
                errand.stop();
            }
        }
        self.declared.clear();
        self.later.clear();
        std::mem::take(&mut self.written).into_values().for_each(Written::stop);
    }

    /// Where data is loaded to that holds this address: its start, its bytes, and the device.
    pub(crate) fn range(&self, address: u64) -> Option<(u64, u64, u8)> {
        let load =
            self.loads.iter().find(|load| (load.address..load.address + load.bytes).contains(&address))?;
        Some((load.address, load.bytes, load.device as u8))
    }

    fn failed_at(&self, address: u64) -> Option<usize> {
        self.loads.iter().position(|load| load.address == address && !load.is_loading())
    }
}

impl Client {
    /// Begins to load an object into a new buffer, whose address is the answer.
    pub(crate) fn load_data(&mut self, request: DataLoad<'_>) -> Result<u64> {
        self.begin_load(request, None)
    }

    /// As [`Client::load_data`], of what the program writes to and dumps.
    pub(crate) fn open_data_for_writing(&mut self, request: DataOpen<'_>) -> Result<u64> {
        let DataOpen { device, url, bytes, create } = request;
        self.begin_load(DataLoad { device, url, bytes }, Some(Write { create }))
    }

    fn begin_load(&mut self, request: DataLoad<'_>, write: Option<Write>) -> Result<u64> {
        let DataLoad { device, url, bytes } = request;
        let device = usize::from(device);
        let remote = self.data.remote.clone().ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.bind(device)?;
        let (address, room) = self.heap(device)?.take_room(bytes)?;
        let context = self.context(device)?;
        let (gpu, link) = (context.device.clone(), context.gpu.link.clone());
        let stream = context.gpu.copies.first().copied().unwrap_or(rekindle_device::Stream::LEGACY);
        self.data.begun += 1;
        let (number, url, sharer) =
            (self.data.begun, url.to_string(), self.sharer(device).filter(|_| write.is_none()));
        let (basin, remote_of_it) = (self.gpus.basin(device)?, remote.clone());
        let job = Job {
            number,
            url: url.clone(),
            bytes,
            sharer,
            write,
            gpu,
            stream,
            link,
            basin,
            remote: remote_of_it,
        };
        let ended = move |outcome| remote.run(move |dispatcher| dispatcher.end_data(number, outcome));
        let errand = match Errand::begin("data", move |stop| job.run(stop), ended) {
            Ok(errand) => errand,
            Err(error) => {
                log::error!("cannot start a thread: {error}");
                self.heap(device)?.give_addresses(address, room);
                return Err(REFUSED);
            }
        };
        let state = State::Loading { errand, hidden: None };
        self.data.loads.push(Load { number, device, url, address, bytes, room, state, waiting: Vec::new() });
        Ok(address)
    }

    /// Makes the memory that data is copied into, unless it is there: where it is mapped meanwhile.
    fn open_data(&mut self, number: u64) -> Result<u64> {
        let find = |load: &&mut Load| load.number == number;
        let load = self.data.loads.iter_mut().find(find).ok_or(REFUSED)?;
        let (device, room) = (load.device, load.room);
        match load.state {
            State::Loading { hidden: Some((window, _)), .. } => return Ok(window),
            State::Loading { .. } => {}
            State::Failed(_) => return Err(REFUSED),
        }
        let made = self.with_memory(device, |client| {
            client.bind(device)?;
            client.heap(device)?.make_hidden(room)
        })?;
        if let Some(Load { state: State::Loading { hidden, .. }, .. }) = self.data.loads.iter_mut().find(find)
        {
            *hidden = Some(made);
        }
        Ok(made.0)
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
        self.data.declared.retain(|_, declared| declared.device != device);
        for (_, written) in self.data.written.extract_if(.., |_, written| written.device == device) {
            written.stop();
        }
    }
}

impl Client {
    /// Maps what has come at the program's address: whether it was copied into the window, and from where.
    fn show_data(
        &mut self,
        load: &Load,
        hidden: Option<(u64, Memory)>,
        came: LoadOutcome,
    ) -> std::result::Result<(bool, Option<Source>), Problem> {
        let (device, address, bytes) = (load.device, load.address, load.bytes);
        let sizes = (bytes, load.room);
        let on = |client: &mut Client, show: &dyn Fn(&mut crate::memory::Heap) -> Result<()>| {
            client.bind(device).and_then(|()| show(client.heap(device)?)).map_err(load::unmapped)
        };
        let row = |version| Declared::new(device, &load.url, version, bytes);
        match came {
            LoadOutcome::Copied { version, connection, source } => {
                let Some((_, memory)) = hidden else { return Err(load::unmapped(REFUSED)) };
                on(self, &|heap| heap.show(address, sizes, memory, false))?;
                self.data.declared.insert(address, row(version).filling(connection));
                self.offer_declared(address);
                Ok((true, Some(source)))
            }
            LoadOutcome::Own { expected, source } => {
                let Some((_, memory)) = hidden else { return Err(load::unmapped(REFUSED)) };
                on(self, &|heap| heap.show(address, sizes, memory, true))?;
                self.data.written.insert(address, Written::new(device, &load.url, bytes, expected));
                Ok((true, source))
            }
            LoadOutcome::Shared { memory, room, version, connection } if room == load.room => {
                on(self, &|heap| heap.show_declared(address, sizes, memory.as_fd()))?;
                self.data.declared.insert(address, row(version).held(connection, memory));
                Ok((false, None))
            }
            LoadOutcome::Shared { .. } => Err(load::unmapped(CUDA_ERROR_INVALID_VALUE)),
        }
    }

    fn remove_hidden(&mut self, device: usize, room: u64, (window, memory): (u64, Memory)) {
        match self.bind(device).and_then(|()| self.heap(device)) {
            Ok(heap) => heap.remove_hidden(window, room, memory),
            Err(code) => log::warn!("{room} bytes that data was to be loaded into stay in use: {code}"),
        }
    }
}

impl Dispatcher {
    /// All of it is there, or it cannot be had.
    fn end_data(&mut self, number: u64, outcome: std::result::Result<LoadOutcome, Problem>) {
        let client = &mut self.client;
        let Some(at) = client.data.loads.iter().position(|load| load.number == number) else { return };
        let mut load = client.data.loads.swap_remove(at);
        let State::Loading { hidden, .. } = load.state else { return };
        let (device, room) = (load.device, load.room);
        let began = Instant::now();
        let shown = outcome.and_then(|came| client.show_data(&load, hidden, came));
        log::debug!("{}: mapped in {:.1?}", load.url, began.elapsed());
        let waiting = std::mem::take(&mut load.waiting);
        let found = match shown {
            Ok((is_copied, source)) => {
                match hidden {
                    Some((window, _)) if is_copied => {
                        client.transferred.to_gpu += load.bytes;
                        self.close_later(device, (window, room), source);
                    }
                    // Another program had filled its memory meanwhile.
                    Some(hidden) => client.remove_hidden(device, room, hidden),
                    None => {}
                }
                DataFound { loading: false, problem: None }
            }
            Err(problem) => {
                log::warn!("{}", problem.sentence);
                if let Some(hidden) = hidden {
                    client.remove_hidden(device, room, hidden);
                }
                // Its addresses stay taken until the program frees it.
                load.state = State::Failed(problem);
                let found = load.found();
                client.data.loads.push(load);
                found
            }
        };
        let reply = encode_reply(&Ok(found));
        waiting.into_iter().for_each(|ring| self.client.reply(ring, &reply));
    }

    /// Lets go of what it was loaded from and through, when that holds up nobody.
    fn close_later(&mut self, device: usize, (window, room): (u64, u64), source: Option<Source>) {
        let Some(remote) = self.client.data.remote.clone() else { return };
        let Ok(gpu) = self.client.context(device).map(|context| context.device.clone()) else { return };
        source.into_iter().for_each(|source| self.later.unpin(source));
        self.later.push(move || match gpu.bind().and_then(|()| gpu.unmap(window, room)) {
            Ok(()) => remote.run(move |dispatcher| {
                if let Ok(heap) = dispatcher.client.heap(device) {
                    heap.give_addresses(window, room);
                }
            }),
            Err(code) => log::warn!("the addresses that data was loaded through stay in use: {code}"),
        });
    }
}
