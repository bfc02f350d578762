//! How much memory is to be ready beside what programs have (StreamBox, section 5.2, algorithm 1).

use super::Need;

/// Bytes that the pool of a context is to have for programs with these needs. The paper's pool has the memory that is in use as
/// well: its size is the larger of what all need now and what they need in the next interval. What is in use is taken off.
pub(crate) fn ready_bytes(needs: &[Need]) -> u64 {
    let sum = |of: fn(&Need) -> i64| needs.iter().map(of).sum::<i64>();
    let (now, next, used) = (sum(|need| need.now), sum(|need| need.next), sum(|need| need.used));
    u64::try_from(now.max(next) - used).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_has_what_all_need_now_or_next_and_do_not_have() {
        let need = |now, next, used| Need { now, next, used, wanted: Vec::new() };
        assert_eq!(ready_bytes(&[]), 0);
        assert_eq!(ready_bytes(&[need(5, 12, 5)]), 7);
        // One gives back what the other one is about to need.
        assert_eq!(ready_bytes(&[need(9, 9, 4), need(0, 6, 0)]), 11);
        assert_eq!(ready_bytes(&[need(-5, -5, 4)]), 0);
    }
}
