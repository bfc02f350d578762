//! A checkpoint that the user can cancel: Ctrl-C tells the daemon, which says how it ended.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Cancel, Request};
use rekindle_protocol::frame;
use serde_json::Value;

use crate::connection::ask_hearing;
use crate::error::{Error, Result};

/// The signals that cancel.
const CANCEL: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// An answer, and whether the user had cancelled by then.
pub struct Answer {
    pub value: Value,
    pub too_late: bool,
}

/// Asks for what can be cancelled. To be called before any thread is started.
pub fn ask(paths: &Paths, request: &Request) -> Result<Answer> {
    let signals: SigSet = CANCEL.into_iter().collect();
    signals.thread_block().map_err(|errno| Error::system("hold signals back", errno))?;
    let cancelled = Arc::new(AtomicBool::new(false));
    let listen = |stream: &UnixStream| {
        let stream = stream.try_clone().map_err(|source| Error::system("keep the connection", source))?;
        let cancelled = cancelled.clone();
        std::thread::spawn(move || cancel_by(signals, &stream, &cancelled));
        Ok(())
    };
    let value = ask_hearing(paths, request, |_| {}, listen)?;
    Ok(Answer { value, too_late: cancelled.load(Ordering::SeqCst) })
}

fn cancel_by(signals: SigSet, stream: &UnixStream, cancelled: &AtomicBool) {
    while let Ok(signal) = signals.wait() {
        if cancelled.swap(true, Ordering::SeqCst) {
            eprintln!(
                "rekindle: the daemon's answer is not waited for; `rekindle images` and `rekindle ps` tell what has come of it"
            );
            std::process::exit(128 + signal as i32);
        }
        // A daemon that is gone is noticed by who waits for its answer.
        let _ = frame::send(stream, &Cancel, &[]);
        eprintln!("rekindle: cancelling");
    }
}
