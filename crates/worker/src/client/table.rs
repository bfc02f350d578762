//! The program's objects of one kind, by the ids that its client chose.

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::Result;
use rekindle_protocol::operation::Id;

/// More objects of a kind than any program has; an id beyond it is nonsense from overwritten memory.
const MOST: usize = 1 << 20;

/// Ids are small and dense, so this is an array.
#[derive(Debug)]
pub(crate) struct Table<T>(Vec<Option<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Result<&T> {
        self.0.get(id as usize).and_then(Option::as_ref).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Result<&mut T> {
        self.0.get_mut(id as usize).and_then(Option::as_mut).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// True when an object may be made with this id.
    pub(crate) fn is_free(&self, id: Id) -> bool {
        (id as usize) < MOST && self.get(id).is_err()
    }

    pub(crate) fn insert(&mut self, id: Id, object: T) -> Result<()> {
        if !self.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let at = id as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(object);
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: Id) -> Result<T> {
        self.0.get_mut(id as usize).and_then(Option::take).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Takes out all objects that `which` says yes to.
    pub(crate) fn extract(&mut self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        self.0.iter_mut().filter_map(|slot| slot.take_if(|object| which(object))).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        self.0.iter().enumerate().filter_map(|(id, slot)| Some((id as Id, slot.as_ref()?)))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    pub(crate) fn count(&self) -> usize {
        self.iter().count()
    }
}
