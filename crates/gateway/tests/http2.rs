//! Clients that speak HTTP/2 from their first byte, to a program that knows HTTP/1.1 alone.

mod common;

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};

use common::Web;

/// Answers heads, each once that is told; tells of them meanwhile.
fn answer(mut stream: TcpStream, told: &Sender<String>, go: &Mutex<Receiver<()>>) -> Option<()> {
    loop {
        told.send(common::head(&stream)?).ok()?;
        go.lock().ok()?.recv().ok()?;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep-Alive: timeout=9\r\n\r\nhello")
            .ok()?;
    }
}

#[test]
fn requests_beside_each_other_on_one_connection_reach_the_program_beside_each_other() {
    let (told, heads) = channel();
    let (go, goes) = channel();
    let goes = Arc::new(Mutex::new(goes));
    let web = Web::of(move |stream| {
        answer(stream, &told, &goes);
    });

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, web.port)).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let ask = |path: &str| {
            let request =
                Request::post(format!("http://example.com{path}")).body(Full::<Bytes>::from("body"));
            tokio::spawn(sender.clone().send_request(request.unwrap()))
        };
        let asked = [ask("/a"), ask("/b")];
        let heads = tokio::task::spawn_blocking(move || [heads.recv().unwrap(), heads.recv().unwrap()])
            .await
            .unwrap();
        let mut lines: Vec<&str> = heads.iter().map(|head| head.lines().next().unwrap()).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["POST /a HTTP/1.1", "POST /b HTTP/1.1"]);
        assert!(heads.iter().all(|head| head.contains("\r\nhost: example.com\r\n")), "{heads:?}");
        go.send(()).unwrap();
        go.send(()).unwrap();
        for answer in asked {
            let answer = answer.await.unwrap().unwrap();
            assert_eq!((answer.status().as_u16(), answer.headers().get("keep-alive")), (200, None));
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
        }
    });
    web.service.drain();
    assert!(web.service.wait_drained(std::time::Duration::from_secs(120)));
    assert_eq!(web.service.shown().counts.served, 2);
}
