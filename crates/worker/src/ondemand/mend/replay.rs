//! Another worker takes the place of one that was lost: it builds the state, puts the base back, and does the journal once more.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_protocol::fault;
use rekindle_protocol::mending::{MendMode, MendObstacle, RetainedItem};
use rekindle_protocol::operation::{Asynchronous, Copy, Download, Upload, name};
use rekindle_protocol::worker::Phase;

use super::again::{Awaited, LOOK, fail, free_staging, from_journal, to_scratch};
use super::compare::{Comparison, check, told_bytes};
use super::mend_state::{Inherited, MendState};
use super::{Mend, Mending, allocation};
use crate::client::Client;
use crate::dispatch::{Dispatcher, Remote};
use crate::host_memory::HostMemory;
use crate::image::{self, RestoreOptions};
use crate::ondemand::OnDemandError;
use crate::ondemand::journal::{Entry, Journal, marked};
use crate::ondemand::replace::take_rings;
use crate::ondemand::replay::perform;

/// How long it is waited for a fault to come once more, where work may wait for what the program asks for next.
const LONGEST: Duration = Duration::from_millis(300);

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
        let fault = replay(dispatcher, &keep, how)?;
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
fn replay(dispatcher: &mut Dispatcher, keep: &MendState, how: MendMode) -> Result<bool, OnDemandError> {
    let Dispatcher { client, later, .. } = dispatcher;
    let journal = keep.current();
    let devices = keep.devices();
    // What is registered is known to all contexts of the process.
    let index = devices.first().copied().ok_or(OnDemandError::NoCopy)?;
    let told = |entry: &Entry<'_>| entry.flags.is_told().then(|| told_bytes(entry)).flatten();
    let room: u64 = journal.requests_at().filter_map(|(_, entry)| told(&entry)).map(rounded).sum();
    let brings = journal.requests_at().any(|(_, entry)| !entry.staged.is_empty());
    client.bind(index).map_err(OnDemandError::Requests)?;
    let device = client.context(index).map_err(OnDemandError::Requests)?.device.clone();
    let (mut memory, mut source, mut compared) = (Vec::new(), 0, 0);
    let mut known = |mut host: HostMemory| {
        host.register(&device).map_err(OnDemandError::Requests)?;
        memory.push(host);
        Ok::<_, OnDemandError>(())
    };
    if brings {
        let (entries, at) = journal.entries_for_gpu().map_err(OnDemandError::JournalFile)?;
        source = at;
        known(entries)?;
    }
    if room > 0 {
        let lacks = |_| OnDemandError::Requests(CUDA_ERROR_OUT_OF_MEMORY);
        let scratch = HostMemory::anonymous(room).map_err(lacks)?;
        compared = scratch.address();
        known(scratch)?;
    }
    let done = once_more(client, keep, how, (&devices, source, compared));
    match done.is_ok() {
        true => memory.into_iter().for_each(|memory| later.unpin(memory)),
        // The worker ends with it.
        false => std::mem::forget(memory),
    }
    done
}

/// As [`replay`], on these devices, with the journal's entries in memory there, and copies to the host from the second address on.
fn once_more(
    client: &mut Client,
    keep: &MendState,
    how: MendMode,
    (devices, memory, mut next): (&[usize], u64, u64),
) -> Result<bool, OnDemandError> {
    let journal = keep.current();
    let (mut compared, mut awaited) = (Vec::new(), Awaited::default());
    let (mut is_based, mut fault) = (false, false);
    for (at, entry) in journal.requests_at() {
        if at >= journal.based_at() && !std::mem::replace(&mut is_based, true) {
            keep.put_back(client)?;
        }
        if entry.flags.has_failed() {
            free_staging(client, &entry);
            continue;
        }
        let operation = name(entry.opcode).unwrap_or("a request");
        let done =
            awaited.catch_up(client, entry.ticket).and_then(|()| match (entry.opcode, told_bytes(&entry)) {
                _ if entry.flags.waits() => awaited.begin(client, entry, journal.mark(at)),
                (opcode, _) if allocation::makes(opcode) => allocation::again(client, &entry),
                (Upload::OPCODE | Copy::OPCODE, _) if !entry.staged.is_empty() => {
                    from_journal(client, &entry, memory)
                }
                (_, Some(bytes)) if entry.flags.is_told() => {
                    let (expected, before) = marked(entry.trailer).unwrap_or_default();
                    compared.push(Comparison { at: next, bytes, expected, what: operation });
                    let stream = to_scratch(client, &entry, next, bytes)?;
                    next += rounded(bytes);
                    awaited.copy(client, stream, before)
                }
                _ => perform(client, &entry).and_then(|()| expect(client, &entry, journal, at)),
            });
        match done {
            Ok(()) => {}
            // With all as it was this is the program's own fault, which it is to see.
            Err(code) if code.is_sticky() => {
                client.asynchronous_failure(operation, code);
                let rest = journal.requests_at().filter(|(place, _)| *place >= at);
                rest.for_each(|(_, entry)| fail(client, &entry, code));
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
    let limit = client.work_needs_requests().then(|| Instant::now() + LONGEST);
    if !fault {
        match awaited.end(client) {
            Ok(()) => fault = !devices.iter().all(|device| comes_to_rest(client, *device, limit)),
            Err(code) => {
                client.asynchronous_failure("a request", code);
                fault = true;
            }
        }
    }
    if !fault {
        check(&compared, how)?;
    }
    // What waits is answered, and pieces of staging areas are given.
    while client.poll() {}
    Ok(fault)
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

/// A copy to the host that was done again is to be noted when the program can see what it has brought.
fn expect(client: &mut Client, entry: &Entry<'_>, journal: &Journal, at: usize) -> Result<(), CuResult> {
    let invalid = |_| CUDA_ERROR_INVALID_VALUE;
    let mark = journal.mark(at);
    match entry.opcode {
        Copy::OPCODE if !entry.trailer.is_empty() => {
            let copy: Copy = postcard::from_bytes(entry.body).map_err(invalid)?;
            client.expect_brought(entry.ring, &copy, mark)
        }
        Download::OPCODE => {
            let download = postcard::from_bytes(entry.body).map_err(invalid)?;
            client.expect_staged(entry.ring, &download, mark);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Waits until the GPU has done all, or until then; false if a fault has ended it.
fn comes_to_rest(client: &mut Client, index: usize, limit: Option<Instant>) -> bool {
    loop {
        match client.is_idle(index) {
            Ok(true) => return true,
            Ok(false) if limit.is_some_and(|limit| Instant::now() >= limit) => return true,
            Ok(false) => std::thread::sleep(LOOK),
            Err(code) => {
                client.note_fault(index, code);
                return false;
            }
        }
    }
}
