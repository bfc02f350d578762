//! Whether a stream goes on with what it has: it is marked, and then seen to come to the mark.
//!
//! One that has a kernel which runs for as long as the program, or until another stream has done something, does not.

use std::time::{Duration, Instant};

use rekindle_device::{Event, Result, Stream};

use super::Mend;
use crate::client::Client;

/// So long after a stream has come to its mark it may be followed.
const FRESH: Duration = Duration::from_millis(500);

/// A place in a stream that it is to come to before it is followed.
pub(super) struct Probe {
    device: usize,
    stream: Stream,
    mark: Event,
    /// When it had last not come there.
    seen: Instant,
}

impl Mend {
    /// Whether a stream has come to a mark that was set there before. One is set if there is none.
    pub(super) fn goes_on(&mut self, client: &mut Client, (device, stream): (usize, Stream)) -> Result<bool> {
        let is_there =
            self.probe.as_ref().is_some_and(|probe| (probe.device, probe.stream) == (device, stream));
        let came = is_there && self.watch_probe(client)?;
        let goes_on = came && self.probe.as_ref().is_some_and(|probe| probe.seen.elapsed() < FRESH);
        if !is_there || came {
            self.forget_probe(client);
        }
        if !goes_on && self.probe.is_none() {
            let mark = client.record(device, stream)?;
            self.probe = Some(Probe { device, stream, mark, seen: Instant::now() });
        }
        Ok(goes_on)
    }

    /// Whether the stream that was marked has come to its mark.
    pub(super) fn watch_probe(&mut self, client: &mut Client) -> Result<bool> {
        let Some(probe) = &mut self.probe else { return Ok(false) };
        let came = client.on(probe.device)?.event_query(probe.mark)?;
        if !came {
            probe.seen = Instant::now();
        }
        Ok(came)
    }

    pub(super) fn forget_probe(&mut self, client: &mut Client) {
        if let Some(probe) = self.probe.take() {
            client.give_event(probe.device, probe.mark);
        }
    }
}
