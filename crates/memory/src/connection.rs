//! Somebody who wants something.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::data::{
    Answer, Contents, DataRequest, DataRequestHead, Filled, Problem, ProblemKind, Sharer, VERSION, Version,
    Write,
};
use rekindle_protocol::frame::{self, FrameError, Limits};

use crate::copies::{Claimed, Copies, Filler, Holder, Key};
use crate::dump;
use crate::exchange::{self, Exchange};
use crate::objects::{Object, ObjectChange, Objects};

/// How long one may take to say what it wants, and not take what it is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes that are read for one who asks for some.
const MOST_READ: u64 = 64 << 10;
/// The longest URL comes to less.
const LONGEST: usize = 64 << 10;

/// What this process has.
#[derive(Clone)]
pub struct MemoryServices {
    pub objects: Arc<Objects>,
    pub exchange: Arc<Exchange>,
    pub copies: Arc<Copies>,
}

/// Does what whoever has connected wants.
pub fn serve(stream: &UnixStream, has: &MemoryServices) {
    match converse(stream, has) {
        // Whoever does not want it any more goes away.
        Ok(()) | Err(FrameError::Closed) => {}
        Err(error) => log::warn!("a connection was lost: {error}"),
    }
}

fn converse(stream: &UnixStream, has: &MemoryServices) -> Result<(), FrameError> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let limits = Limits { bytes: LONGEST, descriptors: 0, time: Some(PATIENCE) };
    let (DataRequestHead { version, request }, _) =
        frame::receive_within::<DataRequestHead>(stream, &limits)?;
    if version != VERSION {
        let sentence = format!(
            "the memory daemon speaks version {VERSION} of its protocol, and who asks version {version}; restart what runs \
             since before an upgrade"
        );
        return refuse(stream, Problem::new(ProblemKind::Unavailable, sentence));
    }
    stream.set_read_timeout(None)?;
    match request {
        DataRequest::Object { url, bytes, sharer, write } => {
            match wanted(has, &url, bytes, (sharer, write)) {
                Ok(ObjectSource::Missing) => frame::send(stream, &Answer::Missing {}, &[]),
                Ok(ObjectSource::Object(object, filler)) => tell(stream, object, filler),
                Ok(ObjectSource::OnGpu(version, claimed)) => give(stream, version, claimed),
                Err(problem) => refuse(stream, problem),
            }
        }
        DataRequest::Read { url, offset, bytes } => {
            match has.objects.read(&url, offset, bytes.min(MOST_READ)) {
                Ok((total, bytes)) => frame::send(stream, &Answer::Bytes { total, bytes }, &[]),
                Err(problem) => refuse(stream, problem),
            }
        }
        DataRequest::Dump { url, bytes, expected } => {
            let (Contents {}, memories) = frame::receive(stream)?;
            let Some(memory) = memories.into_iter().next() else { return Ok(()) };
            match has.objects.put(&url, &dump::map(&memory, bytes)?, &expected) {
                Ok(version) => frame::send(stream, &Answer::Dumped { version }, &[]),
                Err(problem) => refuse(stream, problem),
            }
        }
        DataRequest::Join { url, version, sharer } => join(stream, &has.copies, Key { sharer, url, version }),
        DataRequest::Count {} => frame::send(stream, &Answer::Count(has.objects.count()), &[]),
        DataRequest::Exchange(request) => exchange::serve(stream, &has.exchange, request),
        DataRequest::Look { url } => match has.objects.look(&url) {
            Ok(version) => frame::send(stream, &Answer::Object { version }, &[]),
            Err(problem) => refuse(stream, problem),
        },
    }
}

fn refuse(stream: &UnixStream, problem: Problem) -> Result<(), FrameError> {
    frame::send(stream, &Answer::Failed(problem), &[])
}

/// Where an object is to be had.
enum ObjectSource {
    /// In memory of the host. Who shares it fills the GPU's.
    Object(Arc<Object>, Option<Filler>),
    /// In memory of the GPU.
    OnGpu(Version, GpuCopy),
    /// Nowhere, which the asker allows for.
    Missing,
}

struct GpuCopy {
    memory: Arc<OwnedFd>,
    room: u64,
    holder: Holder,
}

