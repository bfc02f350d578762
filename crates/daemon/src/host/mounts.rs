//! What a program is to see beside this machine's files: whether it can, before anything is begun.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use rekindle_protocol::mounts::{Mounts, Overlay, Volume};
use rekindle_sandbox::RUN_PATH;

use crate::error::Result;
use crate::host::{HostError, MountError};

/// What a sandbox has of its own there.
const OWN: [&str; 4] = ["/proc", "/sys", "/dev", RUN_PATH];
const ANOTHER: &str = "make it, or name another one";
const TABLE: &str = "/proc/self/mountinfo";

/// Checks them, and names their places in the sandbox as the program will find them: without links.
pub fn settle(mounts: &Mounts) -> Result<Mounts> {
    let mut settled = Mounts::default();
    let mut volumes = mounts.volumes.clone();
    volumes.sort_by_key(|volume| volume.inside.components().count());
    for volume in volumes {
        let found = settle_volume(&volume, &settled)
            .map_err(|source| HostError::NoVolume { volume, source: source.into() })?;
        settled.volumes.push(found);
    }
    for Overlay { directory, bytes } in &mounts.overlays {
        let found = settle_overlay(directory, &settled);
        let failed =
            |source: MountError| HostError::NoOverlay { directory: directory.clone(), source: source.into() };
        let directory = found.map_err(failed)?;
        settled.overlays.push(Overlay { directory, bytes: *bytes });
    }
    Ok(settled)
}

/// What an image has, with volumes that are asked for in place of those at the same paths.
pub fn choose(kept: &Mounts, asked: &[Volume]) -> Result<Mounts> {
    let asked: Vec<_> = asked
        .iter()
        .map(|volume| Volume {
            inside: fs::canonicalize(&volume.inside).unwrap_or_else(|_| volume.inside.clone()),
            ..volume.clone()
        })
        .collect();
    settle(&kept.with_volumes(&asked))
}

fn settle_volume(volume: &Volume, outer: &Mounts) -> std::result::Result<Volume, MountError> {
    let Volume { host, inside, .. } = volume;
    let source = fs::metadata(host).map_err(|source| unusable(host, source, ANOTHER))?;
    let make = if source.is_dir() { "make a directory there" } else { "make an empty file there" };
    let place = real(inside, outer, make)?;
    let there = fs::metadata(outer.on_host(&place))
        .map_err(|source| MountError::Unseen { place: inside.clone(), source })?;
    if source.is_dir() != there.is_dir() {
        let (host, inside) = (host.clone(), inside.clone());
        return Err(MountError::Kinds { host, is_directory: source.is_dir(), inside });
    }
    refuse_own(&place)?;
    if outer.volumes.iter().any(|other| other.inside == place) {
        return Err(MountError::Twice { place });
    }
    Ok(Volume { inside: place, ..volume.clone() })
}

fn settle_overlay(directory: &Path, outer: &Mounts) -> std::result::Result<PathBuf, MountError> {
    let place = real(directory, outer, ANOTHER)?;
    let host = outer.on_host(&place);
    if !fs::metadata(&host).is_ok_and(|found| found.is_dir()) {
        return Err(MountError::NoDirectory);
    }
    refuse_own(&place)?;
    // Through two of them the kernel names what is mapped by a place that nobody can find.
    if is_overlayfs(&host) {
        return Err(MountError::OnOverlayfs);
    }
    if let Some(other) = outer
        .overlays
        .iter()
        .map(|other| &other.directory)
        .find(|other| other.starts_with(&place) || place.starts_with(other))
    {
        return Err(MountError::Nested { other: other.clone() });
    }
    let is_beneath = |path: &Path, above: &Path| path != above && path.starts_with(above);
    let table = fs::read(TABLE).map_err(|source| MountError::NoTable { table: TABLE.into(), source })?;
    let mut mounted = points(&table).into_iter().filter(|point| is_beneath(point, &host));
    let mut volumes = outer.volumes.iter().map(|volume| volume.inside.clone());
    match mounted.next().or_else(|| volumes.find(|inside| is_beneath(inside, &place))) {
        None => Ok(place),
        Some(point) => Err(MountError::Hidden { point }),
    }
}

/// Where the sandbox's program finds it.
fn real(path: &Path, mounts: &Mounts, way_out: &'static str) -> std::result::Result<PathBuf, MountError> {
    let look = |path: &Path| fs::canonicalize(path).map_err(|source| unusable(path, source, way_out));
    let Some((volume, _)) = mounts.volume_of(path) else { return look(path) };
    let (root, place) = (look(&volume.host)?, look(&mounts.on_host(path))?);
    let below = place
        .strip_prefix(&root)
        .map_err(|_| MountError::Outside { place: path.to_path_buf(), volume: volume.clone() })?;
    Ok(if below.as_os_str().is_empty() { volume.inside.clone() } else { volume.inside.join(below) })
}

