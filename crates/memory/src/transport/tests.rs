//! Whole objects come as they are, however their server answers.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rekindle_protocol::data::{Problem, ProblemKind};

use crate::objects::{ObjectChange, Objects};
use crate::room::Budget;
use crate::store::Stores;

/// Several requests, the last of which is no whole step.
const BYTES: usize = (19 << 20) + 12_345;

/// For how long nothing may come here, and what comes within it, so often.
const SILENCE: Duration = Duration::from_millis(1500);
const TRICKLE: Duration = Duration::from_millis(200);
const TRICKLES: usize = 10;

fn contents() -> Vec<u8> {
    (0..BYTES as u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Plain,
    Moved,
    /// Each connection is closed after one answer, which does not say so.
    Closing,
    /// Every other answer breaks off.
    Short,
    /// Every other answer, or all of them, stop in the middle, and the connection stays open.
    Stalling,
    Silent,
    /// A few bytes come at a time; and from elsewhere.
    Trickling,
    MovedTrickling,
}

struct Server {
    manner: Manner,
    contents: Vec<u8>,
    connections: AtomicUsize,
    /// Requests for ranges.
    ranges: AtomicUsize,
}

impl Server {
    fn begin(manner: Manner) -> (Arc<Server>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (connections, ranges) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let server = Arc::new(Server { manner, contents: contents(), connections, ranges });
        let own = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                own.connections.fetch_add(1, Ordering::Relaxed);
                let server = own.clone();
                std::thread::spawn(move || server.serve(stream.unwrap()));
            }
        });
        (server, url)
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).ok()?;
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).ok()?.to_lowercase();
            let is_moved = matches!(self.manner, Manner::Moved | Manner::MovedTrickling);
            if is_moved && !head.contains(" /there ") {
                let text = "HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(text.as_bytes()).ok()?;
                continue;
            }
            let tag = "ETag: \"one\"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n";
            if head.starts_with("head") {
                write!(stream, "HTTP/1.1 200 OK\r\n{tag}Content-Length: {BYTES}\r\n\r\n").ok()?;
                continue;
            }
            let number = self.ranges.fetch_add(1, Ordering::Relaxed);
            let range = head.split("range: bytes=").nth(1)?.lines().next()?;
            let (first, last) = range.split_once('-')?;
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            let body = &self.contents[first..=last];
            write!(stream, "HTTP/1.1 206 Partial Content\r\n{tag}Content-Range: bytes {range}/{BYTES}\r\n")
                .ok()?;
            write!(stream, "Content-Length: {}\r\n\r\n", body.len()).ok()?;
            let is_half = match self.manner {
                Manner::Short | Manner::Stalling => number.is_multiple_of(2),
                manner => manner == Manner::Silent,
            };
            for piece in body[..if is_half { body.len() / 2 } else { body.len() }]
                .chunks(body.len().div_ceil(TRICKLES))
            {
                if matches!(self.manner, Manner::Trickling | Manner::MovedTrickling) {
                    std::thread::sleep(TRICKLE);
                }
                stream.write_all(piece).ok()?;
            }
            if is_half && self.manner != Manner::Short {
                // Until the other end gives up.
                stream.read_exact(&mut [0]).ok()?;
            }
            if is_half || self.manner == Manner::Closing {
                return None;
            }
        }
    }
}

/// What the server was asked for one object, connections and requests for ranges, and what became of it.
fn attempt(manner: Manner) -> (usize, usize, Result<(), Problem>) {
    let (server, url) = Server::begin(manner);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let patience = Duration::from_secs(if manner == Manner::Silent { 2 } else { 20 });
    let stores = Stores::new(patience, None, Vec::new()).with_silence(SILENCE);
    let objects = Objects::new(stores, Budget::new(1 << 30), runtime.handle().clone());
    let object = objects.ask(&format!("{url}/here")).unwrap();
    let mut told = 0;
    let came = loop {
        match object.news(told) {
            ObjectChange::Ready(..) => told += 1,
            ObjectChange::End(came) => break came,
        }
    };
    if came.is_ok() {
        let mut found = vec![0; BYTES];
        File::from(object.reader().unwrap()).read_exact_at(&mut found, 0).unwrap();
        assert!(found == server.contents);
    }
    (server.connections.load(Ordering::Relaxed), server.ranges.load(Ordering::Relaxed), came)
}

/// Connections and requests for ranges of an object that came as it is.
fn load(manner: Manner) -> (usize, usize) {
    let (connections, ranges, came) = attempt(manner);
    came.unwrap();
    (connections, ranges)
}

#[test]
fn ranges_are_asked_for_once_and_lie_where_they_are_to() {
    // One connection for each range at most, and one for the version.
    let (connections, ranges) = load(Manner::Plain);
    assert!(connections <= 4 && ranges == 3, "{connections} connections, {ranges} ranges");
}

#[test]
fn what_leads_elsewhere_is_followed_by_the_usual_client() {
    assert_eq!(load(Manner::Moved).1, 3);
}

#[test]
fn connections_that_are_closed_and_bodies_that_break_off_are_made_again() {
    assert_eq!(load(Manner::Closing).1, 3);
    assert!(load(Manner::Short).1 >= 5);
}

#[test]
fn a_store_that_says_nothing_any_more_is_asked_by_another_connection() {
    let (connections, ranges) = load(Manner::Stalling);
    assert!(connections >= 5 && ranges >= 5, "{connections} connections, {ranges} ranges");
}

#[test]
fn a_store_that_never_says_the_rest_is_told_of_in_a_sentence() {
    let (_, ranges, came) = attempt(Manner::Silent);
    let problem = came.unwrap_err();
    assert_eq!(problem.kind, ProblemKind::Unavailable);
    let (start, end) = ("http://127.0.0.1:", "; look whether its store works and can be reached from here");
    let is_named = problem.sentence.starts_with(start) && problem.sentence.contains("/here cannot be read (");
    assert!(is_named && problem.sentence.ends_with(end), "{problem:?}");
    assert!(ranges >= 4, "{ranges}");
}

#[test]
fn a_store_from_which_little_comes_at_a_time_is_waited_for() {
    assert_eq!(load(Manner::Trickling).1, 3);
    assert_eq!(load(Manner::MovedTrickling).1, 3);
}
