//! The blocks of one thread that loads, taken in turn, and what is under way through each.
//!
//! ```text
//!   piece ──▶ read under way ──▶ copy under way ──▶ hash compared: the piece has arrived
//!             (disk alone)
//!   piece that the device fills by itself, before the copy of the next one: it arrives with that
//! ```

use super::block::{Block, Gpu};
use super::disk::{Disk, Reader};
use super::error::{Result, device};
use super::source::{Brought, Cold, Extent, Sources, Unproved};

pub(super) struct LoadPipeline<'t, 'b, 'i> {
    /// First, so that it is dropped first: it waits for reads into the blocks.
    reader: Reader<'t>,
    blocks: &'t mut [Block<'b>],
    under_way: Vec<Option<InFlight<'t, 'i>>>,
    sources: &'t Sources<'i>,
    turn: usize,
    /// What the device fills before the next copy, by the numbers of the parts, and on which.
    filled: Vec<(usize, &'t Gpu)>,
}

struct InFlight<'t, 'i> {
    /// The part's.
    number: usize,
    /// Those of the parts of what was filled before it.
    filled: Vec<usize>,
    gpu: &'t Gpu,
    step: Step<'i>,
}

enum Step<'i> {
    Reads(Cold<'i>),
    Copies(Option<Unproved<'i>>),
}

impl<'t, 'b, 'i> LoadPipeline<'t, 'b, 'i> {
    pub(super) fn new(
        blocks: &'t mut [Block<'b>],
        sources: &'t Sources<'i>,
        disk: &'t Disk,
    ) -> LoadPipeline<'t, 'b, 'i> {
        let under_way = blocks.iter().map(|_| None).collect();
        LoadPipeline { reader: Reader::new(disk), blocks, under_way, sources, turn: 0, filled: Vec::new() }
    }

    /// Has the device fill an extent by itself, before the copy that is begun next; false if the extent has to be brought.
    pub(super) fn fill(&mut self, number: usize, gpu: &'t Gpu, extent: &Extent<'i>) -> Result<bool> {
        let is_filled = self.sources.fill(gpu, extent, self.blocks[self.turn].stream(gpu))?;
        self.filled.extend(is_filled.then_some((number, gpu)));
        Ok(is_filled)
    }

    /// Begins to bring an extent of the part of this number, through the block whose turn it is. Tells of each piece that
    /// has arrived by that, by the number of its part.
    pub(super) fn begin(
        &mut self,
        number: usize,
        gpu: &'t Gpu,
        extent: Extent<'i>,
        arrived: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let turn = self.turn;
        self.turn = (turn + 1) % self.blocks.len();
        self.finish(turn, arrived)?;
        // Copies to another device are not behind what this one fills.
        if self.filled.iter().any(|(_, filling)| !std::ptr::eq(*filling, gpu)) {
            self.wait_for_filled(arrived)?;
        }
        let filled = self.filled.drain(..).map(|(number, _)| number).collect();
        let step = match self.sources.bring(gpu, extent, &mut self.blocks[turn], Some(&mut self.reader))? {
            Brought::Copies(unproved) => Step::Copies(unproved),
            Brought::Lies(cold) => {
                let into = self.blocks[turn].room();
                while !self.reader.may_begin() {
                    self.reader.oldest().map_or(Ok(()), |oldest| self.land(oldest))?;
                }
                // SAFETY: the block is left alone until the read has landed, and outlives the reader.
                unsafe { cold.begin(&mut self.reader, turn, into) }?;
                Step::Reads(cold)
            }
        };
        self.under_way[turn] = Some(InFlight { number, filled, gpu, step });
        Ok(())
    }

    /// Ends all that is under way. Tells of each piece that has arrived.
    pub(super) fn finish_all(&mut self, arrived: &mut impl FnMut(usize) -> Result<()>) -> Result<()> {
        for turn in (self.turn..self.blocks.len()).chain(0..self.turn) {
            self.finish(turn, arrived)?;
        }
        self.wait_for_filled(arrived)
    }

    fn wait_for_filled(&mut self, arrived: &mut impl FnMut(usize) -> Result<()>) -> Result<()> {
        self.filled.drain(..).try_for_each(|(number, gpu)| {
            gpu.wait().map_err(device("copy a buffer in"))?;
            arrived(number)
        })
    }

    fn finish(&mut self, turn: usize, arrived: &mut impl FnMut(usize) -> Result<()>) -> Result<()> {
        self.land(turn)?;
        let Some(InFlight { number, filled, step, .. }) = self.under_way[turn].take() else { return Ok(()) };
        if let Step::Copies(unproved) = step {
            self.sources.settle(&mut self.blocks[turn], unproved)?;
        }
        filled.into_iter().chain([number]).try_for_each(arrived)
    }

    /// Has what is read through this block be copied.
    fn land(&mut self, turn: usize) -> Result<()> {
        match self.under_way[turn].take() {
            Some(InFlight { number, filled, gpu, step: Step::Reads(cold) }) => {
                let landed = self.reader.land(turn);
                let unproved =
                    self.sources.pass_on(gpu, cold, landed, &mut self.blocks[turn], &self.reader)?;
                self.under_way[turn] = Some(InFlight { number, filled, gpu, step: Step::Copies(unproved) });
            }
            other => self.under_way[turn] = other,
        }
        Ok(())
    }
}
