//! What can be done of a restore before it is asked for: contexts, modules and streams, and the blocks that contents are
//! copied through. What is left is the program's memory, its files, and what is recorded on streams.
//!
//! The modules that are loaded decide where later ones have their globals. So only an image whose modules and streams came
//! to be in the same way, as far as that was done ([`Course`]), can be restored by a worker that has done so; mostly the
//! one that it was done for, or another of the same program with other contents.

use std::path::Path;

use rekindle_protocol::fault;
use rekindle_store::Image;

use super::code_parts::CodeParts;
use super::course::Course;
use super::error::{Error, Result, device};
use super::replay::OwnStreams;
use super::resident::Registering;
use super::restore::{Begun, Replayed, begin, read_state};
use super::state::State;
use super::{contents, kernels, replay, restore_memory};
use crate::client::Client;
use crate::dispatch::Dispatcher;

pub(crate) struct Prepared {
    /// The id of the image that it was done for: another one of the same state has other contents.
    image: String,
    course: Course,
    begun: Begun,
}

/// Does it, for a worker that has nobody to serve yet. Nothing of the image is held afterwards; but with `register` the
/// memory that its contents lie in is made known to the device, and is then this worker's too.
pub(crate) fn prepare(dispatcher: &mut Dispatcher, image: &Path, register: bool) -> Result<()> {
    if dispatcher.client.board.is_some() || dispatcher.prepared.is_some() {
        return Err(Error::Refused("this worker is in use; make a new one ready".to_string()));
    }
    let image = Image::open(image)?;
    let state = State::decode(&read_state(&image)?)?;
    let mut begun = begin(dispatcher, &image, &state)?;
    restore_memory::leave_free(&mut dispatcher.client, &state)?;
    let course = Course::of(&state)?;
    let none = (0, OwnStreams::new());
    let own_streams = replay::replay(&mut dispatcher.client, &image, &state, &mut dispatcher.ahead, none)?;
    begun.code = Some(CodeParts::begin(Image::open(image.path())?, &state, kernels::PART));
    begun.replayed = Some(Replayed { steps: course.steps(), own_streams, whole: true });
    if register && begun.blocks.is_some() {
        let any = dispatcher.client.any_device().map_err(device("be used"))?;
        begun.registering = Some(Registering::begin(&image, any));
    }
    dispatcher.prepared = Some(Prepared { image: image.manifest().id.clone(), course, begun });
    Ok(())
}

impl Prepared {
    /// What was done, if it is what this state needs.
    pub(super) fn of(self, client: &mut Client, image: &Image, state: &State) -> Result<Begun> {
        if self.image == image.manifest().id {
            return Ok(self.begun);
        }
        let is_alike = fault::point("begins-alike").is_ok() && Course::of(state)?.begins_with(&self.course);
        if !is_alike || self.begun.registering.is_some() {
            let text = "this worker was made ready for another image; restore into a new one";
            return Err(Error::Refused(text.to_string()));
        }
        // GPUs, limits and where the driver's heaps lie are the same.
        client.history = state.history;
        let blocks = match self.begun.blocks {
            None if restore_memory::has_contents(image, state) => {
                Some(contents::prepare(client.any_device().map_err(device("be used"))?))
            }
            blocks => blocks,
        };
        let replayed = self.begun.replayed.map(|replayed| Replayed { whole: false, ..replayed });
        Ok(Begun { blocks, code: None, replayed, registering: None })
    }
}
