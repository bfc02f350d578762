//! What an image says of its program's code.

use rekindle_store::{Image, PartKind};

/// Whether nothing that the program knows depends on what was loaded in its context, so that one which has served another
/// program does as well as a new one. Images from before that was noted do not say.
pub fn shares_past(half: &Image) -> bool {
    let mut states = half.parts(PartKind::WorkerState).peekable();
    states.peek().is_some() && states.all(|state| state.attributes["code"]["ordered"] == false)
}
