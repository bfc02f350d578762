//! What a program sees in place of the machine's own files: volumes and overlays.
//!
//! Volumes are mounted first, the outer before the inner, and overlays on top of them.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a program sees beside the machine's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounts {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<Overlay>,
}

impl Mounts {
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.overlays.is_empty()
    }

    /// Where the machine has what the program sees at `path`. Of an overlay that is what lies beneath it.
    pub fn on_host(&self, path: &Path) -> PathBuf {
        match self.volume_of(path) {
            Some((volume, rest)) if rest.as_os_str().is_empty() => volume.host.clone(),
            Some((volume, rest)) => volume.host.join(rest),
            None => path.into(),
        }
    }

    /// The innermost volume that `path` is in, and where in it.
    pub fn volume_of<'a>(&self, path: &'a Path) -> Option<(&Volume, &'a Path)> {
        let all =
            self.volumes.iter().filter_map(|volume| Some((volume, path.strip_prefix(&volume.inside).ok()?)));
        all.max_by_key(|(volume, _)| volume.inside.components().count())
    }

    /// These with `others`, which take the place of those at the same paths.
    pub fn with_volumes(&self, others: &[Volume]) -> Mounts {
        let kept =
            self.volumes.iter().filter(|volume| others.iter().all(|other| other.inside != volume.inside));
        let volumes = kept.chain(others).cloned().collect();
        Mounts { volumes, overlays: self.overlays.clone() }
    }
}

/// A directory or file of the machine's that a program sees at another path; `HOST:INSIDE[:ro]` in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    pub host: PathBuf,
    pub inside: PathBuf,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

impl FromStr for Volume {
    type Err = String;

    fn from_str(text: &str) -> Result<Volume, String> {
        let known =
            "expected HOST:INSIDE or HOST:INSIDE:ro, two absolute paths, such as /srv/models:/models:ro";
        let mut parts = text.split(':');
        let (host, inside, access) = (parts.next(), parts.next(), parts.next());
        let read_only = match (access, parts.next()) {
            (None | Some("rw"), None) => false,
            (Some("ro"), None) => true,
            _ => return Err(known.to_string()),
        };
        match (host, inside) {
            (Some(host), Some(inside)) => {
                Ok(Volume { host: absolute(host)?, inside: absolute(inside)?, read_only })
            }
            _ => Err(known.to_string()),
        }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.read_only { ":ro" } else { "" };
        write!(formatter, "{}:{}{access}", self.host.display(), self.inside.display())
    }
}

/// A directory that a program sees with a private layer over it, which takes what it writes; `DIR[:BYTES]` in words, in
/// which the number may end in K, M or G.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    pub directory: PathBuf,
    /// The most that the layer may hold.
    pub bytes: u64,
}

impl Overlay {
    /// What a layer may hold if nothing else is said.
    pub const USUAL_BYTES: u64 = 1 << 30;
    const LEAST_BYTES: u64 = 1 << 20;
}

impl FromStr for Overlay {
    type Err = String;

    fn from_str(text: &str) -> Result<Overlay, String> {
        let (directory, bytes) = match text.split_once(':') {
            Some((directory, bytes)) => (directory, size(bytes)?),
            None => (text, Overlay::USUAL_BYTES),
        };
        Ok(Overlay { directory: absolute(directory)?, bytes })
    }
}

impl fmt::Display for Overlay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.directory.display(), self.bytes)
    }
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number =
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
    let bytes = number.and_then(|number| number.checked_mul(1 << unit));
    bytes.filter(|bytes| (Overlay::LEAST_BYTES..=1 << 50).contains(bytes)).ok_or_else(|| {
        format!(
            "{text:?} is no size for a layer; expected DIR or DIR:SIZE, such as /srv/app:512M, at least 1M"
        )
    })
}

/// A path from the root, without any `.` and `..` in it.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match path.is_absolute() && is_plain && !text.contains('\0') {
        // Without what it has too much: slashes at its end, and doubled ones.
        true => Ok(path.components().collect()),
        false => {
            Err(format!("{text:?} is no absolute path; expected one that begins with / and has no .. in it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_overlays_are_read_as_they_are_written() {
        for text in ["/a:/b", "/a/b c:/d:ro"] {
            assert_eq!(text.parse::<Volume>().unwrap().to_string(), text);
        }
        assert_eq!("/a//b/:/c/:rw".parse::<Volume>().unwrap().to_string(), "/a/b:/c");
        for wrong in [
            "",
            "/a",
            "/a:b",
            "a:/b",
            ":/b",
            "/a:",
            "/a:/b:",
            "/a:/b:rx",
            "/a:/b:ro:ro",
            "/a/../b:/c",
            "/a:/b\0",
        ] {
            let why = wrong.parse::<Volume>().unwrap_err();
            assert!(why.contains("expected"), "{wrong}: {why}");
        }
        assert_eq!("/a/".parse::<Overlay>().unwrap(), Overlay { directory: "/a".into(), bytes: 1 << 30 });
        assert_eq!("/a:2m".parse::<Overlay>().unwrap().bytes, 2 << 20);
        for wrong in ["", "a", "/a:", "/a:1K", "/a:1X", "/a:-1M", "/a:M", "/a:99999999999G", "/a/..:1M"] {
            let why = wrong.parse::<Overlay>().unwrap_err();
            assert!(why.contains("expected"), "{wrong}: {why}");
        }
    }

    #[test]
    fn what_is_in_a_volume_lies_where_the_machine_has_it() {
        let volumes = ["/host:/in", "/other:/in/ner:ro"].map(|text| text.parse().unwrap()).to_vec();
        let mounts = Mounts { volumes, overlays: Vec::new() };
        for (path, expected) in [
            ("/in/a", "/host/a"),
            ("/in/ner/a", "/other/a"),
            ("/in", "/host"),
            ("/inner", "/inner"),
            ("/", "/"),
        ] {
            assert_eq!(mounts.on_host(path.as_ref()), PathBuf::from(expected));
        }
        let changed = mounts.with_volumes(&["/third:/in".parse().unwrap(), "/x:/y".parse().unwrap()]);
        assert_eq!(changed.on_host("/in/a".as_ref()), PathBuf::from("/third/a"));
        assert_eq!(changed.on_host("/in/ner/a".as_ref()), PathBuf::from("/other/a"));
        assert_eq!(changed.on_host("/y/a".as_ref()), PathBuf::from("/x/a"));
    }
}
