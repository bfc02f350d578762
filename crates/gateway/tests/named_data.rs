//! Requests that name an object in place of declared data.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use common::{Web, head, plan};
use rekindle_gateway::Source;

/// A service whose program answers with what it was told of data.
fn web() -> Web {
    let web = Web::of(|mut stream| {
        while let Some(head) = head(&stream) {
            let named: Vec<&str> = head.lines().filter(|line| line.starts_with("rekindle-data")).collect();
            let body = named.join("\n");
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let source = web.service.source().unwrap();
    let data_slots = vec!["weights=s3://models/".parse().unwrap()];
    web.service.roll_out(Source { data_slots, ..source }, plan()).unwrap();
    web
}

fn ask(web: &Web, named: &str) -> String {
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, web.port)).unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRekindle-Data: {named}\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_instance_is_told_which_object_a_request_names() {
    let answer = ask(&web(), "weights=s3://models/a");
    assert!(answer.ends_with("\r\n\r\nrekindle-data: weights=s3://models/a"), "{answer}");
}

#[test]
fn a_request_for_an_object_that_is_not_there_or_not_allowed_reaches_no_instance() {
    let web = web();
    for (named, status, kind) in [
        ("weights", "400 Bad Request", "malformed"),
        ("other=s3://models/a", "404 Not Found", "unknown"),
        ("weights=s3://secret/a", "403 Forbidden", "not-allowed"),
        ("weights=s3://models/missing", "404 Not Found", "missing"),
    ] {
        let answer = ask(&web, named);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        assert!(answer.contains(&format!("rekindle-data: {kind}\r\n")), "{answer}");
        let (_, sentence) = answer.split_once("\r\n\r\n").unwrap();
        assert!(sentence.ends_with('\n') && sentence.lines().count() == 1, "{answer}");
    }
    // Each place is free again.
    let answer = ask(&web, "weights=s3://models/a");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(web.service.shown().in_flight, 0);
}
