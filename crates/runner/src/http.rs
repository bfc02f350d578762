//! HTTP/1.1 as the gateway speaks it: requests one after the other on connections that stay.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use crate::trace::Trace;

/// Of a head; the gateway lets no larger one through.
const HEAD: usize = 1 << 17;
const HEADERS: usize = 160;
/// How much is read at once while nobody knows how much will come.
const PIECE: usize = 1 << 14;

#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    pub body: Vec<u8>,
    /// The version of messages that the body needs: `Rekindle-Message`.
    pub message: u32,
    /// The trace that it is in, if that is followed: `traceparent`.
    pub trace: Option<Arc<Trace>>,
    /// Whether another request may follow.
    pub stays: bool,
}

/// Requests of one connection.
pub struct Requests<S> {
    stream: S,
    /// What has come and is not taken yet.
    ahead: Vec<u8>,
}

struct Head {
    request: Request,
    length: Length,
    waits: bool,
    bytes: usize,
}

enum Length {
    Bytes(u64),
    Chunks,
}

impl<S: Read + Write> Requests<S> {
    pub fn new(stream: S) -> Requests<S> {
        Requests { stream, ahead: Vec::new() }
    }

    /// The next one; none if the other side has ended it.
    pub fn next(&mut self) -> io::Result<Option<Request>> {
        let head = loop {
            if let Some(head) = parse(&self.ahead)? {
                break head;
            }
            if self.ahead.len() > HEAD {
                return Err(invalid("a request's head is too large"));
            }
            if !self.read_some()? {
                return if self.ahead.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        };
        self.ahead.drain(..head.bytes);
        if head.waits {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let body = match head.length {
            Length::Bytes(length) => self.take(length)?,
            Length::Chunks => self.chunks()?,
        };
        Ok(Some(Request { body, ..head.request }))
    }

    fn read_some(&mut self) -> io::Result<bool> {
        let have = self.ahead.len();
        self.ahead.resize(have + PIECE, 0);
        let read = loop {
            match self.stream.read(&mut self.ahead[have..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.ahead.truncate(have + read.as_ref().copied().unwrap_or(0));
        Ok(read? > 0)
    }

    fn take(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let here = self.ahead.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        let mut body: Vec<u8> = self.ahead.drain(..here).collect();
        let missing = length - here as u64;
        if missing > 0 {
            let wanted = usize::try_from(missing).map_err(|_| invalid("a body is too large"))?;
            body.try_reserve_exact(wanted).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
            if (&mut self.stream).take(missing).read_to_end(&mut body)? as u64 != missing {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(body)
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = httparse::parse_chunk_size(&line).map_err(|_| invalid("a chunk has no size"))?;
            let httparse::Status::Complete((_, size)) = size else {
                return Err(invalid("a chunk has no size"));
            };
            if size == 0 {
                // Fields that follow are not needed.
                while self.line()? != b"\r\n" {}
                return Ok(body);
            }
            body.append(&mut self.take(size)?);
            if self.line()? != b"\r\n" {
                return Err(invalid("a chunk is longer than it says"));
            }
        }
    }

    /// With its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                return Ok(self.ahead.drain(..=end).collect());
            }
            if self.ahead.len() > HEAD {
                return Err(invalid("a line is too long"));
            }
            if !self.read_some()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let end = match parsed.parse(bytes).map_err(|error| invalid(&error.to_string()))? {
        httparse::Status::Complete(end) => end,
        httparse::Status::Partial => return Ok(None),
    };
    let target = parsed.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path).to_string();
    let method = parsed.method.unwrap_or_default().to_string();
    let mut head = Head {
        request: Request { method, path, message: 1, stays: parsed.version == Some(1), ..Request::default() },
        length: Length::Bytes(0),
        waits: false,
        bytes: end,
    };
    for header in parsed.headers.iter() {
        let value = String::from_utf8_lossy(header.value).trim().to_ascii_lowercase();
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let length = value.parse().map_err(|_| invalid("a body's length is no number"))?;
                if !matches!(head.length, Length::Chunks) {
                    head.length = Length::Bytes(length);
                }
            }
            "transfer-encoding" if value == "chunked" => head.length = Length::Chunks,
            "transfer-encoding" => return Err(invalid("a body's encoding is not known")),
            "connection" if value.split(',').any(|word| word.trim() == "close") => head.request.stays = false,
            "traceparent" => head.request.trace = Trace::of(&value),
            "rekindle-message" => {
                head.request.message =
                    value.parse().map_err(|_| invalid("a message's version is no number"))?
            }
            "expect" if value == "100-continue" => head.waits = true,
            _ => {}
        }
    }
    Ok(Some(head))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it has, so many bytes at a time.
    struct Stream {
        given: Vec<u8>,
        at: usize,
        step: usize,
        said: Vec<u8>,
    }

    impl Read for Stream {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(room.len()).min(self.given.len() - self.at);
            room[..count].copy_from_slice(&self.given[self.at..self.at + count]);
            self.at += count;
            Ok(count)
        }
    }

    impl Write for Stream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.said.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn requests(given: &str, step: usize) -> Requests<Stream> {
        Requests::new(Stream { given: given.into(), at: 0, step, said: Vec::new() })
    }

    const TWO: &str = "POST /-/call/a?x=1 HTTP/1.1\r\nContent-Length: 5\r\nRekindle-Message: 7\r\n\
        traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nExpect: 100-continue\r\n\r\nhello\
        POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\na;x=y\r\n0123456789\r\n0\r\nT: u\r\n\r\n";

    #[test]
    fn requests_follow_each_other_however_they_come() {
        for step in [1, 2, 3, 7, 100, 1000] {
            let mut requests = requests(TWO, step);
            let first = requests.next().unwrap().unwrap();
            assert_eq!(
                (first.path.as_str(), &first.body[..], first.message, first.stays),
                ("/-/call/a", &b"hello"[..], 7, true)
            );
            assert!(requests.stream.said.starts_with(b"HTTP/1.1 100 "));
            let second = requests.next().unwrap().unwrap();
            assert_eq!(
                (second.path.as_str(), &second.body[..], second.message, second.stays),
                ("/b", &b"abc0123456789"[..], 1, false)
            );
            assert!(first.trace.is_some() && second.trace.is_none());
            assert!(requests.next().unwrap().is_none());
        }
    }

    #[test]
    fn what_is_no_request_ends_the_connection() {
        for wrong in [
            "nonsense\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n",
            "POST / HTTP/1.1\r\nRekindle-Message: many\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc",
            "POST / HT",
        ] {
            assert!(requests(wrong, 4).next().is_err(), "{wrong}");
        }
    }
}
