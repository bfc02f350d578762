//! The blocks of one thread that loads, taken in turn, and what is under way through each.
//!
//! ```text
//!   piece ──▶ read under way ──▶ copy under way ──▶ hash compared: the piece has arrived
//!             (disk alone)
//! ```

use super::block::{Block, Gpu};
use super::disk::{Disk, Reader};
use super::error::Result;
use super::source::{Brought, Cold, Extent, Sources, Unproved};

pub(super) struct LoadPipeline<'t, 'b, 'i> {
    /// First, so that it is dropped first: it waits for reads into the blocks.
    reader: Reader<'t>,
    blocks: &'t mut [Block<'b>],
    under_way: Vec<Option<InFlight<'t, 'i>>>,
    sources: &'t Sources<'i>,
    turn: usize,
}

struct InFlight<'t, 'i> {
    /// The part's.
    number: usize,
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
        LoadPipeline { reader: Reader::new(disk), blocks, under_way, sources, turn: 0 }
    }

    /// Begins to bring an extent of the part of this number, through the block whose turn it is. Returns the number of
    /// the part of which a piece has arrived by that.
    pub(super) fn begin(&mut self, number: usize, gpu: &'t Gpu, extent: Extent<'i>) -> Result<Option<usize>> {
        let turn = self.turn;
        self.turn = (turn + 1) % self.blocks.len();
        let arrived = self.finish(turn)?;
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
        self.under_way[turn] = Some(InFlight { number, gpu, step });
        Ok(arrived)
    }

    /// Ends all that is under way. Tells of each piece that has arrived.
    pub(super) fn finish_all(&mut self, mut arrived: impl FnMut(usize) -> Result<()>) -> Result<()> {
        for turn in (self.turn..self.blocks.len()).chain(0..self.turn) {
            self.finish(turn)?.map_or(Ok(()), &mut arrived)?;
        }
        Ok(())
    }

    fn finish(&mut self, turn: usize) -> Result<Option<usize>> {
        self.land(turn)?;
        let Some(under_way) = self.under_way[turn].take() else { return Ok(None) };
        if let Step::Copies(unproved) = under_way.step {
            self.sources.settle(&mut self.blocks[turn], unproved)?;
        }
        Ok(Some(under_way.number))
    }

    /// Has what is read through this block be copied.
    fn land(&mut self, turn: usize) -> Result<()> {
        match self.under_way[turn].take() {
            Some(InFlight { number, gpu, step: Step::Reads(cold) }) => {
                let landed = self.reader.land(turn);
                let unproved =
                    self.sources.pass_on(gpu, cold, landed, &mut self.blocks[turn], &self.reader)?;
                self.under_way[turn] = Some(InFlight { number, gpu, step: Step::Copies(unproved) });
            }
            other => self.under_way[turn] = other,
        }
        Ok(())
    }
}
