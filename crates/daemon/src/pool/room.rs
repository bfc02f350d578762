//! Waiting workers and GPU memory: those beyond the least are made where much is free, and all go for a program that
//! lacks memory.

use std::sync::{Arc, Weak};

use rekindle_device::DeviceInfo;
use rekindle_protocol::worker::Status;

use super::{State, WorkerPool};
use crate::host::gpu;
use crate::workers::Worker;

/// Such a part of a GPU's memory is left to programs, which may want more: no worker is made beyond the least where
/// less is free, and where it is less than half of that, those there are go one by one.
const LEFT: u64 = 8;
/// What a waiting worker was found to have of an NVIDIA GPU's memory, about.
const HELD: u64 = 512 << 20;

/// How much memory a worker has found on its GPU, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    free: u64,
    total: u64,
}

/// What the workers of a GPU say of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// There are none, or nobody has asked.
    #[default]
    Nobody,
    /// All have something else to do.
    Unclear,
    Free(FreeMemory),
}

/// What of a GPU's memory matters to those that wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: Sight,
    /// Waiting workers went for a program, and much has not been free since.
    pub gave_up: bool,
    /// A program is just taking memory that it lacked.
    pub is_held: bool,
}

impl FreeMemory {
    /// The least of a worker's GPUs. What keeps a program that sleeps says what was free before that, and does not count.
    pub fn of(status: &Status) -> Option<FreeMemory> {
        if status.asleep {
            return None;
        }
        let memory =
            |(free, device): (&u64, &DeviceInfo)| FreeMemory { free: *free, total: device.total_memory };
        status.free_bytes.iter().zip(&status.devices).map(memory).min_by_key(|memory| memory.free)
    }

    fn is_scarce(&self) -> bool {
        self.free < self.total / LEFT / 2
    }
}

impl Sight {
    /// Whether much is free.
    pub fn is_ample(&self) -> bool {
        matches!(self, Sight::Free(memory) if memory.free >= memory.total / LEFT)
    }
}

impl Pressure {
    /// How many are to wait of `wanted`, if `have` do and `least` are to in any case.
    pub fn allows(&self, wanted: usize, have: usize, least: usize) -> usize {
        let always = if self.gave_up { 0 } else { least.min(wanted) };
        let allowed = match self.memory {
            _ if self.is_held => have,
            sight if sight.is_ample() => wanted,
            Sight::Free(memory) if memory.is_scarce() => {
                have.saturating_sub(1).max(always.max(have.min(least)))
            }
            // It is all free.
            Sight::Nobody if self.gave_up => least,
            _ => have.max(always),
        };
        allowed.min(wanted)
    }
}

/// No worker is made for this GPU, so that memory which was given up is there for the one that lacked it, until this is
/// dropped.
pub struct HeldRoom {
    pool: Arc<WorkerPool>,
    gpu: String,
}

impl HeldRoom {
    /// Ends as many waiting workers as have about so many bytes. False if there are none.
    pub fn give_up(&self, missing: u64) -> bool {
        let going = self.pool.take_out(&self.gpu, missing.div_ceil(HELD).max(1) as usize);
        if !going.is_empty() {
            log::info!("{} waiting workers give memory of {} to a program", going.len(), self.gpu);
        }
        std::thread::scope(|scope| going.iter().for_each(|worker| drop(scope.spawn(|| worker.kill()))));
        !going.is_empty()
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        let holds = &mut self.pool.lock().holds;
        if let Some(at) = holds.iter().position(|held| *held == self.gpu) {
            holds.remove(at);
        }
    }
}

impl WorkerPool {
    /// For a program that lacks memory of this GPU.
    pub fn hold_room(self: &Arc<WorkerPool>, gpu: &str) -> HeldRoom {
        self.lock().holds.push(gpu.to_string());
        HeldRoom { pool: self.clone(), gpu: gpu.to_string() }
    }

    /// This worker waits for one program, with memory of the host that its GPU knows. It goes as those of the pool do.
    pub fn note_waker(&self, gpu: &str, worker: &Arc<Worker>) {
        let wakers = &mut self.lock().wakers;
        wakers.retain(|(_, waker)| is_there(waker));
        wakers.push((gpu.to_string(), Arc::downgrade(worker)));
    }

