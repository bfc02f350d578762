//! CRIU's image files: two words, then entries, each with its length before it.

use std::fs;
use std::io;
use std::path::Path;

use crate::proto::Message;

/// How long the two words are.
pub const HEAD: usize = 8;
/// The largest file of entries that is read: a process has at most some 100,000 areas.
const LARGEST: u64 = 256 << 20;

#[derive(Debug, Clone, Default)]
pub struct Entries {
    head: Vec<u8>,
    pub entries: Vec<Message>,
}

/// What CRIU's images begin with.
pub const COMMON: u32 = 0x5456_4319;

/// How an image of this kind begins.
pub fn head(magic: u32) -> Vec<u8> {
    [COMMON.to_le_bytes(), magic.to_le_bytes()].concat()
}

/// An entry as it stands in an image.
pub fn with_length(entry: &[u8]) -> Vec<u8> {
    [&(entry.len() as u32).to_le_bytes(), entry].concat()
}

/// Takes the next entry off the front; none, and nothing taken, if it is cut.
pub fn take_entry<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let (entry, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = after;
    Some(entry)
}

impl Entries {
    /// An image of this kind without entries.
    pub fn new(magic: u32) -> Entries {
        Entries { head: head(magic), entries: Vec::new() }
    }

    pub fn read(path: &Path) -> Result<Entries, String> {
        let named = |what: String| format!("{}: {what}", path.display());
        let bytes = fs::metadata(path).map_err(|error| named(error.to_string()))?.len();
        if bytes > LARGEST {
            return Err(named(format!("it has {bytes} bytes, the most is {LARGEST}")));
        }
        let text = fs::read(path).map_err(|error| named(error.to_string()))?;
        parse(&text).ok_or_else(|| named("it is not in the format of CRIU's images".into()))
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut out = self.head.clone();
        for entry in &self.entries {
            out.extend(with_length(&entry.write()));
        }
        fs::write(path, out)
    }
}

fn parse(text: &[u8]) -> Option<Entries> {
    let (head, mut rest) = text.split_at_checked(HEAD)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        entries.push(Message::read(take_entry(&mut rest)?)?);
    }
    Some(Entries { head: head.to_vec(), entries })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_are_read_and_written() {
        let text = [b"headhead".as_slice(), &[2, 0, 0, 0, 8, 1, 0, 0, 0, 0, 2, 0, 0, 0, 16, 3]].concat();
        let entries = parse(&text).unwrap();
        assert_eq!(entries.entries.len(), 3);
        assert_eq!(entries.entries[2].number(2), Some(3));
        let file = tempfile::NamedTempFile::new().unwrap();
        entries.write(file.path()).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), text);
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes: Vec<u8>) {
            parse(&bytes);
        }
    }
}