fn unusable(place: &Path, source: io::Error, way_out: &'static str) -> MountError {
    let place = place.to_path_buf();
    match source.kind() {
        io::ErrorKind::NotFound => MountError::Missing { place, way_out },
        _ => MountError::Unusable { place, source },
    }
}

fn is_overlayfs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == OVERLAYFS_SUPER_MAGIC)
}

fn refuse_own(place: &Path) -> std::result::Result<(), MountError> {
    match OWN.iter().find(|own| place.starts_with(own) || Path::new(own).starts_with(place)) {
        None => Ok(()),
        Some(own) => Err(MountError::Own { own }),
    }
}

/// Where something is mounted, by the kernel's table.
fn points(table: &[u8]) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let lines = table.split(|&byte| byte == b'\n');
    let fields = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    fields.map(|field| PathBuf::from(std::ffi::OsString::from_vec(plain(field)))).collect()
}

/// Without the kernel's `\040` for a space and the like.
fn plain(mut field: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((&byte, rest)) = field.split_first() {
        let code = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| byte == b'\\') {
            Some(code) => {
                out.push(code);
                field = &rest[3..];
            }
            None => {
                out.push(byte);
                field = rest;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn wanted(volumes: &[String], overlays: &[String]) -> Mounts {
        Mounts {
            volumes: volumes.iter().map(|text| text.parse().unwrap()).collect(),
            overlays: overlays.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn what_cannot_be_mounted_is_refused_with_its_reason() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name).display().to_string();
        for name in ["host/inner", "place", "other"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("file"), "").unwrap();
        symlink("/usr", root.path().join("host/out")).unwrap();
        let volume = |host: &str, inside: &str| format!("{host}:{inside}");
        let refused = |volumes: &[String], overlays: &[String], word: &str| {
            let why = settle(&wanted(volumes, overlays)).unwrap_err().to_string();
            assert!(why.contains(word), "{volumes:?} {overlays:?}: {why}");
        };
        let (host, place) = (at("host"), at("place"));
        refused(&[volume(&at("gone"), &place)], &[], "there is no");
        refused(&[volume(&host, &at("gone"))], &[], "make a directory there");
        refused(&[volume(&at("file"), &at("gone"))], &[], "make an empty file there");
        refused(&[volume(&at("file"), &place)], &[], "of one kind");
        refused(&[volume(&host, &at("file"))], &[], "of one kind");
        for own in ["/proc", "/", "/run", "/dev/shm"] {
            refused(&[volume(&host, own)], &[], "own");
        }
        refused(&[volume(&host, &place), volume(&at("other"), &place)], &[], "once");
        refused(&[volume(&host, &place), volume(&at("other"), &format!("{place}/out"))], &[], "by a link");
        refused(&[], &[at("gone")], "there is no");
        refused(&[], &[at("file")], "no directory");
        refused(&[], &["/".into()], "own");
        if is_overlayfs(root.path()) {
            eprintln!("skipped: layers cannot lie over directories of this file system");
            return;
        }
        refused(&[], &[host.clone(), at("host/inner")], "over the outer");
        refused(&[volume(&at("other"), &at("host/inner"))], std::slice::from_ref(&host), "mounted in it");
    }

    #[test]
    fn places_are_named_without_links_and_one_volume_may_lie_in_another() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        for name in ["host/inner", "place", "other"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        symlink("place", root.path().join("link")).unwrap();
        let (link, inner) = (at("link"), at("link/inner"));
        let volumes = [
            format!("{}:{}", at("other").display(), at("place/inner").display()),
            format!("{}:{}", at("host").display(), link.display()),
        ];
        let found = settle(&wanted(&volumes[1..], &[])).unwrap();
        assert_eq!(found.volumes[0].inside, at("place"));
        let all = settle(&Mounts {
            volumes: [found.volumes.clone(), wanted(&volumes[..1], &[]).volumes].concat(),
            overlays: Some(Overlay { directory: at("place/inner"), bytes: 1 << 20 })
                .into_iter()
                .filter(|_| !is_overlayfs(root.path()))
                .collect(),
        });
        let all = all.unwrap();
        assert_eq!(all.on_host(&at("place/inner/x")), at("other/x"));
        assert_eq!(settle(&all).unwrap(), all);
        // Asked for by a link, it takes the place of the one that is there.
        let chosen = choose(&found, &[Volume { host: at("other"), inside: link, read_only: true }]).unwrap();
        assert_eq!(chosen.volumes, [Volume { host: at("other"), inside: at("place"), read_only: true }]);
        assert!(choose(&found, &[Volume { host: at("other"), inside: inner, read_only: false }]).is_err());
    }

    #[test]
    fn the_kernel_s_table_is_read() {
        let table = b"22 1 0:20 / /proc rw - proc proc rw\n23 1 0:21 /x /a\\040b\\134 rw - tmpfs x rw\n\n";
        assert_eq!(points(table), [PathBuf::from("/proc"), PathBuf::from("/a b\\")]);
    }
}
