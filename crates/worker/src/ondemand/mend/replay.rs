//! Another worker takes the place of one that was lost: it builds the state, puts the base back, and does the journal once more.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CuResult};
use rekindle_protocol::fault;
use rekindle_protocol::mending::{How, Kept, Lapse};
use rekindle_protocol::operation::{
    Asynchronous, Copy, Download, EventAwait, EventElapsed, EventQuery, EventSynchronize, Id, MemoryFree,
    Origin, StreamAwait, StreamQuery, StreamSynchronize, Synchronous, Upload, dispatch, name,
};
use rekindle_protocol::worker::Phase;
use std::os::fd::OwnedFd;

use super::allocation;
use super::keep::{Inherited, Keep};
use super::told::{MOST_HASHED, Mark, hash};
use super::{Mend, Mending};
use crate::client::Client;
use crate::dispatch::{Dispatcher, Remote};
use crate::image::{self, Wish};
use crate::ondemand::journal::{Entry, Journal};
use crate::ondemand::replace::take_rings;
use crate::ondemand::replay::perform;

/// How often it is looked whether the GPU has done all.
const LOOK: Duration = Duration::from_micros(50);

/// What is taken over, while the state is built.
pub(crate) struct TakenUp {
    keep: Keep,
    inherited: Inherited,
}

/// Begins to build the state. Requests of the program wait.
pub(crate) fn take_up(
    dispatcher: &mut Dispatcher,
    held: Vec<(Kept, OwnedFd)>,
    directory: PathBuf,
    remote: &Remote,
) -> Result<(TakenUp, Vec<Phase>), String> {
    let (keep, inherited) = Keep::inherit(held)?;
    let image = inherited.image().ok_or("the copy of its memory is not there")?;
    let wish = Wish { directory, again: true, based: true, ..Wish::default() };
    let phases = image::restore(dispatcher, &image, wish, remote.clone()).map_err(|error| error.to_string())?;
    if let Some(board) = dispatcher.client.board {
        remote.use_board(board);
    }
    dispatcher.hold_requests();
    Ok((TakenUp { keep, inherited }, phases))
}

impl TakenUp {
    /// Does what the worker before has done, once all of the state is there. Whether the driver half of the client's process is
    /// attached, and how long both parts took.
    pub(crate) fn go_on(
        self,
        dispatcher: &mut Dispatcher,
        pid: i32,
        how: How,
        (store, prefix): (PathBuf, String),
    ) -> Result<(bool, Vec<Phase>), String> {
        let TakenUp { mut keep, inherited } = self;
        dispatcher.client.pid = pid;
        dispatcher.client.output.of_pid(pid);
        let began = Instant::now();
        keep.open(&mut dispatcher.client, inherited)?;
        take_rings(dispatcher, keep.journal())?;
        let attached = keep.standing().attached;
        dispatcher.client.driver_attached = attached;
        fault::point("mend-replaying").map_err(|fault| fault.to_string())?;
        let fault = replay(&mut dispatcher.client, &keep, how)?;
        fault::point("mend-replayed").map_err(|fault| fault.to_string())?;
        let mut mend = Mend::with(keep, store, prefix);
        let client = &mut dispatcher.client;
        match fault {
            false => {
                (mend.is_on, mend.is_changed, mend.is_used) = (true, false, true);
                client.mending = Some(Mending::new(Vec::new()));
            }
            true => {
                log::error!("the fault that a GPU context was lost by came once more: it is the program's own");
                mend.has_failed = true;
                mend.lapse(client, Lapse::Failed);
            }
        }
        client.bind_anew();
        dispatcher.mend = Some(mend);
        let done = Phase {
            name: "requests done once more".to_string(),
            duration_us: began.elapsed().as_micros() as u64,
            ..Phase::default()
        };
        Ok((attached, vec![done]))
    }
}

/// What the program was told, and where it comes to now.
struct Compared {
    at: u64,
    bytes: u64,
    expected: u64,
    what: &'static str,
}

