//! What can be done of a restore before it is asked for: contexts, modules and streams, and the blocks that contents are
//! copied through. What is left is the program's memory, its files, and what is recorded on streams.
//!
//! Only an image of exactly the same state can be restored by a worker that has done so, for the modules that it has
//! loaded decide where later ones have their globals.

use std::path::Path;

use rekindle_store::Image;

use super::error::{Error, Result, device};
use super::resident::Registering;
use super::restore::{Begun, begin, read_state};
use super::state::State;
use super::{replay, restore_memory};
use crate::dispatch::Desk;

pub(crate) struct Prepared {
    /// The encoded state that it was done for.
    state: Vec<u8>,
    begun: Begun,
}

/// Does it, for a worker that has nobody to serve yet. Nothing of the image is held afterwards; but with `register` the
/// memory that its contents lie in is made known to the device, and is then this worker's too.
pub(crate) fn prepare(desk: &mut Desk, image: &Path, register: bool) -> Result<()> {
    if desk.engine.board.is_some() || desk.prepared.is_some() {
        return Err(Error::Refused("this worker is in use; make a new one ready".to_string()));
    }
    let image = Image::open(image)?;
    let encoded = read_state(&image)?;
    let state = State::decode(&encoded)?;
    let mut begun = begin(&mut desk.engine, &image, &state)?;
    restore_memory::leave_free(&mut desk.engine, &state)?;
    begun.own_streams = Some(replay::replay(&mut desk.engine, &image, &state, &mut desk.ahead)?);
    if register && begun.blocks.is_some() {
        let any = desk.engine.any_device().map_err(device("be used"))?;
        begun.registering = Some(Registering::begin(&image, any));
    }
    desk.prepared = Some(Prepared { state: encoded, begun });
    Ok(())
}

impl Prepared {
    /// What was done, if it was for this state.
    pub(super) fn of(self, encoded: &[u8]) -> Result<Begun> {
        if self.state == encoded {
            return Ok(self.begun);
        }
        Err(Error::Refused(
            "this worker was made ready for another image; restore into a new one".to_string(),
        ))
    }
}
