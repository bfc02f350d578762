//! Which slice of the addresses a program has that is to share contexts.

use rekindle_device::Slice;
use rekindle_protocol::tenant::NOBODY;

use crate::daemon::Daemon;
use crate::error::Result;
use crate::images::metadata::ImageMetadata;
use crate::lifecycle::LifecycleError;
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::APP;

/// The longest name of a tenant.
const LONGEST: usize = 64;

/// Whether the program of an image can share contexts: it can if each process that used a GPU has had a slice from the
/// beginning of its life, or if it is new to GPUs, since a restore gives it a slice.
pub fn check(tenant: &str, image: &str, metadata: &ImageMetadata) -> Result<()> {
    check_sharers(tenant)?;
    match metadata.is_new_to_gpus() || are_whole(&metadata.all_slices()) {
        true => Ok(()),
        false => Err(LifecycleError::CannotShare { image: image.to_string() }.into()),
    }
}

/// Whether each process has a slice.
fn are_whole(slices: &[Option<Slice>]) -> bool {
    !slices.is_empty() && slices.iter().all(Option::is_some)
}

/// The slices that images have.
#[derive(Default)]
pub struct ImageSlices {
    /// Those of images of the same tenant's programs.
    theirs: Vec<Slice>,
    others: Vec<Slice>,
}

pub fn of_images(daemon: &Daemon, tenant: &str) -> Result<ImageSlices> {
    check_sharers(tenant)?;
    let mut slices = ImageSlices::default();
    for image in daemon.store.images()? {
        let metadata =
            daemon.store.image(&image.name).ok().and_then(|image| ImageMetadata::read(&image).ok());
        let Some(metadata) = metadata else { continue };
        let is_theirs = metadata.tenant.as_deref() == Some(tenant);
        let used = if is_theirs { &mut slices.theirs } else { &mut slices.others };
        used.extend(metadata.all_slices().into_iter().flatten());
    }
    Ok(slices)
}

/// For a new program: of the slices that the fewest live programs of its tenant have, and of these the fewest of its images,
/// so that all find room in one process, the one that the fewest others have, live ones and images.
pub fn choose<'a>(tenant: &str, of_images: ImageSlices, live: impl Iterator<Item = &'a Sandbox>) -> Slice {
    let (mut theirs, mut others) = (Vec::new(), of_images.others);
    for record in live.map(Sandbox::record) {
        let used = if record.tenant.as_deref() == Some(tenant) { &mut theirs } else { &mut others };
        let of_workers: Vec<Slice> = record.workers.iter().filter_map(|worker| worker.slice).collect();
        used.extend(record.slice.filter(|slice| !of_workers.contains(slice)));
        used.extend(of_workers);
    }
    least_used([&theirs, &of_images.theirs, &others])
}

/// The slice that the first of these have least; where that is the same, the next.
fn least_used(used: [&[Slice]; 3]) -> Slice {
    let users = |slice: &Slice| used.map(|used| used.iter().filter(|other| *other == slice).count());
    Slice::all().min_by_key(users).unwrap_or(Slice::FIRST)
}

/// Whether programs can share by this name: a tenant's, or that of an app's functions.
fn check_sharers(name: &str) -> Result<()> {
    check_name(name.strip_prefix(APP).unwrap_or(name))
}

pub fn check_name(tenant: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins_well = tenant.starts_with(|first: char| first.is_ascii_alphanumeric());
    match begins_well && tenant.len() <= LONGEST && tenant.bytes().all(plain) && tenant != NOBODY {
        true => Ok(()),
        false => Err(LifecycleError::BadTenant { tenant: tenant.to_string(), most: LONGEST }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_plain_name_and_each_process_its_own_slice() {
        let slice = Some(Slice::FIRST);
        assert!(are_whole(&[slice]) && are_whole(&[slice, slice]));
        assert!(![&[None][..], &[slice, None], &[]].into_iter().any(are_whole));
        check_sharers("team-1").unwrap();
        check_sharers("app:team-1").unwrap();
        for tenant in ["", "none", "a b", "../x", "-a", "app:", "app:-a", "app:app:a", "a:b", &"x".repeat(65)]
        {
            assert!(check_sharers(tenant).is_err(), "{tenant:?}");
        }
        assert!(check_name("app:a").is_err());
    }

    #[test]
    fn a_new_program_has_addresses_that_its_tenant_s_images_lack() {
        let slices =
            |numbers: &[u32]| -> Vec<Slice> { numbers.iter().filter_map(|one| Slice::new(*one)).collect() };
        let all: Vec<Slice> = Slice::all().collect();
        let last = [all.last().copied().unwrap()];
        let but_last = &all[..all.len() - 1];
        let least =
            |live: &[Slice], images: &[Slice], others: &[Slice]| least_used([live, images, others]).number();
        assert_eq!(least(&[], &[], &[]), 0);
        assert_eq!(least(&slices(&[0]), &slices(&[1]), &slices(&[2])), 3);
        // What the tenant's images have counts before what others have.
        assert_eq!(least(&[], but_last, &last), last[0].number());
        // Who lives counts before what is kept.
        assert_eq!(least(but_last, &last, &[]), last[0].number());
    }
}