/// Memory that both sides can reach: the journal's, or some to compare with.
struct HostMemory {
    device: std::sync::Arc<dyn rekindle_device::Device>,
    address: u64,
    bytes: u64,
    is_own: bool,
}

/// Does the journal once more; whether a fault of the program's own has ended that.
fn replay(client: &mut Client, keep: &Keep, how: How) -> Result<bool, String> {
    let journal = keep.current();
    let index = keep.device().ok_or("the copy of its memory is not there")?;
    let failed = |code: CuResult| format!("its requests could not be done once more: {code}");
    let told = |entry: &Entry<'_>| entry.flags.is_told().then(|| told_bytes(entry)).flatten();
    let room: u64 = journal.requests_at().filter_map(|(_, entry)| told(&entry)).map(rounded).sum();
    let brings = journal.requests_at().any(|(_, entry)| !entry.staged.is_empty());
    client.bind(index).map_err(failed)?;
    let (memory, length) = journal.memory();
    let source = brings.then(|| HostMemory::register(client, index, (memory, length as u64), false));
    let source = source.transpose().map_err(failed)?;
    let scratch = (room > 0).then(|| HostMemory::make(client, index, room)).transpose().map_err(failed)?;
    let mut next = scratch.as_ref().map_or(0, |scratch| scratch.address);
    let (mut compared, mut fresh) = (Vec::new(), Vec::new());
    let (mut is_based, mut fault) = (false, false);
    for (at, entry) in journal.requests_at() {
        if at >= journal.based_at() && !std::mem::replace(&mut is_based, true) {
            keep.put_back(client)?;
        }
        if entry.flags.has_failed() {
            continue;
        }
        let operation = name(entry.opcode).unwrap_or("a request");
        let done = match (entry.opcode, told_bytes(&entry)) {
            _ if entry.flags.waits() => wait_again(client, index, &entry),
            (opcode, _) if allocation::makes(opcode) => allocation::again(client, &entry),
            (Upload::OPCODE | Copy::OPCODE, _) if !entry.staged.is_empty() => {
                from_journal(client, &entry, memory)
            }
            (_, Some(bytes)) if entry.flags.is_told() => {
                let expected = entry.trailer.try_into().map_or(0, u64::from_le_bytes);
                compared.push(Compared { at: next, bytes, expected, what: operation });
                let at = next;
                next += rounded(bytes);
                // The program went on when it had these bytes.
                to_scratch(client, &entry, at, bytes).and_then(|()| follows(client, &entry))
            }
            _ => perform(client, &entry).inspect(|()| expect(client, &entry, journal, at, &mut fresh)),
        };
        match done {
            Ok(()) => {}
            // With all as it was this is the program's own fault, which it is to see.
            Err(code) if code.is_sticky() => {
                client.asynchronous_failure(operation, code);
                fault = true;
                break;
            }
            Err(code) => return Err(format!("{operation}, which had worked before, gave {code}")),
        }
    }
    if !is_based && !fault {
        keep.put_back(client)?;
    }
    client.close_batches();
    fault = fault || !comes_to_rest(client, index);
    if !fault {
        check(&compared, how)?;
        for (mark, address, bytes) in fresh {
            // SAFETY: pinned memory of the program that its copy has come to, and of which it was not told.
            unsafe { super::told::note(mark, address, bytes) };
        }
    }
    // What waits is answered, and pieces of staging areas are given.
    while client.poll() {}
    if !fault {
        for (thread, end) in client.threads.iter().zip(journal.staged()) {
            if end != 0 && !thread.ring.is_staged_to(end) {
                thread.ring.staged(end);
            }
        }
    }
    source.into_iter().chain(scratch).for_each(HostMemory::let_go);
    Ok(fault)
}

