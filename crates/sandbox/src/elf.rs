//! The build id that linkers put into ELF files: the same for the same build, however the file was copied.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const MOST_PROGRAM_HEADERS: usize = 256;
const MOST_NOTES: usize = 1 << 20;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The build id in hexadecimal, where `file` is a 64-bit little-endian ELF file that has one.
pub fn build_id(file: &File) -> io::Result<Option<String>> {
    let id = find_in_notes(file, |notes| find_build_id(notes).map(<[u8]>::to_vec))?;
    Ok(id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Whether it is an ELF file: a program or a library.
pub fn is_elf(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF"
}

/// Whether it is an ELF file with a note of this owner.
pub fn has_note(file: &File, owner: &[u8]) -> bool {
    let found = find_in_notes(file, |notes| notes_of(notes).any(|(name, _, _)| name == owner).then_some(()));
    matches!(found, Ok(Some(())))
}

fn find_in_notes<T>(file: &File, find: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
    let mut header = [0; HEADER];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    if header[..6] != *b"\x7fELF\x02\x01" || half(&header, 54) as usize != PROGRAM_HEADER {
        return Ok(None);
    }
    let count = usize::from(half(&header, 56)).min(MOST_PROGRAM_HEADERS);
    for index in 0..count {
        let mut entry = [0; PROGRAM_HEADER];
        let Some(at) = double(&header, 32).checked_add((index * PROGRAM_HEADER) as u64) else {
            return Ok(None);
        };
        if file.read_exact_at(&mut entry, at).is_err() {
            return Ok(None);
        }
        let size = double(&entry, 32) as usize;
        if word(&entry, 0) != PT_NOTE || size > MOST_NOTES {
            continue;
        }
        let mut notes = vec![0; size];
        if file.read_exact_at(&mut notes, double(&entry, 8)).is_ok()
            && let Some(found) = find(&notes)
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn double(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn find_build_id(notes: &[u8]) -> Option<&[u8]> {
    let is_id = |(name, kind, _): &(&[u8], u32, &[u8])| *kind == NT_GNU_BUILD_ID && *name == b"GNU\0";
    notes_of(notes).find(is_id).map(|(_, _, contents)| contents)
}

/// The notes in order: owner, kind, contents. Ends at one that makes no sense.
fn notes_of(mut notes: &[u8]) -> impl Iterator<Item = (&[u8], u32, &[u8])> {
    std::iter::from_fn(move || {
        if notes.len() < 12 {
            return None;
        }
        let (name, contents, kind) = (word(notes, 0) as usize, word(notes, 4) as usize, word(notes, 8));
        let start = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = start.checked_add(contents)?;
        let note = (notes.get(12..12 + name)?, kind, notes.get(start..end)?);
        notes = notes.get(end.checked_next_multiple_of(4)?..).unwrap_or_default();
        Some(note)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    #[test]
    fn a_programs_build_id_is_found_and_a_texts_is_not() {
        let own = build_id(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert!(own.is_none_or(|id| id.len() >= 16));
        let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = libc
            .lines()
            .find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("libc.so")));
        assert!(build_id(&File::open(libc.unwrap()).unwrap()).unwrap().is_some());
        let mut text = tempfile::tempfile().unwrap();
        text.write_all(b"text").unwrap();
        assert_eq!(build_id(&text).unwrap(), None);
    }

    proptest! {
        #[test]
        fn no_notes_make_it_panic(bytes: Vec<u8>) {
            find_build_id(&bytes);
        }

        #[test]
        fn no_file_makes_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 64..400)) {
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            build_id(&file).unwrap();
        }
    }
}
