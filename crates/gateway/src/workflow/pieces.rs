//! A body whose parts lie in several places of memory, none of which is copied.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Goes out part by part. Without any it is no body.
#[derive(Clone, Debug, Default)]
pub struct Pieces(VecDeque<Bytes>);

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.push(bytes);
        pieces
    }
}

impl Pieces {
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.0.push_back(bytes);
        }
    }

    /// All of it, in one place.
    pub fn whole(self) -> Bytes {
        match self.0.len() {
            1 => self.0.into_iter().next().unwrap_or_default(),
            _ => self.0.iter().map(|piece| &piece[..]).collect::<Vec<_>>().concat().into(),
        }
    }

    fn length(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length())
    }
}
