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
        let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| EXPECTED)?;
        let (mut hash, mut wrong) = ([0; 32], 0);
        for (byte, pair) in hash.iter_mut().zip(digits.as_chunks::<2>().0) {
            let [high, low] = pair.map(|digit| VALUES[usize::from(digit)]);
            wrong |= high | low;
            *byte = high << 4 | low;
        }
        // Digits are random: whoever asks of each what it is waits for the processor's guess.
        if wrong & NO_DIGIT == 0 { Ok(ContentHash(hash)) } else { Err(EXPECTED) }
    }
}

const NO_DIGIT: u8 = 0x80;
/// What each byte is worth as a digit.
const VALUES: [u8; 256] = {
    let (mut values, mut value) = ([NO_DIGIT; 256], 0);
    while value < 16 {
        values[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    values
};

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
