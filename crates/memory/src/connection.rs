//! Somebody who wants something.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::data::{Answer, Problem, ProblemKind, VERSION, Want, Wish};
use rekindle_protocol::frame::{self, FrameError, Limits};

use crate::exchange::{self, Exchange};
use crate::objects::{News, Objects};

/// How long one may take to say what it wants, and not take what it is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest URL comes to less.
const LONGEST: usize = 64 << 10;

/// Does what whoever has connected wants.
pub fn serve(stream: &UnixStream, objects: &Arc<Objects>, exchange: &Arc<Exchange>) {
    match converse(stream, objects, exchange) {
        // Whoever does not want it any more goes away.
        Ok(()) | Err(FrameError::Closed) => {}
        Err(error) => log::warn!("a connection was lost: {error}"),
    }
}

fn converse(stream: &UnixStream, objects: &Arc<Objects>, exchange: &Arc<Exchange>) -> Result<(), FrameError> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let limits = Limits { bytes: LONGEST, descriptors: 0, time: Some(PATIENCE) };
    let (Want { version, wish }, _) = frame::receive_within::<Want>(stream, &limits)?;
    if version != VERSION {
        let sentence = format!(
            "the memory daemon speaks version {VERSION} of its protocol, and who asks version {version}; restart what runs \
             since before an upgrade"
        );
        return refuse(stream, Problem::new(ProblemKind::Unavailable, sentence));
    }
    match wish {
        Wish::Object { url, bytes } => tell(stream, objects, &url, bytes),
        Wish::Count {} => frame::send(stream, &Answer::Count(objects.count()), &[]),
        Wish::Exchange(wish) => exchange::serve(stream, exchange, wish),
    }
}

fn refuse(stream: &UnixStream, problem: Problem) -> Result<(), FrameError> {
    frame::send(stream, &Answer::Failed(problem), &[])
}

/// Tells all about an object.
fn tell(
    stream: &UnixStream,
    objects: &Arc<Objects>,
    url: &str,
    declared: Option<u64>,
) -> Result<(), FrameError> {
    let object = match objects.ask(url) {
        Ok(object) => object,
        Err(problem) => return refuse(stream, problem),
    };
    let found = object.version.bytes;
    if let Some(declared) = declared.filter(|declared| *declared != found) {
        let sentence = format!(
            "{url} has {found} bytes, and {declared} were declared by its shape and dtype; declare what is there, or put \
             there what is declared"
        );
        return refuse(stream, Problem::new(ProblemKind::Size, sentence));
    }
    let reader = object.reader()?;
    frame::send(stream, &Answer::Object { bytes: found }, &[reader.as_fd()])?;
    let mut told = 0;
    loop {
        match object.news(told) {
            News::Ready(offset, bytes) => frame::send(stream, &Answer::Ready { offset, bytes }, &[])?,
            News::End(Ok(())) => {
                frame::send(stream, &Answer::Whole {}, &[])?;
                break;
            }
            News::End(Err(problem)) => return refuse(stream, problem),
        }
        told += 1;
    }
    // It is held for as long as it is copied from.
    stream.set_read_timeout(None)?;
    frame::receive::<Want>(stream).map(drop)
}
