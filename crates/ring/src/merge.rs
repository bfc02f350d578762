//! The worker's view of all rings: requests in the order of their tickets.

use crate::queue::{Consumer, Corrupt, Record};

/// Consumers of one process's rings, read in ticket order. Rings are only added; a ring whose thread ended is reused
/// by the client.
#[derive(Default)]
pub struct Merge<'m> {
    rings: Vec<Consumer<'m>>,
    next: u64,
    last: usize,
}

impl<'m> Merge<'m> {
    pub fn new() -> Merge<'m> {
        Merge { rings: Vec::new(), next: 0, last: 0 }
    }

    /// Adds a ring and returns its index.
    pub fn add(&mut self, ring: Consumer<'m>) -> usize {
        self.rings.push(ring);
        self.rings.len() - 1
    }

    /// The ticket of the request that comes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Requests with lower tickets were taken by a consumer before this one, which may not have come to release them.
    pub fn set_next(&mut self, ticket: u64) -> Result<(), Corrupt> {
        self.next = ticket;
        for ring in &mut self.rings {
            while let Some(record) = ring.peek()?.filter(|record| record.ticket < ticket) {
                ring.release(record);
            }
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.rings.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// The next request of all rings and its ring's index; `None` when it is not there yet.
    pub fn peek(&mut self) -> Result<Option<(usize, Record<'m>)>, Corrupt> {
        let count = self.rings.len();
        for step in 0..count {
            let index = (self.last + step) % count;
            if let Some(record) = self.rings[index].peek()?
                && record.ticket == self.next
            {
                self.last = index;
                return Ok(Some((index, record)));
            }
        }
        Ok(None)
    }

    /// Ends the request that [`Merge::peek`] gave.
    pub fn release(&mut self, ring: usize, record: Record<'_>) {
        self.next += 1;
        self.rings[ring].release(record);
    }
}
