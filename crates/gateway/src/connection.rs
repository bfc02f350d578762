//! A client's connection: HTTP/1.1, or HTTP/2 for who begins with that.
//!
//! ```text
//!   comes ─▶ has requests ◀─▶ has none ── too long ─▶ is asked to end ── has none, too long ─▶ is closed
//!                                                        └─▶ ends
//! ```
//!
//! A connection has a place that others wait for: one that rests gives it back.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch::Receiver;

use crate::limits;
use crate::streams::{StreamBody, Streams};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Has `ask` answer a client's requests, until there are no more, or none for as long as it may `rest`. When what
/// `stopping` hears from goes, those that are under way are the last.
pub async fn converse<F, B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ask: impl Fn(Request<Incoming>) -> F,
    mut stopping: Receiver<()>,
    rest: Duration,
) -> Result<(), Failure>
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body + Unpin + Send + 'static,
    B::Data: Send,
    B::Error: Into<Failure>,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIME)
        .max_buf_size(limits::BUFFER)
        .max_headers(limits::HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::STREAMS)
        .max_header_list_size(limits::BUFFER as u32);
    let streams = Streams::default();
    let request = service_fn(|request: Request<Incoming>| {
        let stream = streams.begin(request.version());
        let answer = ask(request);
        async move { Ok::<_, Infallible>(answer.await.map(|body| StreamBody::new(body, stream))) }
    });
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), request));
    let mut is_ending = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = streams.rested(rest) => {
                // With HTTP/2 the end takes a word of the client's.
                if is_ending {
                    return Err("it did not end when it was asked to".into());
                }
            }
            _ = stopping.changed(), if !is_ending => {}
        }
        is_ending = true;
        connection.as_mut().graceful_shutdown();
    }
}

#[cfg(test)]
mod tests;
