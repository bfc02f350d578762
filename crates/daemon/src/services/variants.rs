//! Several images of one program. An image keeps the addresses that its program had, so a context has room for one instance
//! of it; instances of images with different addresses fit in one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_gateway::{Source, Variant};
use rekindle_protocol::service_name::ServiceName;

use super::instances;
use crate::daemon::Daemon;
use crate::error::Result;
use crate::images::metadata::ImageMetadata;
use crate::lifecycle::slices;
use crate::services::ServiceError;

/// An image that an instance is of, or is being made of, and the GPU.
type Made = (String, Option<String>);

/// Which of a service's images instances are being made of, and on which GPUs.
#[derive(Default)]
pub struct PendingVariants(Mutex<Vec<Made>>);

/// One is being made, until this is dropped.
pub struct Chosen<'c> {
    coming: &'c PendingVariants,
    variant: Variant,
    gpu: Option<String>,
}

impl PendingVariants {
    /// The image that the fewest instances on the source's GPU are of. `running` are those that there are.
    pub fn choose(&self, source: &Source, running: impl FnOnce() -> Vec<Made>) -> Chosen<'_> {
        let mut coming = self.lock();
        let there = if source.variants.is_empty() { Vec::new() } else { running() };
        // Of one GPU alone, they may have that by the image's.
        let gpu = source.gpu.clone().filter(|_| !source.gpus.is_empty());
        let is_there = |made: &&Made| gpu.is_none() || made.1 == gpu;
        let count = |variant: &Variant| {
            let made = there.iter().chain(coming.iter()).filter(is_there);
            made.filter(|(image, _)| *image == variant.image).count()
        };
        let first = Variant { image: source.image.clone(), id: source.id.clone() };
        let variant = source.images().min_by_key(count).unwrap_or(first);
        coming.push((variant.image.clone(), gpu.clone()));
        drop(coming);
        Chosen { coming: self, variant, gpu }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Made>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chosen<'_> {
    pub fn variant(&self) -> &Variant {
        &self.variant
    }
}

impl Drop for Chosen<'_> {
    fn drop(&mut self) {
        let mut coming = self.coming.lock();
        if let Some(at) =
            coming.iter().position(|made| (&made.0, &made.1) == (&self.variant.image, &self.gpu))
        {
            coming.swap_remove(at);
        }
    }
}

/// The images and GPUs of a service's instances.
pub fn running(daemon: &Daemon, service: &ServiceName) -> Vec<Made> {
    let records = daemon.sandboxes.all().into_iter().map(|sandbox| sandbox.record());
    let own = records.filter(|record| record.is_live() && record.of_service().as_ref() == Some(service));
    own.filter_map(|record| Some((record.image?, Some(record.gpu)))).collect()
}

/// The further images of a service. Each can share contexts, at addresses that none of the others has.
pub fn find(
    daemon: &Daemon,
    (image, metadata): (&str, &ImageMetadata),
    tenant: Option<&str>,
    names: &[String],
) -> Result<Vec<Variant>> {
    let refused =
        |name: &str, reason: String| ServiceError::CannotServe { image: name.to_string(), reason }.into();
    let slices_of =
        |metadata: &ImageMetadata| metadata.all_slices().into_iter().flatten().collect::<Vec<_>>();
    let mut taken = vec![(image.to_string(), slices_of(metadata))];
    let mut variants = Vec::new();
    for name in names {
        let Some(tenant) = tenant else {
            let reason = "further images are for instances that share GPU contexts; say --share TENANT";
            return Err(refused(name, reason.to_string()));
        };
        let opened = daemon.store.image(name)?;
        let metadata = ImageMetadata::read(&opened)?;
        instances::check(name, &metadata)?;
        slices::check(tenant, name, &metadata)?;
        let slices = slices_of(&metadata);
        if let Some((other, _)) =
            taken.iter().find(|(_, taken)| taken.iter().any(|slice| slices.contains(slice)))
        {
            let reason = format!(
                "its program has the addresses of that of {other:?}, so that one context cannot have both; take it from a \
                 program that was started while the other one ran"
            );
            return Err(refused(name, reason));
        }
        taken.push((name.clone(), slices));
        variants.push(Variant { image: name.clone(), id: opened.manifest().id.clone() });
    }
    Ok(variants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_spread_over_the_images() {
        let source: Source = serde_json::from_value(serde_json::json!({
            "image": "a", "id": "1", "to": 1, "gpu": null, "level": "host",
            "variants": [{ "image": "b", "id": "2" }, { "image": "c", "id": "3" }],
        }))
        .unwrap();
        let coming = PendingVariants::default();
        let on = |image: &str, gpu: &str| (image.to_string(), Some(gpu.to_string()));
        let there = || vec![on("a", "x"), on("c", "y")];
        let first = coming.choose(&source, there);
        assert_eq!(first.variant().image, "b");
        let second = coming.choose(&source, there);
        assert_eq!(second.variant().image, "a");
        drop(second);
        assert_eq!(coming.choose(&source, || vec![on("a", "x")]).variant().image, "c");
        drop(first);
        assert_eq!(coming.choose(&source, there).variant().id, "2");
    }

    #[test]
    fn each_gpu_has_room_for_each_image() {
        let variants =
            [("a", "1"), ("b", "2")].map(|(image, id)| Variant { image: image.into(), id: id.into() });
        let place = |gpu: &str| rekindle_gateway::Place { gpu: gpu.into(), counted: gpu.into() };
        let [first, second] = variants;
        let source = Source {
            image: first.image,
            id: first.id,
            variants: vec![second],
            gpu: Some("x".into()),
            gpus: vec![place("x"), place("y")],
            ..Source::default()
        };
        let coming = PendingVariants::default();
        let there = || vec![("a".to_string(), Some("x".to_string()))];
        assert_eq!(coming.choose(&source, there).variant().image, "b");
        assert_eq!(coming.choose(&source.on("y").unwrap(), there).variant().image, "a");
    }
}
