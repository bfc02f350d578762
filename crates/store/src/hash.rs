//! A content hash: BLAKE3, written as 64 lower-case hexadecimal digits.

use std::fmt;
use std::str::FromStr;

/// The BLAKE3 hash of some contents; names a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// Stands where there is no hash.
    pub(crate) const NONE: ContentHash = ContentHash([0; 32]);

    pub fn of(data: &[u8]) -> ContentHash {
        ContentHash(*blake3::hash(data).as_bytes())
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for ContentHash {
    fn from(hash: [u8; 32]) -> ContentHash {
        ContentHash(hash)
    }
}

impl From<blake3::Hash> for ContentHash {
    fn from(hash: blake3::Hash) -> ContentHash {
        ContentHash(*hash.as_bytes())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContentHash {
    type Err = &'static str;

    /// Upper-case digits are refused: one hash has one spelling, so a changed letter shows.
    fn from_str(text: &str) -> Result<ContentHash, &'static str> {
        const EXPECTED: &str = "a hash is 64 lower-case hexadecimal digits";
        if text.len() != 64 || text.bytes().any(|byte| !matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(EXPECTED);
        }
        blake3::Hash::from_hex(text).map(ContentHash::from).map_err(|_| EXPECTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_only() {
        let text = ContentHash::of(b"warm").to_string();
        assert_eq!(text.parse::<ContentHash>(), Ok(ContentHash::of(b"warm")));
        assert!(text.to_uppercase().parse::<ContentHash>().is_err());
        assert!(text[1..].parse::<ContentHash>().is_err());
    }
}
