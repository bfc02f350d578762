//! How much caches may hold.

use rekindle_protocol::worker::CACHE_SLOT;

/// The largest memory that is made at once. Few large ones are made, mapped and handed on faster than many.
const MOST_AT_ONCE: u64 = 256 << 20;
/// A cache has so many memories, if that makes them no larger.
const MEMORIES: u64 = 8;

/// Bytes; 0 is no cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLimits {
    /// Of pinned memory of the host.
    pub host: u64,
    /// Of memory on each GPU.
    pub gpu: u64,
}

/// How a cache with this limit is divided: into so many memories of so many slots.
pub fn divide(limit: u64) -> (u32, u32) {
    let bytes = (limit / MEMORIES).clamp(CACHE_SLOT, MOST_AT_ONCE) / CACHE_SLOT * CACHE_SLOT;
    ((limit / bytes) as u32, (bytes / CACHE_SLOT) as u32)
}

/// A number of bytes, as a user writes it: digits, then perhaps K, M, G or T.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no number of bytes; write digits, then K, M, G or T if you like");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_users_write_them() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("123"), Ok(123));
        assert_eq!(parse_bytes("8G"), Ok(8 << 30));
        assert_eq!(parse_bytes("512m"), Ok(512 << 20));
        for text in ["", "G", "1.5G", "-1", "8GB", "99999999999T", "é"] {
            assert!(parse_bytes(text).unwrap_err().contains("K, M, G or T"), "{text}");
        }
    }

    #[test]
    fn a_cache_never_exceeds_its_limit() {
        for limit in [0, 1, CACHE_SLOT, 3 * CACHE_SLOT, 100 << 20, 3 << 30, (1 << 40) + 12345] {
            let (memories, slots) = divide(limit);
            let bytes = u64::from(memories) * u64::from(slots) * CACHE_SLOT;
            assert!(bytes <= limit && limit - bytes < limit / 8 + CACHE_SLOT, "{limit}: {bytes}");
        }
    }
}
