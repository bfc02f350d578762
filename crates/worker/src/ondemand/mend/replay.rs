//! Another worker takes the place of one that was lost: it builds the state, puts the base back, and does the journal once more.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_device::{Access, Device};
use rekindle_protocol::fault;
use rekindle_protocol::mending::{MendMode, MendObstacle, RetainedItem};
use rekindle_protocol::operation::{Asynchronous, Copy, Download, Upload, name};
use rekindle_protocol::worker::Phase;

use super::again::{LOOK, follows, from_journal, to_scratch, wait_again};
use super::compare::{Comparison, check, told_bytes};
use super::host_copies::Mark;
use super::mend_state::{Inherited, MendState};
use super::{Mend, Mending, allocation};
use crate::client::Client;
use crate::dispatch::{Dispatcher, Remote};
use crate::host_memory::{HostMemory, Registration};
use crate::image::{self, RestoreOptions};
use crate::ondemand::OnDemandError;
use crate::ondemand::journal::{Entry, Journal};
use crate::ondemand::replace::take_rings;
use crate::ondemand::replay::perform;

/// What is taken over, while the state is built.
pub(crate) struct MendTakeover {
    keep: MendState,
    inherited: Inherited,
}

/// Begins to build the state. Requests of the program wait.
pub(crate) fn take_up(
    dispatcher: &mut Dispatcher,
    held: Vec<(RetainedItem, OwnedFd)>,
    directory: PathBuf,
    remote: &Remote,
) -> Result<(MendTakeover, Vec<Phase>), OnDemandError> {
    let (keep, inherited) = MendState::inherit(held)?;
    dispatcher.client.need_memory_at_once();
    let image = inherited.image().ok_or(OnDemandError::NoCopy)?;
    let options = RestoreOptions { directory, again: true, based: true, ..RestoreOptions::default() };
    let phases = image::restore(dispatcher, &image, options, remote.clone())?;
    if let Some(board) = dispatcher.client.board {
        remote.use_board(board);
    }
    dispatcher.hold_requests();
    Ok((MendTakeover { keep, inherited }, phases))
}

impl MendTakeover {
    /// Does what the worker before has done, once all of the state is there. Whether the driver half of the client's process is
    /// attached, and how long both parts took.
    pub(crate) fn go_on(
        self,
        dispatcher: &mut Dispatcher,
        pid: i32,
        how: MendMode,
        (store, prefix): (PathBuf, String),
    ) -> Result<(bool, Vec<Phase>), OnDemandError> {
        let MendTakeover { mut keep, inherited } = self;
        dispatcher.client.pid = pid;
        dispatcher.client.output.of_pid(pid);
        let began = Instant::now();
        keep.open(&mut dispatcher.client, inherited)?;
        take_rings(dispatcher, keep.journal())?;
        let attached = keep.standing().attached;
        dispatcher.client.driver_attached = attached;
        fault::point("mend-replaying")?;
        let fault = replay(&mut dispatcher.client, &keep, how)?;
        fault::point("mend-replayed")?;
        let mut mend = Mend::with(keep, store, prefix);
        let client = &mut dispatcher.client;
        match fault {
            false => {
                (mend.is_on, mend.is_changed, mend.is_used) = (true, false, true);
                client.mending = Some(Mending::new(Vec::new()));
            }
            true => {
                log::error!(
                    "the fault that a GPU context was lost by came once more: it is the program's own"
                );
                mend.has_failed = true;
                mend.lapse(client, MendObstacle::Failed);
            }
        }
        dispatcher.mend = Some(mend);
        let done = Phase {
            name: "requests done once more".to_string(),
            duration_us: began.elapsed().as_micros() as u64,
            ..Phase::default()
        };
        Ok((attached, vec![done]))
    }
}

/// Does the journal once more; whether a fault of the program's own has ended that.
fn replay(client: &mut Client, keep: &MendState, how: MendMode) -> Result<bool, OnDemandError> {
    let journal = keep.current();
    let devices = keep.devices();
    // What is registered is known to all contexts of the process.
    let index = devices.first().copied().ok_or(OnDemandError::NoCopy)?;
    let told = |entry: &Entry<'_>| entry.flags.is_told().then(|| told_bytes(entry)).flatten();
    let room: u64 = journal.requests_at().filter_map(|(_, entry)| told(&entry)).map(rounded).sum();
    let brings = journal.requests_at().any(|(_, entry)| !entry.staged.is_empty());
    client.bind(index).map_err(OnDemandError::Requests)?;
    let (memory, length) = journal.memory();
    let device = client.context(index).map_err(OnDemandError::Requests)?.device.clone();
    let source = brings.then(|| Registration::new(&device, memory, length as u64, Access::ReadWrite));
    let source = source.transpose().map_err(OnDemandError::Requests)?;
    let scratch = (room > 0).then(|| scratch(&device, room)).transpose().map_err(OnDemandError::Requests)?;
    let done = once_more(client, keep, how, (&devices, scratch.as_ref().map_or(0, HostMemory::address)));
    match done.is_ok() {
        // Nothing is copied from or to them any more.
        true => drop((source, scratch)),
        // The worker ends with them.
        false => std::mem::forget((source, scratch)),
    }
    done
}

/// As [`replay`], on these devices, with copies to the host from this address on.
fn once_more(
    client: &mut Client,
    keep: &MendState,
    how: MendMode,
    (devices, mut next): (&[usize], u64),
) -> Result<bool, OnDemandError> {
    let journal = keep.current();
    let memory = journal.memory().0;
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
            _ if entry.flags.waits() => wait_again(client, devices, &entry),
            (opcode, _) if allocation::makes(opcode) => allocation::again(client, &entry),
            (Upload::OPCODE | Copy::OPCODE, _) if !entry.staged.is_empty() => {
                from_journal(client, &entry, memory)
            }
            (_, Some(bytes)) if entry.flags.is_told() => {
                let expected = entry.trailer.try_into().map_or(0, u64::from_le_bytes);
                compared.push(Comparison { at: next, bytes, expected, what: operation });
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
            Err(code) => return Err(OnDemandError::Otherwise { operation, code }),
        }
    }
    if !is_based && !fault {
        keep.put_back(client)?;
    }
    client.close_batches();
    fault = fault || !devices.iter().all(|device| comes_to_rest(client, *device));
    if !fault {
        check(&compared, how)?;
        for (mark, address, bytes) in fresh {
            // SAFETY: pinned memory of the program that its copy has come to, and of which it was not told.
            unsafe { super::host_copies::note(mark, address, bytes) };
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
    Ok(fault)
}

/// Memory of the host to compare with.
fn scratch(device: &Arc<dyn Device>, bytes: u64) -> Result<HostMemory, CuResult> {
    let mut memory = HostMemory::anonymous(bytes).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    memory.register(device)?;
    Ok(memory)
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
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
