//! How a manifest is written and read.
//!
//! ```text
//! {
//!   "format": 3,
//!   "checksum": "<64 hexadecimal digits>",
//!   "name": ...
//! ```
//! The first three lines are fixed to the byte. The checksum is the BLAKE3 hash of the whole file
//! with those 64 digits replaced by zeros, so that no byte of the file can change unseen, white
//! space included.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::hash::ContentHash;
use crate::manifest::{FORMAT, Manifest};

/// The longest manifest read. A terabyte in chunks of 2 MiB needs about 50 MB.
pub(crate) const LONGEST_MANIFEST: u64 = 256 << 20;
/// The most parts of one image.
const MOST_PARTS: usize = 1 << 20;

/// How a manifest begins that has no more than one GPU half.
const OPENING: &str = "{\n  \"format\": 3,\n  \"checksum\": \"";
/// How one with several begins: readers of format 3 would restore one of them alone.
const OPENING_OF_HALVES: &str = "{\n  \"format\": 4,\n  \"checksum\": \"";
/// Formats 1 and 2 are read too: what came after them is a part's tail, and memory that is written into programs, which
/// their images do not have.
const EARLIER: [&str; 2] =
    ["{\n  \"format\": 2,\n  \"checksum\": \"", "{\n  \"format\": 1,\n  \"checksum\": \""];
/// What [`OPENING`] says.
const WITHOUT_HALVES: u32 = 3;
const DIGITS: usize = 64;
const NO_CHECKSUM: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[derive(Serialize)]
struct SerializedManifest<'a> {
    format: u32,
    checksum: &'a str,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

impl Manifest {
    /// The manifest as the bytes of its file.
    pub fn to_bytes(&self) -> std::result::Result<Vec<u8>, String> {
        self.check()?;
        let format = if self.halves.is_empty() { WITHOUT_HALVES } else { FORMAT };
        let written = SerializedManifest { format, checksum: NO_CHECKSUM, manifest: self };
        let mut text = serde_json::to_vec_pretty(&written).map_err(|error| error.to_string())?;
        text.push(b'\n');
        if text.len() as u64 > LONGEST_MANIFEST {
            return Err(format!("it takes {} bytes, the most is {LONGEST_MANIFEST}", text.len()));
        }
        let checksum = ContentHash::of(&text).to_string();
        text[OPENING.len()..OPENING.len() + DIGITS].copy_from_slice(checksum.as_bytes());
        Ok(text)
    }

    /// Reads the bytes of a manifest file, which came from `path`.
    pub fn from_bytes(text: &[u8], path: &Path) -> Result<Manifest> {
        let bad = |reason: String| Error::BadManifest { path: path.to_path_buf(), reason };
        if text.len() as u64 > LONGEST_MANIFEST {
            return Err(bad(format!("it has {} bytes, the most is {LONGEST_MANIFEST}", text.len())));
        }
        let known = [OPENING, OPENING_OF_HALVES]
            .into_iter()
            .chain(EARLIER)
            .find(|opening| text.starts_with(opening.as_bytes()));
        let Some(opening) = known else { return Err(foreign(text, path)) };
        let rest = &text[opening.len()..];
        let Some((digits, rest)) = rest.split_at_checked(DIGITS) else {
            return Err(bad("it ends within its checksum".into()));
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(opening.as_bytes()).update(NO_CHECKSUM.as_bytes()).update(rest);
        if digits != ContentHash::from(hasher.finalize()).to_string().as_bytes() {
            return Err(bad("its contents do not match its checksum".into()));
        }
        let manifest: Manifest =
            serde_json::from_slice(text).map_err(|error| bad(format!("it does not parse: {error}")))?;
        manifest.check().map_err(bad)?;
        Ok(manifest)
    }

    /// Whether the manifest agrees with itself; if not, why.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        crate::names::check(&self.name).map_err(|error| error.to_string())?;
        if self.parts.len() > MOST_PARTS {
            return Err(format!("it lists {} parts, the most is {MOST_PARTS}", self.parts.len()));
        }
        self.check_halves()?;
        let mut names = HashSet::new();
        for part in &self.parts {
            part.check()?;
            if !names.insert((&part.kind, &part.name)) {
                return Err(format!("it lists the {} part {:?} twice", part.kind, part.name));
            }
        }
        Ok(())
    }
}

