//! The program's objects of one kind, by the ids that its client chose.
//!
//! A client counts ids up and uses none again: whatever names an object, in a graph or an image, never means a later one.
//! So ids in use may lie far apart, as those of a few events that stay while millions come and go.

use std::collections::BTreeMap;

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::Result;
use rekindle_protocol::operation::Id;

/// Ids of one page.
const PAGE: u32 = 64;

#[derive(Debug)]
struct Page<T> {
    objects: Box<[Option<T>]>,
    live: u32,
}

/// Pages of ids that follow one another, each as long as it has objects; the last one stays, since the next id is likely
/// there.
#[derive(Debug)]
pub(crate) struct Table<T>(BTreeMap<u32, Page<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(BTreeMap::new())
    }
}

impl<T> Table<T> {
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Result<&T> {
        let page = self.0.get(&(id / PAGE)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        page.objects[(id % PAGE) as usize].as_ref().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Result<&mut T> {
        let page = self.0.get_mut(&(id / PAGE)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        page.objects[(id % PAGE) as usize].as_mut().ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// True when an object may be made with this id.
    pub(crate) fn is_free(&self, id: Id) -> bool {
        self.get(id).is_err()
    }

    pub(crate) fn insert(&mut self, id: Id, object: T) -> Result<()> {
        if !self.is_free(id) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let number = id / PAGE;
        if self.0.last_key_value().is_some_and(|(last, page)| *last < number && page.live == 0) {
            self.0.pop_last();
        }
        let empty = || Page { objects: (0..PAGE).map(|_| None).collect(), live: 0 };
        let page = self.0.entry(number).or_insert_with(empty);
        page.objects[(id % PAGE) as usize] = Some(object);
        page.live += 1;
        Ok(())
    }

    pub(crate) fn remove(&mut self, id: Id) -> Result<T> {
        let number = id / PAGE;
        let page = self.0.get_mut(&number).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let object = page.objects[(id % PAGE) as usize].take().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        page.live -= 1;
        if page.live == 0 && self.0.last_key_value().is_some_and(|(last, _)| *last != number) {
            self.0.remove(&number);
        }
        Ok(object)
    }

    /// Takes out all objects that `which` says yes to.
    pub(crate) fn extract(&mut self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        self.0.retain(|_, page| {
            let found = page.objects.iter_mut().filter_map(|slot| slot.take_if(|object| which(object)));
            let before = taken.len();
            taken.extend(found);
            page.live -= (taken.len() - before) as u32;
            page.live != 0
        });
        taken
    }

    /// By rising ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        self.0.iter().flat_map(|(number, page)| {
            let ids = number * PAGE..=u32::MAX;
            ids.zip(&page.objects).filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().flat_map(|page| page.objects.iter_mut().flatten())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.values().map(|page| page.live as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_their_ids_and_come_by_rising_ids() {
        let mut table = Table::default();
        for id in [7, 3_000_000_000, 64, u32::MAX, 0] {
            assert!(table.is_free(id));
            table.insert(id, u64::from(id) * 2).unwrap();
        }
        assert!(table.insert(64, 1).is_err());
        let found: Vec<_> = table.iter().map(|(id, value)| (id, *value)).collect();
        let doubled = [0, 7, 64, 3_000_000_000, u32::MAX].map(|id| (id, u64::from(id) * 2));
        assert_eq!(found, doubled);
        assert_eq!((table.remove(64), table.count()), (Ok(128), 4));
        assert!(table.remove(64).is_err() && table.get(65).is_err());
        table.values_mut().for_each(|value| *value += 1);
        assert_eq!(table.extract(|value| *value > 1000), [6_000_000_001, u64::from(u32::MAX) * 2 + 1]);
        assert_eq!((table.get(7), table.count()), (Ok(&15), 2));
    }

    #[test]
    fn millions_that_come_and_go_leave_nothing() {
        let mut table = Table::default();
        table.insert(5, 5).unwrap();
        for id in 100..5_000_000 {
            table.insert(id, id).unwrap();
            // A few are there at once.
            if id >= 110 {
                assert_eq!(table.remove(id - 10), Ok(id - 10));
            }
        }
        assert_eq!((table.count(), table.get(5)), (11, Ok(&5)));
        assert!(table.0.len() <= 3, "{} pages", table.0.len());
    }
}
