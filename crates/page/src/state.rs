//! A document about the daemon: collected when somebody asks, once for all who ask within a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// For how long it is not collected again.
const FRESH: Duration = Duration::from_millis(500);

/// Collects a document; none if that cannot be.
pub type Collect = Box<dyn Fn() -> Option<String> + Send + Sync>;

pub struct State {
    collect: Arc<Collect>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl State {
    pub fn new(collect: Collect) -> State {
        State { collect: Arc::new(collect), last: Mutex::new(None) }
    }

    /// None if it could not be collected. Who comes meanwhile waits for the same one.
    pub async fn get(&self) -> Option<Bytes> {
        let mut last = self.last.lock().await;
        if let Some((_, known)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Some(known.clone());
        }
        let collect = self.collect.clone();
        let collected = Bytes::from(spawn_blocking(move || collect()).await.ok()??);
        *last = Some((Instant::now(), collected.clone()));
        Some(collected)
    }
}
