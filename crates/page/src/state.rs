//! The document that the page shows: collected when somebody asks, once for all who ask within a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// For how long it is not collected again.
const FRESH: Duration = Duration::from_millis(500);

pub struct State<F> {
    collect: Arc<F>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl<F: Fn() -> String + Send + Sync + 'static> State<F> {
    pub fn new(collect: F) -> State<F> {
        State { collect: Arc::new(collect), last: Mutex::new(None) }
    }

    /// None if it could not be collected. Who comes meanwhile waits for the same one.
    pub async fn get(&self) -> Option<Bytes> {
        let mut last = self.last.lock().await;
        if let Some((_, known)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Some(known.clone());
        }
        let collect = self.collect.clone();
        let collected = Bytes::from(spawn_blocking(move || collect()).await.ok()?);
        *last = Some((Instant::now(), collected.clone()));
        Some(collected)
    }
}
