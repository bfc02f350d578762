//! Answers, as the Python package gives and takes them.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rekindle_function::{Error, Value, message};

use crate::trace::Trace;

/// Up to this size an answer is one write.
const ONE_WRITE: usize = 1 << 16;
/// Exceptions that the Python package has; others are the user's.
const MODULE: &str = "rekindle.errors";
const OWN: [&str; 4] = ["Ref", "Data", "SerializationError", "DataError"];

/// What kind of answer it is: `X-Rekindle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Result,
    Raised,
    Late,
    Unknown,
    Misunderstood,
    /// It takes no references, and nothing was done.
    Untaken,
    /// The message needs a later version than there is here, and nothing was done.
    Later,
}

#[derive(Debug)]
pub struct Reply {
    kind: Kind,
    body: Vec<u8>,
    /// Where the time went.
    trace: Option<Arc<Trace>>,
}

impl Reply {
    pub fn result(message: Vec<u8>) -> Reply {
        Reply { kind: Kind::Result, body: message, trace: None }
    }

    /// An exception, of a type of Python's if that has one of this name.
    pub fn raised(error: &Error, place: &str) -> Reply {
        let is_own = OWN.iter().any(|own| error.kind.starts_with(own)) && error.kind.ends_with("Error");
        let module = if is_own { MODULE } else { "builtins" };
        let traceback = format!("{place}: {}: {}\n", error.kind, error.text);
        let field = |name: &'static str, value: Value<'static>| (Value::from(name), value);
        let described = Value::Dictionary(vec![
            field("module", module.into()),
            field("type", error.kind.to_string().into()),
            field("text", error.text.clone().into()),
            field("args", Value::List(vec![error.text.clone().into()])),
            field("state", Value::Dictionary(Vec::new())),
            field("traceback", traceback.into()),
        ]);
        match message::encode(&described) {
            Ok(body) => Reply { kind: Kind::Raised, body, trace: None },
            Err(error) => Reply::say(Kind::Misunderstood, &error.text),
        }
    }

    pub fn say(kind: Kind, sentence: &str) -> Reply {
        Reply { kind, body: format!("{sentence}\n").into_bytes(), trace: None }
    }

    /// With where the time went until it is written.
    pub fn of(self, trace: Option<&Arc<Trace>>) -> Reply {
        Reply { trace: trace.cloned(), ..self }
    }

    /// Writes it; `stays` says whether the connection does.
    pub fn write(&self, mut connection: &TcpStream, has_body: bool, stays: bool) -> io::Result<()> {
        let (status, name) = match self.kind {
            Kind::Result => ("200 OK", "result"),
            Kind::Raised => ("500 Internal Server Error", "raised"),
            Kind::Late => ("504 Gateway Timeout", "timeout"),
            Kind::Unknown => ("404 Not Found", "unknown"),
            Kind::Misunderstood => ("400 Bad Request", "misunderstood"),
            Kind::Untaken => ("409 Conflict", "untaken"),
            Kind::Later => ("409 Conflict", "later"),
        };
        let content = match self.kind {
            Kind::Result | Kind::Raised => "application/x-rekindle",
            _ => "text/plain; charset=utf-8",
        };
        let version = match self.kind {
            Kind::Later => format!("Rekindle-Message: {}\r\n", message::VERSION),
            _ => String::new(),
        };
        let spans = self.trace.as_ref().map(|trace| trace.told()).filter(|told| !told.is_empty());
        let spans = spans.map(|told| format!("Rekindle-Spans: {told}\r\n")).unwrap_or_default();
        let end = if stays { "" } else { "Connection: close\r\n" };
        let mut head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {}\r\nX-Rekindle: {name}\r\n{version}{spans}{end}\r\n",
            self.body.len()
        )
        .into_bytes();
        let body = if has_body { &self.body[..] } else { &[] };
        if body.len() <= ONE_WRITE {
            head.extend_from_slice(body);
            return connection.write_all(&head);
        }
        connection.write_all(&head)?;
        connection.write_all(body)
    }
}
