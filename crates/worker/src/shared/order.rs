//! CUDA's rules of the legacy default stream, kept with events, so that each client of a context has such a stream of its
//! own.
//!
//! Work of the legacy stream waits for all work that the client's blocking streams were given before, and their later work
//! waits for it. All are non-blocking streams for the driver, which knows nothing of the rule.

use std::collections::{HashMap, HashSet};

use rekindle_cuda::{CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CuResult};
use rekindle_device::{Device, Result, Stream};

use super::queues::Queues;

/// Names are no handles of the driver's.
const FIRST_NAME: u64 = 1 << 8;

/// A client's streams on one device.
pub(super) struct Order {
    legacy: Stream,
    /// The driver's streams, by the client's names for them.
    named: HashMap<Stream, Stream>,
    last_name: u64,
    /// How often the legacy stream was given work.
    works: u64,
    blocking: HashMap<Stream, Blocking>,
    /// Blocking streams that began a capture.
    capturing: HashSet<Stream>,
}

#[derive(Default)]
struct Blocking {
    /// The legacy stream has not waited for its latest work.
    ahead: bool,
    /// How much work of the legacy stream it has waited for.
    waited: u64,
}

impl Order {
    pub(super) fn new(legacy: Stream) -> Order {
        Order {
            legacy,
            named: HashMap::new(),
            last_name: FIRST_NAME,
            works: 0,
            blocking: HashMap::new(),
            capturing: HashSet::new(),
        }
    }

    /// Names a stream. A name is the stream's for its life, whatever stream of the driver's it is.
    pub(super) fn add(&mut self, stream: Stream, is_blocking: bool) -> Stream {
        if is_blocking {
            // It has nothing to wait for of what was before it but what is still under way.
            self.blocking.insert(stream, Blocking::default());
        }
        self.last_name += 1;
        self.named.insert(Stream(self.last_name), stream);
        Stream(self.last_name)
    }

    /// Others take the places of the driver's streams.
    pub(super) fn replace(&mut self, by: &HashMap<Stream, Stream>) {
        let now = |stream: Stream| by.get(&stream).copied().unwrap_or(stream);
        self.legacy = now(self.legacy);
        self.named.values_mut().for_each(|stream| *stream = now(*stream));
        let blocking = std::mem::take(&mut self.blocking);
        self.blocking = blocking.into_iter().map(|(stream, known)| (now(stream), known)).collect();
    }

    /// Forgets a stream, of which this is the name and the driver's.
    pub(super) fn remove(&mut self, queues: &mut Queues, (name, stream): (Stream, Stream)) -> Result<()> {
        self.named.remove(&name);
        let gone = self.blocking.remove(&stream);
        self.capturing.remove(&stream);
        match gone.is_some_and(|gone| gone.ahead) {
            true => queues.follow(self.legacy, stream),
            false => Ok(()),
        }
    }

    /// The driver's stream for the client's.
    pub(super) fn real(&self, stream: Stream) -> Stream {
        match stream {
            Stream::LEGACY => self.legacy,
            named => self.named.get(&named).copied().unwrap_or(named),
        }
    }

    /// The driver's stream for work that comes now, which is in its place behind the others' from then on.
    pub(super) fn enter(&mut self, queues: &mut Queues, stream: Stream) -> Result<Stream> {
        if stream == Stream::LEGACY {
            self.enter_legacy(queues)?;
            return Ok(self.legacy);
        }
        let stream = self.real(stream);
        let Some(known) = self.blocking.get(&stream) else { return Ok(stream) };
        // What is captured does not run now, and may not wait for what is not captured.
        if !self.capturing.is_empty() && queues.device().capture(stream)?.status != 0 {
            return Ok(stream);
        }
        if known.waited < self.works {
            queues.follow(stream, self.legacy)?;
        }
        self.blocking.insert(stream, Blocking { ahead: true, waited: self.works });
        Ok(stream)
    }

    fn enter_legacy(&mut self, queues: &mut Queues) -> Result<()> {
        if !self.capturing.is_empty() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let ahead: Vec<Stream> =
            self.blocking.iter().filter(|(_, known)| known.ahead).map(|(stream, _)| *stream).collect();
        for stream in ahead {
            queues.follow(self.legacy, stream)?;
            if let Some(known) = self.blocking.get_mut(&stream) {
                known.ahead = false;
            }
        }
        self.works += 1;
        Ok(())
    }

    /// The streams that must be done before this one is.
    pub(super) fn waits_for(&self, stream: Stream) -> Vec<Stream> {
        if stream != Stream::LEGACY {
            return vec![self.real(stream)];
        }
        let ahead = self.blocking.iter().filter(|(_, known)| known.ahead).map(|(stream, _)| *stream);
        ahead.filter(|stream| !self.capturing.contains(stream)).chain([self.legacy]).collect()
    }

    pub(super) fn capture(&mut self, stream: Stream, begins: bool) {
        if !begins {
            self.capturing.remove(&stream);
        } else if self.blocking.contains_key(&stream) {
            self.capturing.insert(stream);
        }
    }
}

/// Whether all of these are done.
pub(super) fn are_done(device: &dyn Device, streams: &[Stream]) -> std::result::Result<bool, CuResult> {
    for stream in streams {
        if !device.stream_query(*stream)? {
            return Ok(false);
        }
    }
    Ok(true)
}
