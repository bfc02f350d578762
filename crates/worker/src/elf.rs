//! The build id of an ELF file (64 bits, little endian), found without trusting a byte of it.

use object::LittleEndian as LE;
use object::elf::{ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID};
use object::read::elf::{FileHeader, ProgramHeader};

/// The id that the linker put into the file, if it is an ELF file that has one.
pub(crate) fn build_id(file: &[u8]) -> Option<&[u8]> {
    let header = FileHeader64::<LE>::parse(file).ok()?;
    header.endian().ok()?;
    let segments = header.program_headers(LE, file).ok()?;
    segments.iter().filter_map(|segment| segment.notes(LE, file).ok()?).find_map(|mut notes| {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(LE) == NT_GNU_BUILD_ID {
                return Some(note.desc());
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_c_library_has_one() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.contains("/libc.so")).unwrap();
        let file = std::fs::read(line.split_whitespace().last().unwrap()).unwrap();
        assert_eq!(build_id(&file).unwrap().len(), 20);
    }

    proptest! {
        #[test]
        fn nonsense_is_survived(mut bytes in proptest::collection::vec(any::<u8>(), 64..400)) {
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[32..40].copy_from_slice(&56u64.to_le_bytes());
            let _ = build_id(&bytes);
        }
    }
}
