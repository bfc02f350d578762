//! Heads of HTTP/2 that are larger than they may be, and clients that build them by hand.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};

use common::{Web, head};

type Client = SendRequest<Empty<Bytes>>;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET http://a/`.
const START: &[u8] = b"\x82\x86\x84\x01\x01a";
/// The field that was kept last.
const AGAIN: u8 = 0xbe;

/// Says how many fields a head has.
fn program(mut stream: TcpStream) -> Option<()> {
    loop {
        let fields = head(&stream)?.lines().count() - 2;
        write!(stream, "HTTP/1.1 200 OK\r\nX-Fields: {fields}\r\nContent-Length: 0\r\n\r\n").ok()?;
    }
}

fn begin() -> Web {
    Web::of(|stream| {
        program(stream);
    })
}

async fn come(web: &Web) -> Client {
    let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, web.port)).await.unwrap();
    let (client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Asks with so many fields of so many bytes each. What is answered, and how many fields the program had beside those that
/// are always there.
async fn ask(client: &mut Client, name: &str, count: usize, size: usize) -> (StatusCode, Option<usize>) {
    let mut request = Request::get("http://a/");
    for number in 0..count {
        request = request.header(name.replace('#', &number.to_string()), "x".repeat(size));
    }
    let answer = client.send_request(request.body(Empty::new()).unwrap()).await.unwrap();
    let fields = answer.headers().get("x-fields").map(|fields| fields.to_str().unwrap().parse().unwrap());
    (answer.status(), fields)
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_and_the_connection_goes_on() {
    let web = begin();
    let mut client = come(&web).await;
    let (status, always) = ask(&mut client, "x-#", 0, 0).await;
    let (refused, always) = ((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, None), always.unwrap());
    assert_eq!(status, StatusCode::OK);
    assert_eq!(ask(&mut client, "x-#", 60, 1000).await, (StatusCode::OK, Some(always + 60)));
    assert_eq!(ask(&mut client, "x-#", 70, 1000).await, refused);
    assert_eq!(ask(&mut client, "x-#", 1, 70_000).await, refused);
    // As many fields as with HTTP/1.1, where cookies are one.
    assert_eq!(ask(&mut client, "x-#", 128, 1).await, (StatusCode::OK, Some(always + 128)));
    assert_eq!(ask(&mut client, "x-#", 129, 1).await, refused);
    assert_eq!(ask(&mut client, "cookie", 200, 1).await, (StatusCode::OK, Some(always + 1)));
    assert_eq!(ask(&mut client, "x-#", 0, 0).await, (StatusCode::OK, Some(always)));
    assert_eq!(web.service.shown().counts.failed, 0);
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, stream];
    [&head[..], payload].concat()
}

/// `GET http://a/`, and a field of four thousand bytes that is kept, to be named by a byte from then on.
fn seed() -> Vec<u8> {
    let value = 4000 - 127;
    let length = [127, (value & 127 | 128) as u8, (value >> 7) as u8];
    [START, b"\x40\x01x", &length, &[b'x'; 4000]].concat()
}

/// Kinds of the frames that come until the connection ends, or one of this kind has come.
fn kinds(mut stream: &TcpStream, last: u8) -> Vec<u8> {
    let (mut kinds, mut head) = (Vec::new(), [0; 9]);
    while kinds.last() != Some(&last) && stream.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).unwrap();
        kinds.push(head[3]);
    }
    kinds
}

fn connect(web: &Web) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, web.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (&stream).write_all(PREFACE).unwrap();
    stream
}

#[tokio::test]
async fn a_head_that_grows_when_it_is_unpacked_is_refused() {
    let web = begin();
    let mut stream = connect(&web);
    stream.write_all(&frame(HEADERS, END_STREAM, 1, &seed())).unwrap();
    stream.write_all(&frame(CONTINUATION, END_HEADERS, 1, &[AGAIN; 30])).unwrap();
    assert!(kinds(&stream, HEADERS).contains(&HEADERS), "an answer");
    // Forty megabytes end the connection, before they are there.
    stream
        .write_all(&frame(HEADERS, END_STREAM | END_HEADERS, 3, &[START, &[AGAIN; 10_000]].concat()))
        .unwrap();
    let kinds = kinds(&stream, GOAWAY);
    assert!(kinds.contains(&GOAWAY) && !kinds.contains(&HEADERS), "{kinds:?}");
    assert_eq!(ask(&mut come(&web).await, "x-#", 0, 0).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_head_without_an_end_ends_its_connection() {
    let web = begin();
    let mut stream = connect(&web);
    stream.write_all(&frame(HEADERS, END_STREAM, 1, &seed())).unwrap();
    // It may be gone before all of it is written.
    for _ in 0..1000 {
        let _ = stream.write_all(&frame(CONTINUATION, 0, 1, &[AGAIN; 10_000]));
    }
    let kinds = kinds(&stream, GOAWAY);
    assert!(!kinds.contains(&HEADERS), "{kinds:?}");
    assert_eq!(ask(&mut come(&web).await, "x-#", 0, 0).await.0, StatusCode::OK);
}