fn wanted(
    has: &MemoryServices,
    url: &str,
    declared: Option<u64>,
    (sharer, write): (Option<Sharer>, Option<Write>),
) -> Result<ObjectSource, Problem> {
    let Some(sharer) = sharer else {
        if write.is_some() {
            has.objects.check_write(url)?;
        }
        let object = match has.objects.ask(url) {
            Err(Problem { kind: ProblemKind::NotFound, .. }) if write.is_some_and(|write| write.create) => {
                return Ok(ObjectSource::Missing);
            }
            other => other?,
        };
        check_size(url, &object.version, declared)?;
        return Ok(ObjectSource::Object(object, None));
    };
    let claim = |version: &Version| {
        check_size(url, version, declared)?;
        let key = Key { sharer: sharer.clone(), url: url.to_string(), version: version.clone() };
        Ok(has.copies.claim(&key))
    };
    // What is on the GPU already need not come to the host.
    if has.copies.has(&sharer, url) {
        let version = has.objects.look(url)?;
        if let Claimed::There { memory, room, holder } = claim(&version)? {
            return Ok(ObjectSource::OnGpu(version, GpuCopy { memory, room, holder }));
        }
    }
    let object = has.objects.ask(url)?;
    let version = object.version.clone();
    Ok(match claim(&version)? {
        Claimed::There { memory, room, holder } => {
            ObjectSource::OnGpu(version, GpuCopy { memory, room, holder })
        }
        Claimed::Fill(filler) => ObjectSource::Object(object, Some(filler)),
    })
}

fn check_size(url: &str, version: &Version, declared: Option<u64>) -> Result<(), Problem> {
    let found = version.bytes;
    let Some(declared) = declared.filter(|declared| *declared != found) else { return Ok(()) };
    let sentence = format!(
        "{url} has {found} bytes, and {declared} were declared by its shape and dtype; declare what is there, or put \
         there what is declared"
    );
    Err(Problem::new(ProblemKind::Size, sentence))
}

/// Tells all about an object.
fn tell(stream: &UnixStream, object: Arc<Object>, filler: Option<Filler>) -> Result<(), FrameError> {
    let (reader, (in_use, theirs)) = (object.reader()?, UnixStream::pair()?);
    let answer = Answer::Object { version: object.version.clone() };
    frame::send(stream, &answer, &[reader.as_fd(), theirs.as_fd()])?;
    drop(theirs);
    let mut told = 0;
    if object.is_whole() {
        frame::send(stream, &Answer::Ready { offset: 0, bytes: object.version.bytes }, &[])?;
        told = usize::MAX;
    }
    loop {
        match object.news(told) {
            ObjectChange::Ready(offset, bytes) => frame::send(stream, &Answer::Ready { offset, bytes }, &[])?,
            ObjectChange::End(Ok(())) => {
                frame::send(stream, &Answer::Whole {}, &[])?;
                break;
            }
            ObjectChange::End(Err(problem)) => return refuse(stream, problem),
        }
        told += 1;
    }
    // It is held for as long as it is copied from.
    match filler {
        Some(filler) => hold(stream, filler, Some((object, in_use))),
        None => {
            let waited = wait(stream);
            wait_for_use(&in_use);
            waited
        }
    }
}

/// Gives memory of a GPU, for as long as the asker is there.
fn give(stream: &UnixStream, version: Version, there: GpuCopy) -> Result<(), FrameError> {
    let GpuCopy { memory, room, holder: _holder } = there;
    frame::send(stream, &Answer::OnGpu { version, room }, &[memory.as_fd()])?;
    wait(stream)
}

/// Gives memory of a GPU, or takes what the asker has.
fn join(stream: &UnixStream, copies: &Arc<Copies>, key: Key) -> Result<(), FrameError> {
    match copies.claim(&key) {
        Claimed::There { memory, room, holder } => {
            give(stream, key.version, GpuCopy { memory, room, holder })
        }
        Claimed::Fill(filler) => {
            frame::send(stream, &Answer::Fill {}, &[])?;
            hold(stream, filler, None)
        }
    }
}

/// Holds what the asker has filled, which may take it a while, for as long as it is there. It was copied from an object.
fn hold(
    stream: &UnixStream,
    filler: Filler,
    from: Option<(Arc<Object>, UnixStream)>,
) -> Result<(), FrameError> {
    let (Filled { room }, memories) = frame::receive(stream)?;
    let Some(memory) = memories.into_iter().next() else { return Ok(()) };
    let _holder = filler.filled(memory, room);
    // The asker may go before it has unmapped that, and then need not have its memory held.
    if let Some((object, in_use)) = from {
        std::thread::spawn(move || {
            wait_for_use(&in_use);
            drop(object);
        });
    }
    wait(stream)
}

/// Returns when the other end is closed: nobody has the memory of an object mapped any more.
fn wait_for_use(mut in_use: &UnixStream) {
    let _ = in_use.read(&mut [0]);
}

/// Returns when the asker has gone.
fn wait(stream: &UnixStream) -> Result<(), FrameError> {
    frame::receive::<DataRequestHead>(stream).map(drop)
}
