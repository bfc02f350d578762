//! Memory of GPUs that holds objects, which programs of one owner have together: the first one fills it, and all further ones
//! map it.
//!
//! ```text
//!   claim ─▶ nobody has it: Fill ── filled ─▶ Holder ─┐
//!   claim ─▶ somebody fills it: waits ──────▶ Holder ─┼─ the last one goes, and the descriptor here with it
//!   claim ─▶ it is there ───────────────────▶ Holder ─┘
//! ```
//!
//! This process has descriptors of it and no GPU. It is nobody's cache: memory goes with its last user.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rekindle_protocol::data::{Sharer, Version};

/// Which memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub sharer: Sharer,
    pub url: String,
    pub version: Version,
}

enum Copy {
    /// Somebody fills it.
    Coming,
    There {
        memory: Arc<OwnedFd>,
        room: u64,
        holders: usize,
    },
}

#[derive(Default)]
pub struct Copies {
    known: Mutex<HashMap<Key, Copy>>,
    changed: Condvar,
}

/// Somebody has it mapped.
pub struct Holder {
    copies: Arc<Copies>,
    key: Key,
}

/// Somebody fills it, for those who come meanwhile too.
pub struct Filler {
    copies: Arc<Copies>,
    key: Key,
    filled: bool,
}

pub enum Claimed {
    There { memory: Arc<OwnedFd>, room: u64, holder: Holder },
    Fill(Filler),
}

impl Copies {
    pub fn new() -> Arc<Copies> {
        Arc::default()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Copy>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether some version of an object is there, or on its way.
    pub fn has(&self, sharer: &Sharer, url: &str) -> bool {
        self.known().keys().any(|key| key.sharer == *sharer && key.url == url)
    }

    /// Gives it, once it is there, or has the asker fill it.
    pub fn claim(self: &Arc<Copies>, key: &Key) -> Claimed {
        let mut known = self.known();
        loop {
            match known.get_mut(key) {
                Some(Copy::There { memory, room, holders }) => {
                    *holders += 1;
                    let holder = Holder { copies: self.clone(), key: key.clone() };
                    return Claimed::There { memory: memory.clone(), room: *room, holder };
                }
                Some(Copy::Coming) => {
                    known = self.changed.wait(known).unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    known.insert(key.clone(), Copy::Coming);
                    return Claimed::Fill(Filler { copies: self.clone(), key: key.clone(), filled: false });
                }
            }
        }
    }
}

impl Filler {
    /// It is in this memory, which whoever fills it has mapped.
    pub fn filled(mut self, memory: OwnedFd, room: u64) -> Holder {
        self.filled = true;
        let copy = Copy::There { memory: Arc::new(memory), room, holders: 1 };
        self.copies.known().insert(self.key.clone(), copy);
        self.copies.changed.notify_all();
        Holder { copies: self.copies.clone(), key: self.key.clone() }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        if !self.filled {
            // The next one who waits fills it.
            self.copies.known().remove(&self.key);
            self.copies.changed.notify_all();
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut known = self.copies.known();
        if let Some(Copy::There { holders, .. }) = known.get_mut(&self.key) {
            *holders -= 1;
            if *holders == 0 {
                known.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(owner: &str, tag: &str) -> Key {
        let sharer = Sharer { owner: owner.into(), gpu: "g".into() };
        let version = Version { bytes: 1, tag: Some(tag.into()), written: 0 };
        Key { sharer, url: "s3://b/k".into(), version }
    }

    fn memory() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn filler(copies: &Arc<Copies>, key: &Key) -> Filler {
        match copies.claim(key) {
            Claimed::Fill(filler) => filler,
            Claimed::There { .. } => panic!("nobody has filled it"),
        }
    }

    #[test]
    fn the_memory_of_the_first_is_that_of_all_and_goes_with_the_last() {
        let copies = Copies::new();
        let first = filler(&copies, &key("a", "1"));
        let waits = {
            let copies = copies.clone();
            std::thread::spawn(move || match copies.claim(&key("a", "1")) {
                Claimed::There { room, holder, .. } => (room, holder),
                Claimed::Fill(_) => panic!("it is being filled"),
            })
        };
        let first = first.filled(memory(), 7);
        let (room, second) = waits.join().unwrap();
        assert_eq!(room, 7);
        // Other owners and other versions have memory of their own.
        drop(filler(&copies, &key("b", "1")));
        drop(filler(&copies, &key("a", "2")));
        drop(first);
        assert!(matches!(copies.claim(&key("a", "1")), Claimed::There { .. }));
        drop(second);
        assert!(!copies.has(&key("a", "1").sharer, "s3://b/k"));
    }

    #[test]
    fn who_gives_up_leaves_it_to_the_next() {
        let copies = Copies::new();
        let first = filler(&copies, &key("a", "1"));
        let waits = {
            let copies = copies.clone();
            std::thread::spawn(move || drop(filler(&copies, &key("a", "1"))))
        };
        drop(first);
        waits.join().unwrap();
        assert!(!copies.has(&key("a", "1").sharer, "s3://b/k"));
    }
}
