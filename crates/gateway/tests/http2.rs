//! Clients that speak HTTP/2 from their first byte, to a program that knows HTTP/1.1 alone.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rekindle_gateway::{Failure, Gateway, Holding, Instance, Maker, Plan, Source, TcpSocket};

/// A program that listens on a port of this machine's.
struct Program {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Instance for Program {
    fn sleep(&self) -> Result<(), String> {
        Err("it has no GPU".to_string())
    }

    fn wake(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn memory(&self) -> Option<Holding> {
        None
    }

    fn fault(&self) -> Option<String> {
        None
    }

    fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait_end(&self) -> String {
        let ended = self.ended.lock().unwrap();
        let _ended = self.changed.wait_while(ended, |ended| !*ended).unwrap();
        "ended".to_string()
    }

    fn socket(&self, is_v6: bool) -> io::Result<TcpSocket> {
        if is_v6 { TcpSocket::new_v6() } else { TcpSocket::new_v4() }
    }
}

struct Programs;

impl Maker for Programs {
    fn start(&self, _: &Source, _: &str) -> Result<Arc<dyn Instance>, Failure> {
        Ok(Arc::new(Program { ended: Mutex::new(false), changed: Condvar::new() }))
    }
}

/// Reads a head, and answers it once that is told; tells of it meanwhile.
fn answer(mut stream: TcpStream, told: &Sender<String>, go: &Mutex<Receiver<()>>) -> Option<()> {
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        told.send(String::from_utf8(head).ok()?).ok()?;
        go.lock().ok()?.recv().ok()?;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nKeep-Alive: timeout=9\r\n\r\nhello")
            .ok()?;
    }
}

#[test]
fn requests_beside_each_other_on_one_connection_reach_the_program_beside_each_other() {
    let program = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = program.local_addr().unwrap().port();
    let (told, heads) = channel();
    let (go, goes) = channel();
    let goes = Arc::new(Mutex::new(goes));
    std::thread::spawn(move || {
        for stream in program.incoming() {
            let (told, goes) = (told.clone(), goes.clone());
            std::thread::spawn(move || answer(stream.unwrap(), &told, &goes));
        }
    });
    let plan = Plan {
        min: 0,
        max: 1,
        concurrency: 2,
        idle_ms: 60_000,
        idle_end_ms: 0,
        queue: 9,
        timeout_ms: 60_000,
    };
    let source = Source { image: "i".into(), id: "i".into(), to, ..Source::default() };
    let gateway = Gateway::new(10, None);
    let service = gateway.make(("web", "web-"), None, plan.clone(), None, Arc::new(Programs)).unwrap();
    gateway.add(&service, None);
    service.roll_out(source, plan).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    gateway.listen(&service, listener).unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
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
    service.drain();
    assert!(service.wait_drained(std::time::Duration::from_secs(120)));
    assert_eq!(service.shown().counts.served, 2);
}
