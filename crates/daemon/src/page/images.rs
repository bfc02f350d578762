//! Images for the page. Their manifests are read from the disk, so that is not done each second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::Result;
use crate::lifecycle::images;

/// For how long they are not read again.
const FRESH: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Images {
    last: Mutex<Option<(Instant, Value)>>,
}

impl Images {
    pub fn shown(&self, daemon: &Daemon) -> Result<Value> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(known.clone());
        }
        let mut list = images::list(daemon)?;
        let all: Vec<Value> =
            list["images"].as_array_mut().into_iter().flatten().map(|image| row(image.take())).collect();
        *last = Some((Instant::now(), json!(all)));
        Ok(json!(all))
    }
}

/// What is shown of an image: no paths, and no words of its program's, which may be secret.
fn row(mut image: Value) -> Value {
    let cached = &image["cached_bytes"];
    let on_gpus = cached["gpus"].as_object().into_iter().flat_map(|gpus| gpus.values());
    let cached: u64 = on_gpus.chain([&cached["host"]]).filter_map(Value::as_u64).sum();
    json!({
        "name": image["name"].take(),
        "created": image["created"].take(),
        "mode": image["mode"].take(),
        "gpus": image["gpus"].take(),
        "sizes": image["sizes"].take(),
        "shared_bytes": image["shared_bytes"].take(),
        "cached_bytes": cached,
        "problem": image["problem"].take(),
    })
}
