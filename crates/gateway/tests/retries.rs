//! Requests that are sent once more, for the instance that had them was lost.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use common::{Web, head, plan};
use rekindle_gateway::Plan;

const TIMEOUT: Duration = Duration::from_millis(300);

/// Ends the first connection that asks, after longer than a request may wait; answers all others.
fn program(mut stream: TcpStream, is_first: &AtomicBool) -> Option<()> {
    loop {
        head(&stream)?;
        if is_first.swap(false, Ordering::SeqCst) {
            sleep(TIMEOUT * 2);
            return None;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").ok()?;
    }
}

#[test]
fn a_request_that_was_long_at_an_instance_that_is_lost_has_its_second_try() {
    let is_first = Arc::new(AtomicBool::new(true));
    let web = Web::of(move |stream| {
        program(stream, &is_first);
    });
    web.service.replan(Plan { timeout_ms: TIMEOUT.as_millis() as u64, ..plan() });
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, web.port)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
}

#[test]
fn a_request_to_upgrade_that_was_lost_has_its_second_try_too() {
    let is_first = Arc::new(AtomicBool::new(true));
    let web = Web::of(move |mut stream| {
        // What is sent once more comes on a connection of its own.
        if head(&stream).is_some() && !is_first.swap(false, Ordering::SeqCst) {
            let upgraded = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: own\r\n\r\n";
            stream.write_all(upgraded).unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).unwrap();
            stream.write_all(&said).unwrap();
        }
    });
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, web.port)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: own\r\n\r\n").unwrap();
    assert!(head(&client).unwrap().starts_with("HTTP/1.1 101 "));
    client.write_all(b"hello").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "hello");
}