    /// The program wakes with it. False if it went for another one.
    pub fn take_waker(&self, worker: &Arc<Worker>) -> bool {
        let wakers = &mut self.lock().wakers;
        let at = wakers.iter().position(|(_, waker)| std::ptr::eq(waker.as_ptr(), Arc::as_ptr(worker)));
        at.map(|at| wakers.remove(at)).is_some()
    }

    /// Takes so many of those that wait for this GPU out of the pool: those first that came last.
    fn take_out(&self, gpu: &str, count: usize) -> Vec<Arc<Worker>> {
        let mut state = self.lock();
        let State { gpus, waiting, wakers, .. } = &mut *state;
        let mut going = Vec::new();
        while going.len() < count
            && let Some(at) = waiting.iter().rposition(|one| gpu::have_in_common(&one.gpu, gpu))
        {
            going.push(waiting.remove(at).worker);
        }
        if going.is_empty() {
            let gone = wakers.extract_if(.., |(known, _)| gpu::have_in_common(known, gpu));
            let gone = gone.filter_map(|(_, waker)| waker.upgrade());
            going.extend(gone.filter(|waker| waker.ended().is_none()));
        }
        if !going.is_empty() {
            let pressed = gpus.iter_mut().filter(|known| gpu::have_in_common(&known.name, gpu));
            pressed.for_each(|known| known.gave_up = true);
        }
        going
    }

    /// What is free of a GPU, as one of its workers sees it that has nothing else to do.
    pub(super) fn look(&self, gpu: &str) -> Sight {
        let workers: Vec<Arc<Worker>> = {
            let mut state = self.lock();
            state.given.retain(|(_, worker)| is_there(worker));
            let waiting = state.waiting.iter().filter(|one| one.ready && one.gpu == gpu);
            let given = state.given.iter().filter(|(known, _)| known == gpu);
            let given = given.filter_map(|(_, worker)| worker.upgrade());
            waiting.map(|one| one.worker.clone()).chain(given).collect()
        };
        let mut sight = Sight::Nobody;
        for worker in workers {
            match worker.glance().map(|status| FreeMemory::of(&status)) {
                Some(Some(memory)) => return Sight::Free(memory),
                Some(None) => {}
                None => sight = Sight::Unclear,
            }
        }
        sight
    }
}

/// Whether it lives.
pub(super) fn is_there(worker: &Weak<Worker>) -> bool {
    worker.upgrade().is_some_and(|worker| worker.ended().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(free: u64) -> Pressure {
        Pressure { memory: Sight::Free(FreeMemory { free, total: 80 }), ..Pressure::default() }
    }

    #[test]
    fn more_than_the_least_wait_where_much_is_free() {
        assert_eq!(free(80).allows(8, 1, 1), 8);
        assert_eq!(free(10).allows(8, 1, 1), 8);
        assert_eq!(free(9).allows(8, 3, 1), 3);
        assert_eq!(free(9).allows(8, 0, 1), 1, "the least is made");
        assert_eq!(free(5).allows(8, 3, 1), 3);
        assert_eq!(free(4).allows(8, 3, 1), 2);
        assert_eq!(free(0).allows(8, 1, 1), 1);
        assert_eq!(free(0).allows(8, 0, 2), 2);
        assert_eq!(Pressure::default().allows(8, 0, 1), 1, "nobody knows how much is free");
        assert_eq!(free(80).allows(1, 3, 1), 1);
    }

    #[test]
    fn none_is_made_again_that_went_for_a_program_before_much_is_free() {
        let gave_up = |pressure| Pressure { gave_up: true, ..pressure };
        assert_eq!(gave_up(free(9)).allows(1, 0, 1), 0);
        assert_eq!(gave_up(free(0)).allows(2, 1, 2), 1);
        assert_eq!(gave_up(free(10)).allows(1, 0, 1), 1);
        assert_eq!(gave_up(Pressure::default()).allows(8, 0, 1), 1, "nobody has any of it");
        let unclear = Pressure { memory: Sight::Unclear, ..Pressure::default() };
        assert_eq!([unclear.allows(8, 0, 1), gave_up(unclear).allows(8, 0, 1)], [1, 0]);
    }

    #[test]
    fn none_is_made_while_a_program_takes_what_it_lacked() {
        let held = Pressure { is_held: true, ..free(80) };
        assert_eq!([held.allows(8, 0, 1), held.allows(8, 3, 1), held.allows(1, 3, 1)], [0, 3, 1]);
    }
}
