//! Arrays that functions at different nodes hand on to each other ([exchange](../../../../docs/architecture/exchange.md)).
//!
//! ```text
//! here    memory daemon ── Fetch ─▶ fetch ══ a node that is known ══▶ give ── Lend ─▶ memory daemon    there
//!         memory of the host ◀─ bytes, held against their hash ── memory of the host ◀─ a worker, if it lies on a GPU
//! ```
//!
//! The name of an array begins with digits of the key of the node that has put it. Both nodes have to have been told that they
//! hand arrays on with each other.

mod fetch;
mod give;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::elsewhere::{NodeAnswer, NodeRequest};
use rekindle_protocol::frame::{self, FrameError, Limits};
use rekindle_protocol::peer;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::private_socket;
use crate::peers::MESSAGE_LIMIT;

pub use give::{drop_here, give};

/// How much is sent at a time.
const PIECE: u64 = 1 << 20;
/// How long a node may take to have an array in memory of its host.
const COPY_LIMIT: Duration = Duration::from_secs(60);

/// Hears the memory daemon, which asks for what other nodes have.
pub fn listen(daemon: &Arc<Daemon>) -> Result<()> {
    let listener = private_socket::listen(&daemon.paths.elsewhere_socket())?;
    let daemon = daemon.clone();
    let hear = move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) if peer::is_beside(&stream) => {
                    let daemon = daemon.clone();
                    std::thread::spawn(move || {
                        if let Err(error) = answer(&daemon, &stream) {
                            log::warn!(
                                "the memory daemon does not hear of an array of another node: {error}"
                            );
                        }
                    });
                }
                Ok(_) => {
                    log::warn!("a process of a sandbox is sent away that came where the memory daemon does")
                }
                Err(error) => {
                    log::error!("the memory daemon waits: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("elsewhere".into())
        .spawn(hear)
        .map(drop)
        .map_err(|source| Error::system("start a thread", source))
}

fn answer(daemon: &Daemon, stream: &UnixStream) -> std::result::Result<(), FrameError> {
    let limits = Limits { descriptors: 0, time: Some(MESSAGE_LIMIT), ..Limits::default() };
    let done = match frame::receive_within(stream, &limits)?.0 {
        NodeRequest::Fetch { owner, id } => fetch::fetch(daemon, stream, owner, id),
        NodeRequest::Drop { owner, id, use_only } => fetch::drop_there(daemon, owner, id, use_only),
    };
    let answer = done.unwrap_or_else(|problem| {
        log::warn!("{}", problem.sentence);
        NodeAnswer::Failed(problem)
    });
    frame::send(stream, &answer, &[])
}

/// What a node cannot be asked, or does not do.
fn of_node(error: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemKind::Node, error.to_string())
}
