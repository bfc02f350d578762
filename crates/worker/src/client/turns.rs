//! The order in which a program's code, what was looked up in it, and its streams took room in the driver's heaps. A restore
//! repeats it as far as addresses that the program may hold depend on it. Whoever asks the driver for such room takes a turn:
//! the program's requests, and the thread that loads an image's kernels beside them.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use rekindle_device::Result;
use rekindle_protocol::operation::Id;

use super::LoadedPiece;

/// A kernel, by its module's number and its name.
pub(crate) type KernelKey = (Id, String);

#[derive(Default)]
pub(crate) struct Turns(Mutex<Order>);

#[derive(Default)]
struct Order {
    last: u64,
    /// Kernels that are loaded beside the program: those that are not yet have nothing here, others what nobody has claimed.
    beside: HashMap<KernelKey, Option<LoadedPiece>>,
}

/// Nobody else asks the driver for room meanwhile.
pub(crate) struct Turn<'t>(MutexGuard<'t, Order>);

impl Turns {
    pub(crate) fn take(&self) -> Turn<'_> {
        Turn(self.0.lock())
    }

    /// The newest number.
    pub(crate) fn last(&self) -> u64 {
        self.0.lock().last
    }

    /// Numbers are greater than `last` from now on.
    pub(crate) fn follow(&self, last: u64) {
        self.0.lock().last = last;
    }

    /// These kernels will be loaded beside the program.
    pub(crate) fn announce(&self, kernels: impl Iterator<Item = KernelKey>) {
        self.0.lock().beside.extend(kernels.map(|kernel| (kernel, None)));
    }

    /// Loads one of them, unless the program has claimed it; whether it was loaded, and is there to be claimed.
    pub(crate) fn load_beside(
        &self,
        kernel: &KernelKey,
        load: impl FnOnce(&mut Turn<'_>) -> Result<LoadedPiece>,
    ) -> Result<bool> {
        let mut turn = self.take();
        if !matches!(turn.0.beside.get(kernel), Some(None)) {
            return Ok(false);
        }
        turn.0.beside.remove(kernel);
        let loaded = load(&mut turn)?;
        turn.0.beside.insert(kernel.clone(), Some(loaded));
        // The program's requests are not to wait for more than one of many kernels.
        MutexGuard::unlock_fair(turn.0);
        Ok(true)
    }
}

impl Turn<'_> {
    /// A number that is greater than all before: that of what was just asked for.
    pub(crate) fn number(&mut self) -> u64 {
        self.0.last += 1;
        self.0.last
    }

    /// What was loaded beside the program, if it was; it will not be from now on.
    pub(crate) fn claim(&mut self, kernel: &KernelKey) -> Option<LoadedPiece> {
        self.0.beside.remove(kernel).flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rekindle_cuda::CUDA_ERROR_INVALID_IMAGE;
    use rekindle_device::{Code, Function, KernelSettings, Module, Piece};

    use super::*;

    fn piece(turn: &mut Turn<'_>) -> LoadedPiece {
        let piece = Piece { code: Code::new(Vec::new()), options: Vec::new(), is_sharable: false };
        let settings = KernelSettings::default();
        LoadedPiece {
            module: Module(1),
            function: Function(1),
            settings,
            piece: Arc::new(piece),
            at: turn.number(),
            prints: false,
        }
    }

    #[test]
    fn a_kernel_is_loaded_beside_or_by_who_needs_it_and_its_number_tells_when() {
        let turns = Turns::default();
        turns.follow(10);
        let keys = ["first", "second", "third", "fourth"].map(|name| (7, name.to_string()));
        turns.announce(keys[..3].iter().cloned());
        let beside = |key| turns.load_beside(key, |turn| Ok(piece(turn)));
        assert_eq!(beside(&keys[0]), Ok(true));
        // The program needs one that is not there, and loads it itself.
        let mut turn = turns.take();
        assert!(turn.claim(&keys[1]).is_none());
        assert_eq!(piece(&mut turn).at, 12);
        drop(turn);
        assert_eq!(beside(&keys[1]), Ok(false), "it is loaded once");
        assert_eq!(
            turns.load_beside(&keys[2], |_| Err(CUDA_ERROR_INVALID_IMAGE)),
            Err(CUDA_ERROR_INVALID_IMAGE)
        );
        assert!(
            turns.take().claim(&keys[2]).is_none(),
            "who needs it loads it, and is told why it cannot be"
        );
        assert_eq!(beside(&keys[3]), Ok(false), "it was not announced");
        assert_eq!(turns.take().claim(&keys[0]).map(|loaded| loaded.at), Some(11));
        assert!(turns.take().claim(&keys[0]).is_none());
        assert_eq!(turns.last(), 12);
    }
}
