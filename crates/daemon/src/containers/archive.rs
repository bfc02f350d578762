//! Looking into the archive that an engine has exported.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The longest file that is read.
const LONGEST: u64 = 16 << 20;

/// The contents of the archive's files of these names, as far as they are there.
pub fn read(archive: &Path, names: &[&str]) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut archive = tar::Archive::new(File::open(archive)?);
    let mut found = BTreeMap::new();
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let name = path.trim_start_matches("./");
        if names.contains(&name) && entry.size() <= LONGEST {
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents)?;
            found.insert(name.to_string(), contents);
        }
        if found.len() == names.len() {
            break;
        }
    }
    Ok(found)
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
        assert!(read(file.path(), &["a"]).is_err());
        std::fs::write(file.path(), []).unwrap();
        assert!(read(file.path(), &["a"]).unwrap().is_empty());
    }
}
