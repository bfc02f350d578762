//! On which GPUs a service's instances are to be.

use std::collections::HashSet;

use rekindle_gateway::{Place, Source};
use rekindle_protocol::service::ServiceRequest;
use rekindle_protocol::tenant::NOBODY;

use crate::error::Result;
use crate::host::gpu;
use crate::images::metadata::ImageMetadata;
use crate::services::ServiceError;

/// The GPU, or the first of several, and those that there are if they are several. What is not said stays; `none` is the image's.
pub fn wanted(
    image: &str,
    metadata: &ImageMetadata,
    request: &ServiceRequest,
    kept: Option<&Source>,
) -> Result<(Option<String>, Vec<Place>)> {
    let named = match request.gpus.as_slice() {
        [] => return Ok(kept.map(|source| (source.gpu.clone(), source.gpus.clone())).unwrap_or_default()),
        [one] if one == NOBODY => return Ok((None, Vec::new())),
        [one] => return Ok((Some(one.clone()), Vec::new())),
        several => several,
    };
    let refused = |reason: String| ServiceError::CannotServe { image: image.to_string(), reason };
    if metadata.driver.is_some() {
        let reason =
            "its GPU half is NVIDIA's driver's, which brings it back where it was; give one --gpu, or none";
        return Err(refused(reason.to_string()).into());
    }
    let place = |named: &String| {
        let chosen = gpu::choose(Some(named))?;
        Ok(Place { counted: gpu::first(&chosen).to_string(), gpu: chosen })
    };
    let places = named.iter().map(place).collect::<Result<Vec<Place>>>()?;
    let mut counted = HashSet::new();
    if let Some(twice) = places.iter().find(|place| !counted.insert(&place.counted)) {
        let reason = format!("{} is named twice as its GPU; name each GPU once", twice.counted);
        return Err(refused(reason).into());
    }
    Ok((places.first().map(|place| place.gpu.clone()), places))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(gpus: &[&str], kept: Option<&Source>) -> Result<(Option<String>, Vec<Place>)> {
        let request = ServiceRequest {
            gpus: gpus.iter().map(|gpu| gpu.to_string()).collect(),
            ..ServiceRequest::default()
        };
        wanted("i", &ImageMetadata::default(), &request, kept)
    }

    #[test]
    fn what_is_not_said_stays_and_none_is_the_images() {
        let (gpu, gpus) = of(&["emulated:0", "emulated:1"], None).unwrap();
        assert_eq!(gpu.as_deref(), Some("emulated:0"));
        assert_eq!(
            gpus.iter().map(|place| &*place.counted).collect::<Vec<_>>(),
            ["emulated:0", "emulated:1"]
        );
        let kept = Source { gpu, gpus, ..Source::default() };
        assert_eq!(of(&[], Some(&kept)).unwrap(), (kept.gpu.clone(), kept.gpus.clone()));
        assert_eq!(of(&["emulated:1"], Some(&kept)).unwrap(), (Some("emulated:1".into()), Vec::new()));
        assert_eq!(of(&[NOBODY], Some(&kept)).unwrap(), (None, Vec::new()));
        assert_eq!(of(&[], None).unwrap(), (None, Vec::new()));
    }

    #[test]
    fn each_gpu_is_named_once() {
        let refused = of(&["emulated:1", "emulated:1"], None).unwrap_err().to_string();
        assert!(refused.contains("twice"), "{refused}");
        assert!(of(&["emulated:1", "amd"], None).is_err());
    }
}
