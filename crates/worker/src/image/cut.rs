//! What of GPU memory is written while the program stands still, and what beside it when it goes on.

use rekindle_protocol::worker::{TransferPath, TransferReport};

use super::block::{Gpu, Preparing};
use super::contents::PartLocation;
use super::copy_out::Span;
use super::drain::{SaveContext, Shadow};
use super::error::{Error, Result, device};
use super::partial::{NewBytes, Partial};
use super::pre_copy::PreCopy;
use super::runs::{self, Run};
use super::shadow::{Copies, SaveTask};
use super::timer::Timer;
use super::transfer_path;
use crate::client::Client;
use crate::ondemand::Spans;

pub(super) enum Cut {
    /// All is written at once.
    Still,
    /// Of all a copy is made.
    Whole(Copies),
    /// Of some of what is new there is a copy.
    Part(Partial),
}

impl Cut {
    /// The program stands still, and devices are idle, or a copy is to come `behind` what they have to do. Blocks that are needed
    /// no more are given up.
    pub(super) fn make(
        client: &mut Client,
        gpus: &[Option<Gpu>],
        blocks: &mut Option<Preparing>,
        (work, runs): (&SaveTask, &[Run]),
        (ahead, behind, shares): (&PreCopy, bool, bool),
        timer: &mut Timer,
    ) -> Result<(Cut, TransferReport)> {
        client.shadow_gives_way();
        let places: Vec<PartLocation> = runs.iter().map(|run| run.location).collect();
        let bytes = runs::bytes(runs);
        let unused_bytes = work.iter().map(|(location, _)| location.bytes).sum::<u64>() - bytes;
        let why = transfer_path::lack(client, &places).map_err(device("tell its free memory"))?;
        let begun = Copies::begin(client, runs, behind)?;
        // Those that were too small.
        client.copy_rooms_give_way();
        if let Some(begun) = begun {
            let why = "the GPU has room for a copy of all".to_string();
            let taken = TransferReport {
                way: TransferPath::Shadow,
                why,
                bytes,
                unused_bytes,
                new_bytes: bytes,
                ..TransferReport::default()
            };
            return Ok((Cut::Whole(begun), taken));
        }
        if behind {
            return Err(Error::Refused(
                "the GPU has no room any more for the copy that was to be made behind the program's work; try again".to_string(),
            ));
        }
        let why = if ahead.why.is_empty() { why.unwrap_or_default() } else { ahead.why.clone() };
        let named = if client.writes_unnamed {
            ", and it has changed memory that no request was known to write to"
        } else {
            ""
        };
        let why = why + named;
        let ahead_bytes = ahead.bytes;
        let taken = TransferReport {
            way: ahead.way,
            why,
            bytes,
            unused_bytes,
            ahead_bytes,
            new_bytes: bytes,
            still_bytes: bytes,
            ..TransferReport::default()
        };
        let Some(preparing) = blocks.take() else { return Ok((Cut::Still, taken)) };
        let mut ready = preparing.wait().map_err(device("pin host memory to copy through"))?;
        let found = Partial::find(client, gpus, &mut ready, (work, runs))?;
        let Some(mut partial) = found else { return Ok((Cut::Still, taken)) };
        *blocks = Some(Preparing::Ready(ready));
        timer.lap("hashes", bytes);
        if let Err(error) = partial.shadow(client) {
            partial.close(client);
            return Err(error);
        }
        if let copied @ 1.. = partial.bytes().copied {
            timer.lap("shadow copy", copied);
        }
        if !shares && client.may_be_guarded() {
            partial.guard();
        }
        let NewBytes { copied, guarded, still } = partial.bytes();
        let taken = TransferReport {
            new_bytes: copied + guarded + still,
            guarded_bytes: guarded,
            still_bytes: still,
            ..taken
        };
        Ok((Cut::Part(partial), taken))
    }

    /// What is to be written at once.
    pub(super) fn at_once<'w>(&self, work: &'w SaveTask, runs: &[Run]) -> Vec<Span<'w>> {
        match self {
            Cut::Still => runs::spans(runs, work),
            Cut::Whole(_) => Vec::new(),
            Cut::Part(partial) => partial.rest(work),
        }
    }

    pub(super) fn partial(&self) -> Option<&Partial> {
        match self {
            Cut::Part(partial) => Some(partial),
            Cut::Still | Cut::Whole(_) => None,
        }
    }

    /// Returns when the program may change its memory.
    pub(super) fn wait(&mut self, client: &mut Client, timer: &mut Timer) -> Result<()> {
        if let Cut::Whole(copies) = self
            && !copies.comes_behind()
        {
            copies.wait(client)?;
            timer.lap("shadow copy", copies.bytes());
        }
        Ok(())
    }

    /// Whether parts are whole only when they are drained.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Cut::Still => false,
            Cut::Whole(_) => true,
            Cut::Part(partial) => partial.bytes().drained() > 0,
        }
    }

    pub(super) fn close(self, client: &mut Client) {
        match self {
            Cut::Still => {}
            Cut::Whole(copies) => copies.close(client),
            Cut::Part(partial) => partial.close(client),
        }
    }

    /// What writes the rest of it, `work` with a copy of a part of it, to which the program comes by the addresses of `buffers`;
    /// none if there is nothing.
    pub(super) fn drain(
        self,
        client: &mut Client,
        (work, buffers): (SaveTask, Spans),
        gpus: Vec<Option<Gpu>>,
        blocks: Option<Preparing>,
        save: SaveContext,
    ) -> Option<Shadow> {
        match self {
            Cut::Whole(copies) => Some(copies.drain(work, gpus, blocks, save)),
            Cut::Part(partial) if partial.bytes().drained() > 0 => {
                Some(partial.drain(work, buffers, gpus, blocks, save))
            }
            nothing => {
                nothing.close(client);
                None
            }
        }
    }
}
