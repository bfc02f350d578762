//! Notes in ELF files (64 bits, little endian), found without trusting a byte of them. The build id that linkers put there is
//! the same for the same build, however the file was copied.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::LittleEndian as LE;
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::ReadCache;
use object::read::elf::{FileHeader, Note, ProgramHeader};

const MOST_NOTES: u64 = 1 << 20;

/// The build id in hexadecimal, where `file` is an ELF file that has one.
pub fn build_id(file: &File) -> Option<String> {
    find_note(file, |note| {
        let is_id = note.name() == ELF_NOTE_GNU && note.n_type(LE) == NT_GNU_BUILD_ID;
        is_id.then(|| note.desc().iter().map(|byte| format!("{byte:02x}")).collect())
    })
}

/// Whether it is an ELF file: a program or a library.
pub fn is_elf(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF"
}

/// Whether it is an ELF file with a note of this owner.
pub fn has_note(file: &File, owner: &[u8]) -> bool {
    find_note(file, |note| (note.name() == owner).then_some(())).is_some()
}

fn find_note<T>(file: &File, find: impl Fn(&Note<'_, FileHeader64<LE>>) -> Option<T>) -> Option<T> {
    let data = &ReadCache::new(file);
    let header = FileHeader64::<LE>::parse(data).ok()?;
    header.endian().ok()?;
    let segments = header.program_headers(LE, data).ok()?;
    let small = segments.iter().filter(|segment| segment.p_filesz(LE) <= MOST_NOTES);
    small.filter_map(|segment| segment.notes(LE, data).ok()?).find_map(|mut notes| {
        while let Ok(Some(note)) = notes.next() {
            if let Some(found) = find(&note) {
                return Some(found);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    #[test]
    fn a_programs_build_id_is_found_and_a_texts_is_not() {
        let own = build_id(&File::open("/proc/self/exe").unwrap());
        assert!(own.is_none_or(|id| id.len() >= 16));
        let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = libc
            .lines()
            .find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("libc.so")));
        assert!(build_id(&File::open(libc.unwrap()).unwrap()).is_some());
        let mut text = tempfile::tempfile().unwrap();
        text.write_all(b"text").unwrap();
        assert_eq!(build_id(&text), None);
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 64..400)) {
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            build_id(&file);
        }
    }
}
