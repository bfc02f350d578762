//! Looking into the archive that an engine has exported: a tar file as Go's library writes it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: u64 = 512;
/// The longest file, or description of one, that is read.
const LONGEST: u64 = 16 << 20;
/// Kinds of entries that describe the next one.
const LONG_NAME: u8 = b'L';
const EXTENDED: u8 = b'x';
const GLOBAL: u8 = b'g';

/// The contents of the archive's files of these names, as far as they are there.
pub fn read(archive: &Path, names: &[&str]) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let file = File::open(archive)?;
    let mut found = BTreeMap::new();
    let mut at = 0;
    let (mut name, mut size) = (None, None);
    while found.len() < names.len() {
        let mut header = [0; BLOCK as usize];
        if file.read_at(&mut header, at)? < header.len() || header.iter().all(|byte| *byte == 0) {
            break;
        }
        let described = number(&header[124..136]).ok_or_else(|| broken(at))?;
        let bytes = if matches!(header[156], LONG_NAME | EXTENDED | GLOBAL) {
            described
        } else {
            size.take().unwrap_or(described)
        };
        let contents = |most: u64| {
            let mut contents = vec![0; usize::try_from(bytes.min(most)).unwrap_or(0)];
            file.read_exact_at(&mut contents, at + BLOCK).map(|()| contents)
        };
        match header[156] {
            EXTENDED => {
                let records = contents(LONGEST)?;
                name = record(&records, "path").or(name);
                size = record(&records, "size").and_then(|text| text.parse().ok());
            }
            LONG_NAME => name = Some(text(&contents(LONGEST)?)),
            GLOBAL => {}
            _ => {
                let name = name.take().unwrap_or_else(|| plain_name(&header));
                let name = name.trim_start_matches("./");
                if names.contains(&name) && bytes <= LONGEST {
                    found.insert(name.to_string(), contents(LONGEST)?);
                }
            }
        }
        at += BLOCK + bytes.checked_next_multiple_of(BLOCK).ok_or_else(|| broken(at))?;
    }
    Ok(found)
}

fn broken(at: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("what is at byte {at} is no entry of an archive"))
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn plain_name(header: &[u8]) -> String {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    match header[257..].starts_with(b"ustar\0") && !prefix.is_empty() {
        true => format!("{prefix}/{name}"),
        false => name,
    }
}

/// Octal, or binary where the first bit says so.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let small = high[0] == 0x80 && high[1..].iter().all(|byte| *byte == 0);
        return small.then(|| u64::from_be_bytes(low.try_into().unwrap_or_default()));
    }
    u64::from_str_radix(text(field).trim(), 8).ok()
}

/// A value among records such as `30 path=a/long/name\n`.
fn record(mut records: &[u8], key: &str) -> Option<String> {
    while let Some(space) = records.iter().position(|byte| *byte == b' ') {
        let length: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
        let whole = records.get(space + 1..length)?;
        let line = String::from_utf8_lossy(whole);
        if let Some(value) =
            line.trim_end_matches('\n').strip_prefix(key).and_then(|rest| rest.strip_prefix('='))
        {
            return Some(value.to_string());
        }
        records = &records[length..];
    }
    None
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn files_are_found_whatever_lies_before_them() {
        let root = tempfile::tempdir().unwrap();
        let long = "n".repeat(90);
        std::fs::create_dir_all(root.path().join(format!("{long}/{long}"))).unwrap();
        std::fs::write(root.path().join(format!("{long}/{long}/big")), vec![7; 100_000]).unwrap();
        std::fs::write(root.path().join("spec.dump"), "{}").unwrap();
        for format in ["pax", "gnu", "ustar"] {
            let archive = root.path().join("archive.tar");
            let mut tar = Command::new("tar");
            tar.arg(format!("--format={format}")).arg("-C").arg(root.path()).arg("-cf").arg(&archive);
            assert!(tar.args([&long, "spec.dump"]).status().unwrap().success());
            let found = read(&archive, &["spec.dump", "none"]).unwrap();
            assert_eq!(found, BTreeMap::from([("spec.dump".to_string(), b"{}".to_vec())]), "{format}");
            let inner = format!("{long}/{long}/big");
            assert_eq!(read(&archive, &[&inner]).unwrap()[&inner].len(), 100_000, "{format}");
        }
    }

    #[test]
    fn what_is_no_archive_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b'x'; 4096]).unwrap();
        assert!(read(file.path(), &["a"]).unwrap_err().to_string().contains("byte 0"));
        std::fs::write(file.path(), []).unwrap();
        assert!(read(file.path(), &["a"]).unwrap().is_empty());
    }
}
