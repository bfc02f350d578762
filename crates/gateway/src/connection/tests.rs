//! Clients that come over a pipe, and rest. The limit is short; that something does not happen is waited for longer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Frame;
use hyper::client::conn::{http1, http2};
use hyper::{Version, body::SizeHint};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch::{Sender, channel};
use tokio::task::{JoinHandle, spawn};
use tokio::time::{Sleep, sleep, timeout};

use super::*;

const REST: Duration = Duration::from_millis(100);
/// What a client begins with, without any setting.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// `GET http://a/`, with all of its head.
const GET: &[u8] = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a";
const GOAWAY: u8 = 7;

/// A server of one connection, and what its port is open by.
struct Server {
    done: JoinHandle<Result<(), Failure>>,
    open: Sender<()>,
}

impl Server {
    /// How its connection ends, which it does soon. A client that hears of it may close the pipe first, which is a failure, too.
    async fn end(self) -> Result<(), Failure> {
        timeout(Duration::from_secs(60), self.done).await.expect("the connection stays").unwrap()
    }
}

fn come() -> (DuplexStream, Server) {
    let (client, server) = duplex(1 << 16);
    let (open, stopping) = channel(());
    (client, Server { done: spawn(converse(server, answer, stopping, REST)), open })
}

/// Takes as many milliseconds as the path says for the answer's head, and once more for its body.
async fn answer(request: Request<Incoming>) -> Response<Slow> {
    let time = Duration::from_millis(request.uri().path()[1..].parse().unwrap_or(0));
    sleep(time).await;
    Response::new(Slow(Some(Box::pin(sleep(time)))))
}

struct Slow(Option<Pin<Box<Sleep>>>);

impl Body for Slow {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let Some(time) = &mut self.0 else { return Poll::Ready(None) };
        ready!(time.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(Some(Ok(Frame::data("answer".into()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(if self.0.is_some() { 6 } else { 0 })
    }
}

async fn whole(answer: hyper::Result<Response<Incoming>>) -> Bytes {
    let answer = answer.unwrap();
    assert_eq!(answer.headers()["content-length"], "6");
    answer.into_body().collect().await.unwrap().to_bytes()
}

fn get(uri: &str) -> Request<Empty<Bytes>> {
    Request::get(uri).body(Empty::new()).unwrap()
}

/// What a client gets that says no more: which kinds of frames.
async fn frames(mut client: DuplexStream) -> Vec<u8> {
    let mut kinds = Vec::new();
    let mut head = [0; 9];
    while client.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        client.read_exact(&mut vec![0; length as usize]).await.unwrap();
        kinds.push(head[3]);
    }
    kinds
}

#[tokio::test]
async fn one_of_http_2_that_rests_is_closed_after_a_word() {
    let (client, server) = come();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    let client = spawn(connection);
    for _ in 0..3 {
        assert_eq!(whole(sender.send_request(get("http://a/")).await).await, "answer");
    }
    let _ = server.end().await;
    client.await.unwrap().unwrap();
    assert!(sender.send_request(get("http://a/")).await.is_err());
}

#[tokio::test]
async fn one_with_a_request_is_not_closed_however_long_that_takes() {
    let (client, server) = come();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    spawn(connection);
    let long = spawn(sender.send_request(get("http://a/500")));
    // Others come and go meanwhile.
    assert_eq!(whole(sender.send_request(get("http://a/")).await).await, "answer");
    assert_eq!(whole(long.await.unwrap()).await, "answer");
    assert_eq!(whole(sender.send_request(get("http://a/")).await).await, "answer");
    let _ = server.end().await;
}

#[tokio::test]
async fn one_whose_client_does_not_hear_is_closed_all_the_same() {
    for asked in [&[PREFACE, GET].concat(), PREFACE] {
        let (mut client, server) = come();
        client.write_all(asked).await.unwrap();
        assert!(server.end().await.is_err());
        assert!(frames(client).await.contains(&GOAWAY));
    }
}

#[tokio::test]
async fn one_that_does_not_begin_is_closed() {
    for begun in [&b""[..], b"PRI * HT", b"GET / HT"] {
        let (mut client, server) = come();
        client.write_all(begun).await.unwrap();
        assert!(server.end().await.is_err());
    }
}

#[tokio::test]
async fn one_of_http_1_has_other_limits_once_it_has_asked() {
    let (client, server) = come();
    let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
    let client = spawn(connection);
    for _ in 0..2 {
        let answer = sender.send_request(get("/")).await;
        assert_eq!(answer.as_ref().unwrap().version(), Version::HTTP_11);
        assert_eq!(whole(answer).await, "answer");
        sleep(3 * REST).await;
    }
    drop(sender);
    client.await.unwrap().unwrap();
    server.end().await.unwrap();
}

#[tokio::test]
async fn when_the_port_is_closed_what_is_under_way_is_answered_and_no_more() {
    let (client, Server { done, open }) = come();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    let client = spawn(connection);
    let asked = spawn(sender.send_request(get("http://a/200")));
    sleep(REST).await;
    drop(open);
    assert_eq!(whole(asked.await.unwrap()).await, "answer");
    client.await.unwrap().unwrap();
    let _ = done.await.unwrap();
}
