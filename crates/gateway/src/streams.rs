//! The requests of a connection that are not answered to their end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Version;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch::Sender;
use tokio::time::timeout;

/// How many there are.
#[derive(Clone, Default)]
pub struct Streams(Arc<Sender<usize>>);

impl Streams {
    /// A request comes. One of HTTP/1 stays for ever, for its connection has limits of its own from then on.
    pub fn begin(&self, version: Version) -> Option<Stream> {
        if version != Version::HTTP_2 {
            self.0.send_if_modified(|open| std::mem::replace(open, 1) == 0);
            return None;
        }
        self.0.send_modify(|open| *open += 1);
        Some(Stream(self.clone()))
    }

    /// Returns when there was none for so long.
    pub async fn rested(&self, limit: Duration) {
        let mut open = self.0.subscribe();
        loop {
            let rests = *open.borrow_and_update() == 0;
            // Each change counts: one that came and went was there, too.
            if !rests {
                let _ = open.changed().await;
            } else if timeout(limit, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// One that is under way.
pub struct Stream(Streams);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

/// The body of an answer, whose request is under way until this goes.
pub struct StreamBody<B> {
    body: B,
    _stream: Option<Stream>,
}

impl<B> StreamBody<B> {
    pub fn new(body: B, stream: Option<Stream>) -> StreamBody<B> {
        StreamBody { body, _stream: stream }
    }
}

impl<B: Body + Unpin> Body for StreamBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
