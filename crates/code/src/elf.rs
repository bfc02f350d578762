//! Programs and libraries of the host's: 64-bit little-endian ELF files by their program headers, without trusting a byte of
//! them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::LittleEndian as LE;
use object::elf::{
    ELF_NOTE_GNU, ELFMAG, EM_AARCH64, EM_X86_64, FileHeader64, NT_GNU_BUILD_ID, PT_INTERP, ProgramHeader64,
};
use object::read::ReadRef;
use object::read::elf::{FileHeader, Note, ProgramHeader};

/// An open file to be read where that is needed.
pub use object::read::ReadCache;

const MOST_NOTES: u64 = 1 << 20;

pub struct Elf<'data, R> {
    header: &'data FileHeader64<LE>,
    segments: &'data [ProgramHeader64<LE>],
    data: R,
}

impl<'data, R: ReadRef<'data>> Elf<'data, R> {
    pub fn read(data: R) -> Option<Self> {
        let header = header(data)?;
        Some(Self { header, segments: header.program_headers(LE, data).ok()?, data })
    }

    /// Whether it is for processors such as this machine's.
    pub fn is_native(&self) -> bool {
        self.header.e_machine(LE) == if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 }
    }

    /// Whether it asks for no dynamic linker.
    pub fn is_static(&self) -> bool {
        !self.segments.is_empty() && self.segments.iter().all(|segment| segment.p_type(LE) != PT_INTERP)
    }

    /// The id that the linker put into it, in hexadecimal: the same for the same build, however the file was copied.
    pub fn build_id(&self) -> Option<String> {
        self.find_note(|note| {
            let is_id = note.name() == ELF_NOTE_GNU && note.n_type(LE) == NT_GNU_BUILD_ID;
            is_id.then(|| note.desc().iter().map(|byte| format!("{byte:02x}")).collect())
        })
    }

    /// Whether it has a note of this owner.
    pub fn has_note(&self, owner: &[u8]) -> bool {
        self.find_note(|note| (note.name() == owner).then_some(())).is_some()
    }

    fn find_note<T>(&self, find: impl Fn(&Note<'_, FileHeader64<LE>>) -> Option<T>) -> Option<T> {
        let small = self.segments.iter().filter(|segment| segment.p_filesz(LE) <= MOST_NOTES);
        small.filter_map(|segment| segment.notes(LE, self.data).ok()?).find_map(|mut notes| {
            while let Ok(Some(note)) = notes.next() {
                if let Some(found) = find(&note) {
                    return Some(found);
                }
            }
            None
        })
    }
}

/// Whether it begins as an ELF file of any kind does. Where the file was read to stays as it is.
pub fn is_elf(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == ELFMAG
}

pub(crate) fn header<'data>(data: impl ReadRef<'data>) -> Option<&'data FileHeader64<LE>> {
    let header = FileHeader64::<LE>::parse(data).ok()?;
    header.endian().ok()?;
    Some(header)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;
    use rekindle_code_samples::synthetic;

    use super::*;

    #[test]
    fn the_c_library_has_a_build_id() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps
            .lines()
            .find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("/libc.so")));
        let cache = ReadCache::new(File::open(path.unwrap()).unwrap());
        let elf = Elf::read(&cache).unwrap();
        assert_eq!(elf.build_id().unwrap().len(), 40);
        assert!(elf.is_native() && elf.has_note(b"GNU") && !elf.has_note(b"Go"));
        let bytes = std::fs::read(path.unwrap()).unwrap();
        assert_eq!(Elf::read(&bytes[..]).unwrap().build_id(), elf.build_id());
    }

    #[test]
    fn what_asks_for_no_linker_is_static() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!Elf::read(&own[..]).unwrap().is_static());
        let mut file = synthetic(&[], &[]);
        assert!(!Elf::read(&file[..]).unwrap().is_static(), "nothing of it can be run");
        let at = file.len() as u64;
        file[32..40].copy_from_slice(&at.to_le_bytes());
        (file[54], file[56]) = (size_of::<ProgramHeader64<LE>>() as u8, 1);
        let segment = |kind: u8| [&[kind][..], &[0; 55]].concat();
        assert!(Elf::read(&[&file[..], &segment(1)].concat()[..]).unwrap().is_static());
        assert!(!Elf::read(&[&file[..], &segment(3)].concat()[..]).unwrap().is_static());
        assert!(Elf::read(&file[..]).is_none(), "it is cut");
    }

    #[test]
    fn a_text_is_none() {
        for (text, is_any) in [("#!/bin/sh\n", false), ("\x7fE", false), ("\x7fELF\x01", true)] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(is_elf(&file), is_any);
            assert!(Elf::read(&ReadCache::new(file)).is_none());
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 64..400)) {
            bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
            bytes[32..40].copy_from_slice(&56u64.to_le_bytes());
            bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
            if let Some(elf) = Elf::read(&bytes[..]) {
                let _ = (elf.build_id(), elf.is_static(), elf.is_native());
            }
        }
    }
}
