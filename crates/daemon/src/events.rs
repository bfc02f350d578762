//! What happens, told to whoever listens: sandboxes that change their state, images that come and go.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rekindle_protocol::daemon::EventNotice;
use rekindle_sandbox::log_index;

use crate::error::Result;
use crate::host::clock;
use crate::reply::Reply;

/// How often a listener is looked for who may have gone.
const LOOK: Duration = Duration::from_millis(200);

/// A daemon is a process, and has all that happens in it to tell.
static LISTENERS: Mutex<Vec<Sender<EventNotice>>> = Mutex::new(Vec::new());

/// Tells all who listen.
pub fn tell(event: &str, fill: impl FnOnce(&mut EventNotice)) {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    if listeners.is_empty() {
        return;
    }
    let time = clock::microseconds(log_index::now_us());
    let mut happened = EventNotice { time, event: event.to_string(), ..EventNotice::default() };
    fill(&mut happened);
    // One who has gone is forgotten.
    listeners.retain(|listener| listener.send(happened.clone()).is_ok());
}

/// Tells of an image.
pub fn tell_of_image(event: &str, name: &str) {
    tell(event, |happened| happened.image = Some(name.to_string()));
}

fn listen() -> Receiver<EventNotice> {
    let (sender, receiver) = channel();
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    receiver
}

/// Sends what happens from now on, until the user has gone. The first event says that it listens.
pub fn show(reply: &Reply<'_>) -> Result<()> {
    let happening = listen();
    let time = clock::microseconds(log_index::now_us());
    reply.happened(EventNotice { time, event: "listening".to_string(), ..EventNotice::default() })?;
    while !reply.is_gone() {
        match happening.recv_timeout(LOOK) {
            Ok(happened) => reply.happened(happened)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(())
}
