//! Where a request is in the course of one that was seen before (StreamBox, section 5.2: memory demand profiling).

use rekindle_store::{MemoryChange, RequestMemory};

/// What is left of a course from somewhere within.
pub(super) struct Rest<'c> {
    /// Bytes more than when the request began.
    pub level: i64,
    /// Microseconds from the request's begin to the last change before.
    pub since: u32,
    pub changes: &'c [MemoryChange],
}

/// What comes after `seen`, of a request that has got to `launches`; none if this is not how such a request begins.
pub(super) fn rest_of<'c>(
    course: &'c RequestMemory,
    seen: &[MemoryChange],
    launches: u32,
) -> Option<Rest<'c>> {
    let mut first_uses = seen.iter().filter(|change| change.bytes > 0);
    let (mut level, mut since, mut passed) = (0, 0, 0);
    for (number, change) in course.changes.iter().enumerate() {
        if change.bytes > 0 {
            match first_uses.next() {
                Some(same) if (same.launch, same.bytes) == (change.launch, change.bytes) => {}
                // What is for the launch that is looked at now may come in a moment.
                None if change.launch >= launches => break,
                Some(_) | None => return None,
            }
        } else if change.launch > launches {
            break;
        }
        level += change.bytes;
        (since, passed) = (change.micros, number + 1);
    }
    first_uses.next().is_none().then(|| Rest { level, since, changes: &course.changes[passed..] })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::demand) fn course(changes: &[(u32, u32, i64)]) -> RequestMemory {
        RequestMemory { launches: 10, changes: changes.iter().map(|change| (*change).into()).collect() }
    }

    #[test]
    fn a_request_is_found_in_the_course_that_it_follows() {
        let known = course(&[(1, 10, 5), (3, 30, 7), (4, 40, -5), (6, 60, 2)]);
        let at = |seen: &[MemoryChange], launches| {
            rest_of(&known, seen, launches).map(|rest| (rest.level, rest.since, rest.changes.len()))
        };
        assert_eq!(at(&[], 0), Some((0, 0, 4)));
        assert_eq!(at(&known.changes[..1], 2), Some((5, 10, 3)));
        assert_eq!(at(&known.changes[..2], 3), Some((12, 30, 2)));
        assert_eq!(at(&known.changes[..2], 5), Some((7, 40, 1)));
        // It used what this one does not, or did not use what this one does.
        assert_eq!(at(&course(&[(1, 0, 6)]).changes, 1), None);
        assert_eq!(at(&known.changes[..1], 4), None);
        assert_eq!(at(&course(&[(1, 0, 5), (3, 0, 7), (6, 0, 2), (7, 0, 1)]).changes, 8), None);
    }
}