/// How many bytes of a copy to the host are compared.
fn told_bytes(entry: &Entry<'_>) -> Option<u64> {
    let bytes = match entry.opcode {
        Copy::OPCODE => postcard::from_bytes::<Copy>(entry.body).ok()?.bytes,
        Download::OPCODE => postcard::from_bytes::<Download>(entry.body).ok()?.bytes,
        _ => return None,
    };
    Some(bytes.min(MOST_HASHED))
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

/// A request that waited, unless it was answered. One that gives memory back is done in any case.
fn wait_again(client: &mut Client, index: usize, entry: &Entry<'_>) -> rekindle_device::Result<()> {
    let count = entry.trailer.try_into().map_or(u64::MAX, u64::from_le_bytes);
    let answered =
        client.threads.get(entry.ring).is_none_or(|thread| u64::from(thread.ring.header().reply.count()) != count);
    if answered {
        awaited(client, index, entry)?;
        if entry.opcode != MemoryFree::OPCODE {
            return Ok(());
        }
    }
    let mut failure = Ok(());
    let failed = |_: &mut Client, _, code| failure = Err(code);
    let answer = dispatch(client, Origin { ring: entry.ring }, entry.opcode, entry.body, &[], failed);
    if let Some(reply) = answer.map_err(|_| CUDA_ERROR_INVALID_VALUE)?.filter(|_| !answered) {
        client.reply(entry.ring, &reply);
    }
    failure
}

/// Waits as the program has done: what it asked for then came after that, in whichever stream.
fn awaited(client: &mut Client, index: usize, entry: &Entry<'_>) -> rekindle_device::Result<()> {
    let invalid = |_| CUDA_ERROR_INVALID_VALUE;
    let body = entry.body;
    let stream = match entry.opcode {
        StreamSynchronize::OPCODE => {
            postcard::from_bytes::<StreamSynchronize>(body).map(|one| (one.device, one.stream)).map_err(invalid)?
        }
        StreamAwait::OPCODE => {
            postcard::from_bytes::<StreamAwait>(body).map(|one| (one.device, one.stream)).map_err(invalid)?
        }
        StreamQuery::OPCODE => {
            postcard::from_bytes::<StreamQuery>(body).map(|one| (one.device, one.stream)).map_err(invalid)?
        }
        EventSynchronize::OPCODE | EventAwait::OPCODE | EventQuery::OPCODE => {
            // All three are of an event alone.
            let event: Id = postcard::from_bytes(body).map_err(invalid)?;
            let (device, handle) = client.events.get(event).map(|event| (event.device, event.handle))?;
            return client.on(device)?.event_synchronize(handle);
        }
        EventElapsed::OPCODE => {
            let elapsed: EventElapsed = postcard::from_bytes(body).map_err(invalid)?;
            return [elapsed.start, elapsed.end].into_iter().try_for_each(|event| {
                let (device, handle) = client.events.get(event).map(|event| (event.device, event.handle))?;
                client.on(device)?.event_synchronize(handle)
            });
        }
        _ => {
            while !client.is_idle(index)? {
                std::thread::sleep(LOOK);
            }
            return Ok(());
        }
    };
    let (index, stream) = client.enter(Origin { ring: entry.ring }, stream.0, stream.1)?;
    client.on(index)?.stream_synchronize(stream)
}

/// Copies from the journal what came from the host.
fn from_journal(client: &mut Client, entry: &Entry<'_>, memory: u64) -> rekindle_device::Result<()> {
    let (device, stream, to) = match entry.opcode {
        Upload::OPCODE => postcard::from_bytes::<Upload>(entry.body).map(|one| (one.device, one.stream, one.to)),
        _ => postcard::from_bytes::<Copy>(entry.body).map(|one| (one.device, one.stream, one.to)),
    }
    .map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, device, stream)?;
    let bytes = entry.staged.len() as u64;
    client.context(index)?.device.copy(to, memory + entry.staged_at as u64, bytes, stream)?;
    client.operations += 1;
    Ok(())
}

/// Copies what the program was given to where it is compared.
fn to_scratch(client: &mut Client, entry: &Entry<'_>, at: u64, bytes: u64) -> rekindle_device::Result<()> {
    let (device, stream, from) = match entry.opcode {
        Download::OPCODE => {
            postcard::from_bytes::<Download>(entry.body).map(|one| (one.device, one.stream, one.from))
        }
        _ => postcard::from_bytes::<Copy>(entry.body).map(|one| (one.device, one.stream, one.from)),
    }
    .map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, device, stream)?;
    client.context(index)?.device.copy(at, from, bytes, stream)?;
    client.operations += 1;
    Ok(())
}

