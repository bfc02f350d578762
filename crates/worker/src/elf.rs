//! The build id of an ELF file (64 bits, little endian), found without trusting a byte of it.

const NOTE: u32 = 4;
const BUILD_ID: u32 = 3;

/// The id that the linker put into the file, if it is an ELF file that has one.
pub(crate) fn build_id(file: &[u8]) -> Option<&[u8]> {
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let headers = word64(file, 32)?;
    let (size, count) = (word16(file, 54)?, word16(file, 56)?);
    (0..u64::from(count)).find_map(|n| {
        let header = headers.checked_add(n.checked_mul(u64::from(size))?)?;
        let header = file.get(usize::try_from(header).ok()?..)?;
        if word32(header, 0)? != NOTE {
            return None;
        }
        let (offset, bytes) =
            (usize::try_from(word64(header, 8)?).ok()?, usize::try_from(word64(header, 32)?).ok()?);
        find_note(file.get(offset..offset.checked_add(bytes)?)?)
    })
}

fn find_note(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (name, content, kind) =
            (word32(notes, 0)? as usize, word32(notes, 4)? as usize, word32(notes, 8)?);
        let start = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = start.checked_add(content)?;
        if kind == BUILD_ID && notes.get(12..12 + name)? == b"GNU\0" {
            return notes.get(start..end);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
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
            let _ = find_note(&bytes);
        }
    }
}
