//! Names that users give, as names of files.
//!
//! Letters, digits, `_`, `-` and a `.` that is not first stand for themselves; every other byte is
//! written `%XX`. A name whose encoding would be longer than [`LONGEST`] bytes becomes the start of
//! its encoding, `%~` and its hash; it is then known from the manifest alone. No two names share a
//! file name, and none can leave its directory.

use crate::error::{Error, Result};
use crate::hash::ContentHash;

/// The longest file name made here; leaves room for suffixes within the usual 255.
const LONGEST: usize = 200;
/// How much of an over-long name is kept readable.
const KEPT: usize = 100;
/// The longest name accepted, in bytes.
pub const LONGEST_NAME: usize = 64 * 1024;

/// Refuses what cannot be a name at all.
pub(crate) fn check(name: &str) -> Result<()> {
    let reason = match name.len() {
        0 => "a name has at least one character",
        length if length > LONGEST_NAME => "a name has at most 65,536 bytes",
        _ => return Ok(()),
    };
    Err(Error::BadName { shown: name.chars().take(40).collect(), reason })
}

/// The file name that stands for `name`.
pub(crate) fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    let mut kept = 0;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => encoded.push(byte as char),
            b'.' if at > 0 => encoded.push('.'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        if encoded.len() <= KEPT {
            kept = encoded.len();
        }
    }
    if encoded.len() > LONGEST {
        encoded.truncate(kept);
        encoded.push_str(&format!("%~{}", ContentHash::of(name.as_bytes())));
    }
    encoded
}

/// The name that a file name stands for; `None` if it is over-long or was not made by [`encode`].
pub(crate) fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    let name = String::from_utf8(bytes).ok()?;
    (encode(&name) == encoded).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_names_are_plain_file_names() {
        for name in ["..", ".", "/", "../../etc/passwd", "a/b", "$(rm -rf ~)", "a\0b", "%41", "é", " ", "-rf"]
        {
            let encoded = encode(name);
            assert!(!encoded.starts_with('.') && !encoded.contains(['/', '\0', '$', ' ']), "{encoded}");
            assert_eq!(decode(&encoded).as_deref(), Some(name));
        }
        assert_ne!(encode("%41"), encode("A"));
    }

    #[test]
    fn long_names_are_told_apart() {
        let long = "ü".repeat(300);
        let longer = "ü".repeat(301);
        assert!(encode(&long).len() <= LONGEST);
        assert_ne!(encode(&long), encode(&longer));
        assert_eq!(decode(&encode(&long)), None);
    }

    #[test]
    fn ten_thousand_names_have_ten_thousand_file_names() {
        let names: HashSet<String> = (0..10_000).map(|n| encode(&format!("job/{n}:{}", n % 7))).collect();
        assert_eq!(names.len(), 10_000);
    }

    #[test]
    fn empty_and_huge_names_are_refused() {
        assert!(check("").is_err());
        assert!(check(&"x".repeat(LONGEST_NAME + 1)).is_err());
        assert!(check(&"x".repeat(LONGEST_NAME)).is_ok());
    }

    proptest! {
        #[test]
        fn short_names_come_back(name in "\\PC{1,60}") {
            let encoded = encode(&name);
            if encoded.len() <= LONGEST && !encoded.contains("%~") {
                prop_assert_eq!(decode(&encoded), Some(name));
            }
        }

        #[test]
        fn any_file_name_decodes_or_does_not(encoded in "\\PC{0,80}") {
            if let Some(name) = decode(&encoded) {
                prop_assert_eq!(encode(&name), encoded);
            }
        }
    }
}
