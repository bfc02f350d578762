//! Which slice of the addresses a program has that is to share contexts.

use rekindle_device::Slice;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::images::metadata::ImageMetadata;

/// The longest name of a tenant.
const LONGEST: usize = 64;

/// Whether the program of an image can share contexts: it can if it has had a slice from the beginning of its life.
pub fn check(tenant: &str, image: &str, slice: Option<Slice>) -> Result<()> {
    check_name(tenant)?;
    slice.map(drop).ok_or_else(|| Error::CannotShare { image: image.to_string() })
}

/// For a new program: the slice that the fewest others have, live ones and images.
pub fn choose(daemon: &Daemon, tenant: &str) -> Result<Slice> {
    check_name(tenant)?;
    let live = daemon.sandboxes.all();
    let live = live.iter().filter(|sandbox| sandbox.is_live());
    let mut used: Vec<Slice> = live.filter_map(|sandbox| sandbox.record().slice).collect();
    for image in daemon.store.images()? {
        let metadata =
            daemon.store.image(&image.name).ok().and_then(|image| ImageMetadata::read(&image).ok());
        used.extend(metadata.and_then(|metadata| metadata.slice));
    }
    let count = |slice: &Slice| used.iter().filter(|other| *other == slice).count();
    Ok(Slice::all().min_by_key(count).unwrap_or(Slice::FIRST))
}

pub fn check_name(tenant: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins_well = tenant.starts_with(|first: char| first.is_ascii_alphanumeric());
    match begins_well && tenant.len() <= LONGEST && tenant.bytes().all(plain) {
        true => Ok(()),
        false => Err(Error::BadTenant { tenant: tenant.to_string(), most: LONGEST }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_plain_name_and_an_image_its_own_slice() {
        let slice = Some(Slice::FIRST);
        check("team-1", "i", slice).unwrap();
        assert!(check("team-1", "i", None).unwrap_err().to_string().contains("--share"));
        for tenant in ["", "a b", "../x", "-a", &"x".repeat(65)] {
            assert!(check(tenant, "i", slice).is_err(), "{tenant:?}");
        }
    }
}
