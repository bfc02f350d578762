//! User constants of modules in pieces: each piece has a bank of them, and the program one address for all.
//!
//! ```text
//!   program ──copy──▶ buffer of globals ──before each launch, on its stream──▶ bank of that kernel's piece
//! ```
//! The address lies in the module's buffer of globals. Before the program has asked for it nobody can have written
//! there, and banks are as they were loaded.
//!
//! A graph's banks are filled before each launch of it. In one that writes constants itself, each kernel also has a node
//! before it that fills its bank.

use rekindle_cuda::CUDA_ERROR_INVALID_IMAGE;
use rekindle_device::{Copy3D, Result, Stream};
use rekindle_protocol::operation::{Id, NodeAction};

use super::{Body, Client, GraphStep, Recipe, Step};

/// The constants of one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bank {
    address: u64,
    /// In the module's buffer of globals.
    from: u64,
    bytes: u64,
}

impl Client {
    /// The program gets to know where the constants of this module are: from now on, launches read what is there.
    pub(super) fn tell_constants(&mut self, module: Id) -> Result<()> {
        let Body::Pieces(pieces) = &mut self.modules.get_mut(module)?.body else { return Ok(()) };
        if std::mem::replace(&mut pieces.constants_told, true) {
            return Ok(());
        }
        self.constants_told = true;
        let loaded = self.functions.iter().filter(|(_, function)| function.module == module);
        let loaded: Vec<Id> =
            loaded.filter(|(_, function)| function.handle.is_some()).map(|(id, _)| id).collect();
        for id in loaded {
            let bank = self.bank(module, &self.functions.get(id)?.name.clone())?;
            self.functions.get_mut(id)?.bank = bank;
        }
        Ok(())
    }

    /// The bank of a piece that is loaded, if launches are to fill it.
    pub(super) fn bank(&mut self, module: Id, kernel: &str) -> Result<Option<Bank>> {
        let object = self.modules.get(module)?;
        let Body::Pieces(pieces) = &object.body else { return Ok(None) };
        let (device, globals) = (object.device, pieces.globals.address);
        let Some(piece) = pieces.piece(kernel).filter(|_| pieces.constants_told) else { return Ok(None) };
        let prepared = self.prepared(module)?;
        let Some(constants) = prepared.constants() else { return Ok(None) };
        let (offset, _) = prepared.global(&constants.name).ok_or(CUDA_ERROR_INVALID_IMAGE)?;
        let (address, _) = self.on(device)?.global(piece, &constants.name)?;
        Ok(Some(Bank {
            address: address.wrapping_sub(offset - constants.range.start),
            from: globals + constants.range.start,
            bytes: constants.range.end - constants.range.start,
        }))
    }

    /// Brings a bank up to what the program has written, before what follows on the stream. What is captured does not,
    /// for the program knows how many nodes its graph has: launches of the graph do.
    pub(super) fn fill_bank(&mut self, device: usize, bank: Bank, stream: Stream) -> Result<()> {
        if !self.recordings.is_empty() && self.is_capturing(device, stream)? {
            return Ok(());
        }
        self.context(device)?.device.copy(bank.address, bank.from, bank.bytes, stream)
    }

    /// The same for all kernels of a graph.
    pub(super) fn fill_banks(&mut self, device: usize, recipe: &Recipe, stream: Stream) -> Result<()> {
        let mut kernels = Vec::new();
        recipe.kernels(&mut kernels);
        kernels.sort_unstable();
        kernels.dedup();
        for kernel in kernels {
            if let Some(bank) = self.functions.get(kernel)?.bank {
                self.fill_bank(device, bank, stream)?;
            }
        }
        Ok(())
    }

    /// Whether a graph writes constants itself: then its own kernels read what it has written by then. Which of the globals
    /// that it writes are constants the code tells, which a restore leaves to be taken apart.
    pub(super) fn writes_constants(&mut self, recipe: &Recipe) -> Result<bool> {
        if !self.constants_told {
            return Ok(false);
        }
        let told = self.modules.iter().filter_map(|(id, module)| {
            let pieces = module.body.pieces().filter(|pieces| pieces.constants_told)?;
            Some((id, pieces.globals.address, pieces.globals.bytes))
        });
        let written = told.filter(|(_, start, bytes)| {
            recipe.writes(&|address| address.checked_sub(*start).is_some_and(|offset| offset < *bytes))
        });
        for (id, start, _) in written.collect::<Vec<_>>() {
            let constants = self.prepared(id)?.constants().map(|constants| constants.range);
            let is_constant = |address: u64| {
                constants
                    .as_ref()
                    .is_some_and(|range| (start + range.start..start + range.end).contains(&address))
            };
            if recipe.writes(&is_constant) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Bank {
    /// What brings it up to what the program has written.
    pub(super) fn copy(&self) -> Copy3D {
        Copy3D::linear(self.address, self.from, self.bytes)
    }
}

impl Recipe {
    fn kernels(&self, all: &mut Vec<Id>) {
        for step in &self.steps {
            match step {
                GraphStep::Kernel { function, .. } => all.push(*function),
                GraphStep::Child { recipe, .. } => recipe.kernels(all),
                GraphStep::Conditional { bodies, .. } => bodies.iter().for_each(|body| body.kernels(all)),
                GraphStep::Disabled(step) => {
                    if let GraphStep::Kernel { function, .. } = &**step {
                        all.push(*function);
                    }
                }
                GraphStep::Captured(recording) => {
                    for step in &recording.steps {
                        match step {
                            Step::Launch { function, .. } => all.push(*function),
                            Step::Graph { recipe, .. } => recipe.kernels(all),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a copy or a fill begins at such an address.
    fn writes(&self, there: &dyn Fn(u64) -> bool) -> bool {
        self.steps.iter().any(|step| match step {
            GraphStep::Copy { copy, .. } => there(copy.to),
            GraphStep::Set { set, .. } => there(set.address),
            GraphStep::Child { recipe, .. } => recipe.writes(there),
            GraphStep::Conditional { bodies, .. } => bodies.iter().any(|body| body.writes(there)),
            GraphStep::Action { action: NodeAction::Staged { copy, .. }, .. } => there(copy.to),
            GraphStep::Captured(recording) => recording.steps.iter().any(|step| match step {
                Step::Copy { to, .. } => there(*to),
                Step::CopyStrided { copy, .. } => there(copy.to),
                Step::Set { set, .. } => there(set.address),
                Step::Graph { recipe, .. } => recipe.writes(there),
                _ => false,
            }),
            _ => false,
        })
    }
}