/// Waits for a copy for which its thread has waited.
fn follows(client: &mut Client, entry: &Entry<'_>) -> rekindle_device::Result<()> {
    if entry.opcode != Download::OPCODE {
        return Ok(());
    }
    let download: Download = postcard::from_bytes(entry.body).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let (index, stream) = client.enter(Origin { ring: entry.ring }, download.device, download.stream)?;
    client.on(index)?.stream_synchronize(stream)
}

/// A copy to the host that was done again is to be noted when the program can see what it has brought.
fn expect(
    client: &mut Client,
    entry: &Entry<'_>,
    journal: &Journal,
    at: usize,
    fresh: &mut Vec<(Mark, u64, u64)>,
) {
    let mark = Mark(journal.mark(at));
    match entry.opcode {
        Copy::OPCODE if !entry.trailer.is_empty() => {
            if let Ok(copy) = postcard::from_bytes::<Copy>(entry.body) {
                fresh.push((mark, copy.to, copy.bytes));
            }
        }
        Download::OPCODE => {
            let download = postcard::from_bytes::<Download>(entry.body);
            let thread = client.threads.get(entry.ring);
            if let (Ok(Download { offset, bytes, end, .. }), Some(thread)) = (download, thread) {
                let address = thread.ring.staging_area() as u64 + offset;
                client.told.expect_staged(entry.ring, end, address, bytes, mark);
            }
        }
        _ => {}
    }
}

/// Waits until the GPU has done all; false if a fault has ended it.
fn comes_to_rest(client: &mut Client, index: usize) -> bool {
    loop {
        match client.is_idle(index) {
            Ok(true) => return true,
            Ok(false) => std::thread::sleep(LOOK),
            Err(code) => {
                client.note_fault(index, code);
                return false;
            }
        }
    }
}

/// Whether the program was told what comes out now.
fn check(compared: &[Compared], how: How) -> Result<(), String> {
    let differs = |one: &&Compared| {
        // SAFETY: lies in the scratch memory, to which nothing is copied any more.
        let bytes = unsafe { std::slice::from_raw_parts(one.at as *const u8, one.bytes as usize) };
        hash(bytes) != one.expected
    };
    let others: Vec<&Compared> = compared.iter().filter(differs).collect();
    let Some(first) = others.first() else { return Ok(()) };
    let found = format!(
        "{} of {} answers that the program was given came out otherwise when its requests were done once more (the first one {} of \
         {} bytes)",
        others.len(),
        compared.len(),
        first.what,
        first.bytes
    );
    match how {
        How::Strict => Err(format!("{found}; run it with --mend=loose if it may go on all the same")),
        How::Loose => {
            log::warn!("{found}; it goes on all the same");
            Ok(())
        }
    }
}

impl HostMemory {
    fn register(
        client: &Client,
        index: usize,
        (address, bytes): (u64, u64),
        is_own: bool,
    ) -> rekindle_device::Result<HostMemory> {
        let device = client.context(index)?.device.clone();
        device.host_register(address, bytes)?;
        Ok(HostMemory { device, address, bytes, is_own })
    }

    fn make(client: &Client, index: usize, bytes: u64) -> rekindle_device::Result<HostMemory> {
        let bytes = bytes.next_multiple_of(4096);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY);
        }
        HostMemory::register(client, index, (base as u64, bytes), true).inspect_err(|_| {
            // SAFETY: mapped above, and known to nobody.
            unsafe { libc::munmap(base, bytes as usize) };
        })
    }

    /// Nothing is copied from or to it any more.
    fn let_go(self) {
        if let Err(code) = self.device.host_unregister(self.address) {
            log::warn!("memory that requests were done once more from stays pinned: {code}");
        }
        if self.is_own {
            // SAFETY: mapped by `make`, and nothing borrows from it.
            unsafe { libc::munmap(self.address as *mut libc::c_void, self.bytes as usize) };
        }
    }
}
