//! Which slice of the addresses a program has that is to share contexts.

use rekindle_device::Slice;

use crate::daemon::Daemon;
use crate::error::Result;
use crate::images::metadata::ImageMetadata;
use crate::lifecycle::LifecycleError;
use crate::sandboxes::Sandbox;

/// The longest name of a tenant.
const LONGEST: usize = 64;

/// Whether the program of an image can share contexts: it can if each process that used a GPU has had a slice from the
/// beginning of its life.
pub fn check(tenant: &str, image: &str, slices: &[Option<Slice>]) -> Result<()> {
    check_name(tenant)?;
    match !slices.is_empty() && slices.iter().all(Option::is_some) {
        true => Ok(()),
        false => Err(LifecycleError::CannotShare { image: image.to_string() }.into()),
    }
}

/// The slices that images have.
pub fn of_images(daemon: &Daemon, tenant: &str) -> Result<Vec<Slice>> {
    check_name(tenant)?;
    let mut slices = Vec::new();
    for image in daemon.store.images()? {
        let metadata =
            daemon.store.image(&image.name).ok().and_then(|image| ImageMetadata::read(&image).ok());
        slices.extend(metadata.iter().flat_map(ImageMetadata::all_slices).flatten());
    }
    Ok(slices)
}

/// For a new program: of the slices that the fewest live programs of its tenant have, so that these find room in one
/// process, the one that the fewest others have, live ones and images.
pub fn choose<'a>(tenant: &str, of_images: Vec<Slice>, live: impl Iterator<Item = &'a Sandbox>) -> Slice {
    let (mut theirs, mut others) = (Vec::new(), of_images);
    for record in live.map(Sandbox::record) {
        let used = if record.tenant.as_deref() == Some(tenant) { &mut theirs } else { &mut others };
        let of_workers: Vec<Slice> = record.workers.iter().filter_map(|worker| worker.slice).collect();
        used.extend(record.slice.filter(|slice| !of_workers.contains(slice)));
        used.extend(of_workers);
    }
    let count = |used: &[Slice], slice: &Slice| used.iter().filter(|other| *other == slice).count();
    let users = |slice: &Slice| (count(&theirs, slice), count(&others, slice));
    Slice::all().min_by_key(users).unwrap_or(Slice::FIRST)
}

pub fn check_name(tenant: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins_well = tenant.starts_with(|first: char| first.is_ascii_alphanumeric());
    match begins_well && tenant.len() <= LONGEST && tenant.bytes().all(plain) {
        true => Ok(()),
        false => Err(LifecycleError::BadTenant { tenant: tenant.to_string(), most: LONGEST }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_plain_name_and_an_image_its_own_slice() {
        let slice = &[Some(Slice::FIRST)];
        check("team-1", "i", slice).unwrap();
        for without in [&[None][..], &[slice[0], None], &[]] {
            assert!(check("team-1", "i", without).unwrap_err().to_string().contains("--share"));
        }
        for tenant in ["", "a b", "../x", "-a", &"x".repeat(65)] {
            assert!(check(tenant, "i", slice).is_err(), "{tenant:?}");
        }
    }
}
