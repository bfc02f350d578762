//! Letting go of a checkpoint's copy of GPU memory.

use rekindle_protocol::fault;

use super::{Dispatcher, Remote};

impl Dispatcher {
    /// It is in the image: its memory is given back when that holds nobody up.
    pub(crate) fn let_go_of_shadow(&mut self, remote: Remote) {
        let Some(shadow) = &self.client.shadow else { return };
        let empty = shadow.emptying();
        if !shadow.comes_behind() {
            let _ = self.client.await_copies();
        }
        self.later.push(move || {
            if fault::point("copy-given-back").is_err() {
                return;
            }
            empty();
            remote.run(|dispatcher| {
                dispatcher.client.take_emptied_rooms();
            });
        });
    }

    /// Rooms that no copy was made in: their memory is given back when that holds nobody up.
    pub(crate) fn let_go_of_copy_rooms(&mut self, remote: Remote) {
        let rooms = std::mem::take(&mut self.client.copy_rooms);
        if rooms.is_empty() {
            return;
        }
        self.later.push(move || {
            for room in &rooms {
                if let Err(code) = room.empty() {
                    log::warn!("the memory for a checkpoint's copy stays in use: {code}");
                }
            }
            remote.run(move |dispatcher| {
                rooms.iter().for_each(|room| room.give_addresses(&mut dispatcher.client));
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
