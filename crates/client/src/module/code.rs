//! Where code ends, and whether it lies in a file.
//!
//! The driver's loading functions take a pointer without a length: the code's own headers say how long it is.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use rekindle_cuda::{
    CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_OPERATING_SYSTEM,
};
use rekindle_protocol::maps::{self, Area};

use crate::abi::Result;
use crate::session;

const WRAPPER: u32 = 0x4662_43b1;
const FATBIN: u32 = 0xba55_ed50;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
/// Code smaller than this is not worth a look at the process's mappings.
const SMALLEST_IN_FILE: usize = 64 << 10;

/// Code of the program's, by its address, or our own copy of it.
pub struct Code {
    address: usize,
    length: usize,
    owned: Option<Box<[u8]>>,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFile {
    pub path: String,
    pub offset: u64,
}

impl Code {
    /// The code at `address`, as the caller of a loading function promises.
    pub fn at(address: usize) -> Result<Code> {
        let (address, length) = extent(address)?;
        Ok(Code { address, length, owned: None })
    }

    pub fn read(path: &str) -> Result<Code> {
        let mut bytes = std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
        // PTX ends with a NUL.
        bytes.push(0);
        let owned = bytes.into_boxed_slice();
        let (address, length) = extent(owned.as_ptr() as usize)?;
        if length > owned.len() {
            return Err(CUDA_ERROR_INVALID_IMAGE);
        }
        Ok(Code { address, length, owned: Some(owned) })
    }

    /// The same code, in memory of our own.
    pub fn into_owned(self) -> Code {
        let owned: Box<[u8]> = self.bytes().into();
        Code { address: owned.as_ptr() as usize, length: owned.len(), owned: Some(owned) }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the headers at `address` say that `length` bytes are there; they are ours, or the program's for as
        // long as it promised.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length) }
    }

    /// The file that the code is a read-only mapping of.
    pub fn file(&self) -> Option<InFile> {
        if self.owned.is_some() || self.length < SMALLEST_IN_FILE {
            return None;
        }
        find_mapping(&maps::own().ok()?, self.address as u64, self.length as u64)
    }
}

fn read<T: Copy>(address: usize) -> T {
    // SAFETY: headers of the code that the caller passed.
    unsafe { (address as *const T).read_unaligned() }
}

/// Start and length of the code.
fn extent(address: usize) -> Result<(usize, usize)> {
    if address == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // A text may be shorter than a magic number.
    let first: u8 = read(address);
    if first == 0 {
        return Err(CUDA_ERROR_INVALID_IMAGE);
    }
    match first {
        0x7f | 0x50 | 0xb1 => match read::<u32>(address) {
            WRAPPER => extent(read::<u64>(address + 8) as usize),
            FATBIN => {
                Ok((address, usize::from(read::<u16>(address + 6)) + read::<u64>(address + 8) as usize))
            }
            ELF => elf_length(address).map(|length| (address, length)),
            _ => Ok((address, text_length(address))),
        },
        _ => Ok((address, text_length(address))),
    }
}

fn text_length(address: usize) -> usize {
    // SAFETY: what is no binary is a NUL-terminated text, says the driver's documentation.
    unsafe { std::ffi::CStr::from_ptr(address as *const std::ffi::c_char) }.to_bytes_with_nul().len()
}

/// The end of whatever an ELF file's headers name last.
fn elf_length(address: usize) -> Result<usize> {
    let (program, sections): (u64, u64) = (read(address + 0x20), read(address + 0x28));
    let (program_size, programs): (u16, u16) = (read(address + 0x36), read(address + 0x38));
    let (section_size, mut section_count): (u16, u64) =
        (read(address + 0x3a), u64::from(read::<u16>(address + 0x3c)));
    if section_size != 64 && sections != 0 {
        return Err(CUDA_ERROR_INVALID_IMAGE);
    }
    let section = |index: u64| address + (sections + index * 64) as usize;
    if section_count == 0 && sections != 0 {
        section_count = read(section(0) + 0x20);
    }
    let mut end = 64.max(program + u64::from(program_size) * u64::from(programs));
    end = end.max(sections + section_count * 64);
    const NO_BYTES: u32 = 8;
    for index in 0..section_count {
        if read::<u32>(section(index) + 4) != NO_BYTES {
            end = end.max(read::<u64>(section(index) + 0x18) + read::<u64>(section(index) + 0x20));
        }
    }
    Ok(end as usize)
}

/// Looks in private read-only mappings of files that still have their names.
fn find_mapping(areas: &[Area], address: u64, length: u64) -> Option<InFile> {
    let is_it = |area: &Area| area.span.start <= address && address + length <= area.span.end;
    let is_file =
        |area: &Area| !area.may(libc::PROT_WRITE) && area.name.starts_with(b"/") && !area.is_deleted();
    let found = areas.iter().find(|area| is_it(area) && is_file(area))?;
    let offset = found.offset + (address - found.span.start);
    Some(InFile { offset, path: String::from_utf8(found.name.clone()).ok()? })
}

/// Writes bytes into a new file of the run directory, which the worker removes when it has read it.
pub fn write_shared(bytes: &[u8]) -> Result<String> {
    let session = session::get()?;
    let name = session.new_file_name("code");
    let path = session.directory.join(&name);
    let _ = std::fs::remove_file(&path);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|error| {
            crate::report::report(format_args!("cannot hand code over in {}: {error}", path.display()));
            let _ = std::fs::remove_file(&path);
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_wrappers_and_fatbins_know_their_length() {
        let text = c".version 8.0";
        assert_eq!(Code::at(text.as_ptr() as usize).unwrap().bytes(), text.to_bytes_with_nul());

        let mut fatbin = vec![0u8; 16 + 32];
        fatbin[..4].copy_from_slice(&FATBIN.to_le_bytes());
        fatbin[6..8].copy_from_slice(&16u16.to_le_bytes());
        fatbin[8..16].copy_from_slice(&32u64.to_le_bytes());
        assert_eq!(Code::at(fatbin.as_ptr() as usize).unwrap().bytes(), fatbin);

        let mut wrapper = [0u64; 3];
        wrapper[0] = u64::from(WRAPPER) | 1 << 32;
        wrapper[1] = fatbin.as_ptr() as u64;
        assert_eq!(Code::at(wrapper.as_ptr() as usize).unwrap().bytes(), fatbin);
        assert!(Code::at(0).is_err());
    }

    #[test]
    fn an_elf_file_ends_where_its_headers_say() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let length = elf_length(own.as_ptr() as usize).unwrap();
        assert!(length <= own.len() && length > own.len() / 2, "{length} of {}", own.len());
    }

    #[test]
    fn code_is_found_in_files_that_nobody_can_write_to_here() {
        let find = |line: &str| find_mapping(&maps::parse(line.as_bytes()), 0x7f00_0000_1100, 0x1000);
        let found = find("7f0000001000-7f0000003000 r--p 00002000 08:01 1234    /opt/my lib.so").unwrap();
        assert_eq!((found.offset, found.path.as_str()), (0x2100, "/opt/my lib.so"));
        for other in [
            "7f0000001000-7f0000002000 r--p 00002000 08:01 1234 /opt/lib.so",
            "7f0000001000-7f0000003000 rw-p 00002000 08:01 1234 /opt/lib.so",
            "7f0000001000-7f0000003000 r--p 00000000 00:00 0",
            "7f0000001000-7f0000003000 r--p 00000000 08:01 5 /opt/lib.so (deleted)",
        ] {
            assert!(find(other).is_none(), "{other}");
        }
    }
}