/// Why a file that does not open like a manifest that is known cannot be used.
fn foreign(text: &[u8], path: &Path) -> Error {
    #[derive(serde::Deserialize)]
    struct Envelope {
        format: u64,
    }
    match serde_json::from_slice::<Envelope>(text) {
        Ok(Envelope { format }) if format > FORMAT.into() => {
            Error::NewerFormat { path: path.to_path_buf(), found: format, supported: FORMAT.into() }
        }
        _ => Error::BadManifest {
            path: path.to_path_buf(),
            reason: "it does not begin as a manifest does".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::{ChunkRef, Part, PartKind};

    fn sample() -> Manifest {
        Manifest {
            name: "näme/1".into(),
            id: "0123".into(),
            created: "2026-01-01T00:00:00Z".into(),
            parts: vec![Part {
                kind: PartKind::Pinned,
                name: "p".into(),
                bytes: 10,
                attributes: serde_json::json!({"address": 1u64 << 40}),
                file: None,
                tail: 0,
                modified_ns: None,
                filled: None,
                chunk_bytes: 4096,
                chunks: vec![ChunkRef::zero(10)],
            }],
            ..Manifest::default()
        }
    }

    #[test]
    fn earlier_formats_are_read() {
        let text = String::from_utf8(sample().to_bytes().unwrap()).unwrap();
        for opening in EARLIER {
            let rest = &text[OPENING.len() + DIGITS..];
            let checksum = ContentHash::of([opening, NO_CHECKSUM, rest].concat().as_bytes()).to_string();
            let old = [opening, &checksum, rest].concat();
            assert_eq!(Manifest::from_bytes(old.as_bytes(), Path::new("m")).unwrap(), sample());
        }
    }

    #[test]
    fn several_halves_are_a_format_of_their_own() {
        assert!(sample().to_bytes().unwrap().starts_with(OPENING.as_bytes()));
        let two = Manifest { halves: vec![7, 12], ..sample() };
        let text = two.to_bytes().unwrap();
        assert!(text.starts_with(OPENING_OF_HALVES.as_bytes()));
        assert_eq!(Manifest::from_bytes(&text, Path::new("m")).unwrap(), two);
        for bad in [vec![7], vec![7, 12, 7]] {
            assert!(Manifest { halves: bad.clone(), ..sample() }.to_bytes().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn comes_back() {
        let text = sample().to_bytes().unwrap();
        assert_eq!(Manifest::from_bytes(&text, Path::new("m")).unwrap(), sample());
    }

    #[test]
    fn a_newer_format_is_named() {
        let text = String::from_utf8(sample().to_bytes().unwrap())
            .unwrap()
            .replace("\"format\": 3", "\"format\": 7");
        let error = Manifest::from_bytes(text.as_bytes(), Path::new("m")).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { found: 7, supported: 4, .. }), "{error}");
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_noticed() {
        let text = sample().to_bytes().unwrap();
        for at in 0..text.len() {
            for flip in [0x01, 0x20, 0x80, 0xff] {
                let mut changed = text.clone();
                changed[at] ^= flip;
                assert!(Manifest::from_bytes(&changed, Path::new("m")).is_err(), "byte {at} ^ {flip}");
            }
            assert!(Manifest::from_bytes(&text[..at], Path::new("m")).is_err());
        }
        let mut longer = text.clone();
        longer.push(b'\n');
        assert!(Manifest::from_bytes(&longer, Path::new("m")).is_err());
    }

    #[test]
    fn two_parts_of_one_name_are_refused() {
        let mut manifest = sample();
        manifest.parts.push(manifest.parts[0].clone());
        assert!(manifest.to_bytes().unwrap_err().contains("twice"));
    }

    proptest! {
        #[test]
        fn garbage_is_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Manifest::from_bytes(&bytes, Path::new("m")).is_err());
        }
    }
}
