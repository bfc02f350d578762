//! Registered memory that nobody uses, for who needs such memory next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rekindle_device::Device;

use super::block::{Blocks, Preparing, Registered};

/// Where memory goes that is needed no more, for who needs such memory next.
///
/// A driver waits for all work of a GPU when it forgets memory, and nobody can give that GPU work meanwhile: a program whose
/// kernels wait for others would never go on. So what a program's own contexts leave here stays until the GPUs have nothing to
/// do, [`BlockPool::unpin_some`], and what shared contexts leave stays for ever, one of each size.
#[derive(Default)]
pub(crate) struct BlockPool {
    /// What registers, whoever asks: memory outlives those who have it.
    registrar: Option<Arc<dyn Device>>,
    /// Several clients have its contexts at once.
    is_shared: bool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    ready: Vec<Registered>,
    /// Some of it is registered no more.
    leaving: Option<Registered>,
}

impl BlockPool {
    /// For contexts that one client has at a time.
    pub(crate) fn own(device: Arc<dyn Device>) -> Arc<BlockPool> {
        Arc::new(BlockPool { registrar: Some(device), ..BlockPool::default() })
    }

    /// For contexts that several clients have.
    pub(crate) fn shared(device: Arc<dyn Device>) -> Arc<BlockPool> {
        Arc::new(BlockPool { registrar: Some(device), is_shared: true, ..BlockPool::default() })
    }

    /// What is there, or is begun to be made on a thread of its own. It comes back afterwards.
    pub(super) fn take(
        self: &Arc<BlockPool>,
        device: Arc<dyn Device>,
        block: usize,
        count: usize,
    ) -> Preparing {
        let kept = {
            let ready = &mut self.kept().ready;
            let found = ready.iter().position(|memory| memory.is_like(block, count));
            found.map(|at| ready.remove(at))
        };
        let (block_pool, device) = (self.clone(), self.registrar.clone().unwrap_or(device));
        match kept {
            Some(memory) => Preparing::Ready(Blocks::of(memory, block_pool)),
            None => Preparing::Begun(std::thread::spawn(move || {
                let memory = Registered::new(device, block, count)?;
                Ok(Blocks::of(memory, block_pool))
            })),
        }
    }

    /// Begins to make what is to be there for the next, on a thread of its own.
    pub(super) fn stock(self: &Arc<BlockPool>, device: Arc<dyn Device>, block: usize, count: usize) {
        let block_pool = self.clone();
        std::thread::spawn(move || match block_pool.take(device, block, count).wait() {
            Ok(blocks) => drop(blocks),
            Err(code) => log::warn!("no memory to copy through is kept ready: {code}"),
        });
    }

    /// What there is no room for comes back.
    pub(super) fn put(&self, memory: Registered) -> Option<Registered> {
        let ready = &mut self.kept().ready;
        if self.is_shared && ready.iter().any(|other| memory.has_the_size_of(other)) {
            return Some(memory);
        }
        ready.push(memory);
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        let kept = self.kept();
        kept.ready.is_empty() && kept.leaving.is_none()
    }

    /// Has the GPUs, which have nothing to do, forget some of it.
    pub(crate) fn unpin_some(&self) {
        let mut kept = self.kept();
        let Some(mut leaving) = kept.leaving.take().or_else(|| kept.ready.pop()) else { return };
        if leaving.unpin_some() {
            kept.leaving = Some(leaving);
        } else {
            std::thread::spawn(move || drop(leaving));
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rekindle_device::Platform;
    use rekindle_emulated::Config;

    use super::*;

    const BLOCK: usize = 8 << 20;

    fn platform() -> Arc<dyn Platform> {
        rekindle_emulated::platform(&Config::default()).unwrap()
    }

    #[test]
    fn what_comes_back_is_taken_again_or_forgotten_piece_by_piece() {
        let platform = platform();
        let (device, block_pool) = (platform.open(0).unwrap(), Arc::<BlockPool>::default());
        let take = || block_pool.take(device.clone(), BLOCK, 3);
        let blocks = take().wait().unwrap();
        assert!(block_pool.is_empty());
        drop(blocks);
        assert!(matches!(take(), Preparing::Ready(_)));
        block_pool.unpin_some();
        // The device knows only some of what is left.
        let another = take();
        assert!(matches!(another, Preparing::Begun(_)));
        let another = another.wait().unwrap();
        let more = std::iter::from_fn(|| (!block_pool.is_empty()).then(|| block_pool.unpin_some()));
        assert_eq!(more.take(9).count(), 2);
        drop(another);
        assert!(!block_pool.is_empty());
    }

    #[test]
    fn shared_contexts_keep_one_of_each_size() {
        let platform = platform();
        let device = platform.open(0).unwrap();
        let block_pool = BlockPool::shared(device.clone());
        let take = |count| block_pool.take(device.clone(), BLOCK, count);
        let some = [1, 1, 2].map(|count| take(count).wait().unwrap());
        drop(some);
        let again = [1, 2].map(take);
        assert!(again.iter().all(|one| matches!(one, Preparing::Ready(_))) && block_pool.is_empty());
    }
}
