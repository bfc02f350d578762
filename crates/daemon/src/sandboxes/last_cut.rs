//! When a program that goes on was last in an image, and what its GPU memory was then: how fast it writes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rekindle_protocol::daemon::Written;
use rekindle_store::{ContentHash, Image, PartKind};

/// By a part's name: the hashes of its chunks.
type Contents = HashMap<String, Vec<ContentHash>>;

/// Of one sandbox.
#[derive(Default)]
pub struct LastCut(Mutex<Option<Cut>>);

struct Cut {
    at: Instant,
    contents: Contents,
}

impl LastCut {
    /// What was written since the image before, if there was one. `image` is the last one from now on, of what was there `at`
    /// that time. `cpu_bytes` are known to be new in it.
    pub fn replace(&self, at: Instant, image: &Image, cpu_bytes: Option<u64>) -> Option<Written> {
        let contents: Contents = image
            .parts(PartKind::GpuBuffer)
            .map(|part| (part.name.clone(), part.chunks.iter().map(|chunk| chunk.hash).collect()))
            .collect();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = last.as_ref().map(|before| Written {
            since_us: at.saturating_duration_since(before.at).as_micros() as u64,
            gpu_bytes: new_bytes(image, &before.contents),
            cpu_bytes,
        });
        *last = Some(Cut { at, contents });
        written
    }
}

/// Bytes of chunks that were another, or not there.
fn new_bytes(image: &Image, had: &Contents) -> u64 {
    let of_part = |part: &rekindle_store::Part| {
        let before = had.get(&part.name);
        let is_new = |at: usize, hash| before.and_then(|hashes| hashes.get(at)) != Some(&hash);
        let chunks = part.chunks.iter().enumerate();
        chunks.filter(|(at, chunk)| is_new(*at, chunk.hash)).map(|(_, chunk)| chunk.bytes).sum::<u64>()
    };
    image.parts(PartKind::GpuBuffer).map(of_part).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rekindle_store::{Staging, Store};

    use super::*;

    const CHUNK: usize = 2 << 20;

    fn image(store: &Store, name: &str, parts: &[(&str, &[u8])]) -> Image {
        let draft = store.begin(name).unwrap();
        let staging = Staging::open(draft.path()).unwrap();
        let put = |(name, bytes): &(&str, &[u8])| {
            staging.put(PartKind::GpuBuffer, name, serde_json::Value::Null, bytes).unwrap()
        };
        draft.adopt(parts.iter().map(put).collect()).unwrap();
        draft.commit().unwrap();
        store.image(name).unwrap()
    }

    #[test]
    fn chunks_that_differ_and_those_of_new_memory_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let last = LastCut::default();
        let (began, first) = (Instant::now(), vec![1; 3 * CHUNK]);
        assert_eq!(last.replace(began, &image(&store, "1", &[("a", &first)]), None), None);
        let mut second = first.clone();
        second[CHUNK] = 2;
        let parts: [(&str, &[u8]); 2] = [("a", &second), ("b", &[7; 4096])];
        let at = began + Duration::from_secs(2);
        let written = Written { since_us: 2_000_000, gpu_bytes: CHUNK as u64 + 4096, cpu_bytes: Some(5) };
        assert_eq!(last.replace(at, &image(&store, "2", &parts), Some(5)), Some(written));
        let written = last.replace(at, &image(&store, "3", &parts[..1]), None);
        assert_eq!(written.map(|written| (written.since_us, written.gpu_bytes)), Some((0, 0)));
    }
}
