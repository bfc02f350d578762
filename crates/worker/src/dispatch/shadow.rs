//! Letting go of a checkpoint's copy of GPU memory.

use super::{Dispatcher, Remote};
use crate::image::Shadow;

impl Dispatcher {
    /// It is in the image: its memory is given back when that holds nobody up.
    pub(crate) fn let_go_of_shadow(&mut self, remote: Remote) {
        let _ = self.client.await_copies();
        let Some(empty) = self.client.shadow.as_ref().map(Shadow::emptying) else { return };
        self.later.push(move || {
            empty();
            remote.run(|dispatcher| {
                dispatcher.client.take_emptied_rooms();
            });
        });
    }

    /// The image that is written from it is not wanted any more.
    pub(crate) fn give_up_shadow(&mut self, remote: Remote) {
        if let Some(shadow) = &self.client.shadow {
            shadow.give_up();
            self.let_go_of_shadow(remote);
        }
    }
}
