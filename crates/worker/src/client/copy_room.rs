//! Room for the copy of an image, before there is one: made while the program runs, or left over by the image before.
//!
//! ```text
//!  program  ──runs───────────────────┬ stands still ┬──runs──────────────────
//!  image 1   copy ═ drained ┐         
//!  room      ███████████████╪█████████████ copy ═ drained ══▶ given back once the program is quiet
//!  image 2                  └ made ready
//! ```
//!
//! A GPU takes its time to give out and take back memory of the size of a program.

use std::sync::Arc;

use rekindle_device::{Device, Memory, Result};

use super::{Client, Room};
use crate::image::Shadow;

/// What a program may allocate until its memory is copied, without the room being too small: at most so much, and this part of
/// what it has.
const SPARE: u64 = 32 << 20;
const SPARE_PART: u64 = 16;

/// Memory that is to be made for a room.
pub(crate) struct RoomRequest {
    index: usize,
    device: Arc<dyn Device>,
    bytes: u64,
}

/// Memory that was made for a room.
pub(crate) struct RoomMemory {
    index: usize,
    memory: Memory,
    bytes: u64,
}

impl RoomMemory {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl RoomRequest {
    /// Makes the memory, from whatever thread.
    pub(crate) fn make(self) -> Result<RoomMemory> {
        self.device.bind()?;
        let (memory, bytes) = Room::memory(&*self.device, self.bytes)?;
        Ok(RoomMemory { index: self.index, memory, bytes })
    }
}

impl Client {
    /// Bytes of a device that are ready for a copy.
    pub(crate) fn copy_room(&self, index: usize) -> u64 {
        self.copy_rooms.iter().filter(|room| room.index == index).map(|room| room.bytes).max().unwrap_or(0)
    }

    /// The rooms of the last image's copy are the next one's, if they have their memory yet. Else they are given back.
    pub(crate) fn take_over_shadow(&mut self) {
        let _ = self.await_copies();
        match self.shadow.as_ref().and_then(Shadow::take_over) {
            Some(rooms) => {
                self.shadow = None;
                self.copy_rooms.extend(rooms);
            }
            None => drop(self.shadow_gives_way()),
        }
    }

    /// What is to be made so that a device has room for a copy of so many bytes; none if it has, or the device is not open.
    pub(crate) fn copy_room_request(&mut self, index: usize, bytes: u64) -> Option<RoomRequest> {
        if bytes == 0 || self.copy_room(index) >= bytes {
            return None;
        }
        let device = self.context(index).ok()?.device.clone();
        Some(RoomRequest { index, device, bytes: bytes + SPARE.min(bytes / SPARE_PART) })
    }

    pub(crate) fn add_copy_room(&mut self, made: RoomMemory) -> Result<()> {
        let RoomMemory { index, memory, bytes } = made;
        self.bind(index)?;
        let room = Room::of(self, index, memory, bytes)?;
        self.copy_rooms.push(room);
        Ok(())
    }

    /// A room that has so many bytes.
    pub(crate) fn take_copy_room(&mut self, index: usize, bytes: u64) -> Option<Room> {
        let has = |room: &Room| room.index == index && room.bytes >= bytes;
        let at = self.copy_rooms.iter().position(has)?;
        Some(self.copy_rooms.swap_remove(at))
    }

    /// Gives the memory of rooms back that no copy has; false if there are none.
    pub(crate) fn copy_rooms_give_way(&mut self) -> bool {
        let rooms = std::mem::take(&mut self.copy_rooms);
        let any = !rooms.is_empty();
        for room in rooms {
            if let Err(code) = room.close(self) {
                log::warn!("the memory for a checkpoint's copy stays in use: {code}");
            }
        }
        any
    }
}
