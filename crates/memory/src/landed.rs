//! A body whose bytes go from the socket to their place in an object's memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use object_store::client::HttpError;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::objects::Object;
use crate::shared::STEP;
use crate::transport::{Pool, failed};

/// What it yields is what lies there: who writes that to the same place has nothing to copy.
pub struct Landed {
    stream: Option<TcpStream>,
    /// Where the connection goes afterwards.
    back: Option<(Arc<Pool>, String)>,
    object: Arc<Object>,
    /// Where the next bytes lie that are not yielded yet, how many there are, and how many of them have come.
    at: u64,
    left: u64,
    filled: usize,
    /// What came with the head.
    early: Bytes,
    /// For how long nothing may come, and until when.
    limit: Duration,
    silence: Pin<Box<Sleep>>,
}

/// Bytes in an object's memory.
struct ObjectBytes {
    object: Arc<Object>,
    at: u64,
    bytes: usize,
}

impl AsRef<[u8]> for ObjectBytes {
    fn as_ref(&self) -> &[u8] {
        self.object.memory.written(self.at, self.bytes)
    }
}

impl Landed {
    pub fn new(
        stream: TcpStream,
        back: Option<(Arc<Pool>, String)>,
        object: Arc<Object>,
        (at, left): (u64, u64),
        early: Bytes,
        limit: Duration,
    ) -> Landed {
        let silence = Box::pin(sleep(limit));
        Landed { stream: Some(stream), back, object, at, left, filled: 0, early, limit, silence }
    }

    /// Reads until a step of memory is full or all is there.
    fn fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &self.stream else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        let wanted = (STEP as u64 - self.at % STEP as u64).min(self.left) as usize;
        let memory = &self.object.memory;
        if !self.early.is_empty() {
            let early = self.early.split_to(self.early.len().min(wanted));
            memory.write(self.at, &early)?;
            self.filled = early.len();
        }
        while self.filled < wanted {
            let read = match ready!(stream.poll_read_ready(context)) {
                Ok(()) => memory.read_into(self.at + self.filled as u64, wanted - self.filled, |room| {
                    stream.try_read(room)
                }),
                Err(error) => Err(error),
            };
            match read {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.filled += count;
                    self.silence.as_mut().reset(Instant::now() + self.limit);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Body for Landed {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let body = self.get_mut();
        if body.left == 0 {
            return Poll::Ready(None);
        }
        let filled = match body.fill(context) {
            Poll::Ready(filled) => filled,
            Poll::Pending => {
                ready!(body.silence.as_mut().poll(context));
                Err(io::ErrorKind::TimedOut.into())
            }
        };
        if let Err(error) = filled {
            body.stream = None;
            return Poll::Ready(Some(Err(failed(error))));
        }
        let landed =
            ObjectBytes { object: body.object.clone(), at: body.at, bytes: std::mem::take(&mut body.filled) };
        body.at += landed.bytes as u64;
        body.left -= landed.bytes as u64;
        if body.left == 0
            && let (Some(stream), Some((pool, host))) = (body.stream.take(), &body.back)
        {
            pool.give(host, stream);
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(landed)))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
