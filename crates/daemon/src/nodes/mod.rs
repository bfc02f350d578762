//! Programs that move to other nodes, daemon to daemon, and [`arrays`] that functions hand on there.
//!
//! ```text
//! here    ──runs── round ─ round ──┬ stands still: the last image ────────── given away ─┬─ ends
//! there                   checked  │                     restored, does not run ─────────┴─ accepted ─ runs ──▶
//! ```
//!
//! Who has the program is written down on both sides, in this order: here that it was given away ([`departure`]), there that it
//! was accepted ([`arrival`]). Before the first it goes on here at once, whatever fails. After it the other node is asked
//! ([`settle`]), and the program stands still, held by its own init, until that has said which of the two has it.

mod arrays;
mod arrival;
mod departure;
mod error;
mod forward;
mod gpus;
mod image_name;
mod logs;
mod message;
mod rounds;
mod settle;

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::daemon::State;
use rekindle_protocol::network::Port;
use rekindle_sandbox::Sandbox as CpuHalf;
use serde_json::{Value, json};

use crate::connection_limit::{ConnectionLimit, ConnectionSlot};
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::network;
use crate::peers::{ArrivalFate, Link, MESSAGE_LIMIT, Peer, PeerError};
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::Record;

use message::{Answer, Hello};

pub use arrays::listen as listen_to_memory;
pub use arrival::{Outcome, outcome, take_up};
pub use departure::{Departure, depart};
pub use error::NodeError;
pub use settle::{resume, take_back};

/// How many other nodes may be connected at once; others wait.
const MOST_CONNECTED: u32 = 64;
/// How long who asks what became of a program waits at most until that is known.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// Hears other nodes at this address, from now on.
pub fn listen(daemon: &Arc<Daemon>, address: &str) -> Result<()> {
    let failed = |source| NodeError::CannotHear { address: address.to_string(), source };
    let listener = match address.parse::<u16>() {
        Ok(port) => network::listen(Port { address: None, port, to: 0 }),
        Err(_) => TcpListener::bind(address),
    };
    let listener = listener.map_err(failed)?;
    let heard = listener.local_addr().map_err(failed)?;
    // Whoever is to add this node can be told its key.
    daemon.peers.key()?;
    let _ = daemon.peers.listens.set(heard);
    log::info!("other nodes are heard at {heard}");
    let daemon = daemon.clone();
    let connected = Arc::new(ConnectionLimit::new(MOST_CONNECTED));
    std::thread::spawn(move || {
        loop {
            connected.wait();
            match listener.accept() {
                Ok((socket, from)) => {
                    let (daemon, slot) = (daemon.clone(), connected.enter());
                    std::thread::spawn(move || {
                        if let Err(error) = hear(&daemon, socket, slot) {
                            log::warn!("what came from {from} was not heard to its end: {error}");
                        }
                    });
                }
                Err(error) => {
                    log::error!("the next node waits: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    });
    Ok(())
}

fn hear(daemon: &Arc<Daemon>, socket: TcpStream, _slot: ConnectionSlot) -> Result<()> {
    let mut link = daemon.peers.ends()?.accept(socket)?;
    let from = link.peer.key;
    match link.receive(MESSAGE_LIMIT)? {
        Hello::Array { owner, id } => arrays::give(daemon, &mut link, &owner, &id),
        Hello::DropArray { owner, id, use_only } => {
            arrays::drop_here(daemon, &mut link, &owner, &id, use_only)
        }
        Hello::Migrate(offer) => arrival::arrive(daemon, &mut link, *offer),
        Hello::Settle { id } => link.send(&match daemon.peers.arrivals.settle(&id, from, SETTLE_LIMIT) {
            Some(ArrivalFate::Runs) => Answer::Runs { ports: arrival::ports(daemon, &id) },
            Some(ArrivalFate::Never) => Answer::Never { reason: "it never ran there".to_string() },
            None => Answer::Open,
        }),
        Hello::Forget { id } => {
            daemon.peers.arrivals.forget(&id, from)?;
            link.send(&Answer::Done)
        }
    }
}

/// What an answer that was not due comes to.
fn refused(link: &Link, answer: Answer) -> Error {
    let reason = match answer {
        Answer::Refused { reason } | Answer::Never { reason } => reason,
        other => format!("it answers {other:?}, which was not asked; is it of another version?"),
    };
    PeerError::Failed { name: link.peer.name.clone(), reason }.into()
}

/// This node's key, and where it is heard.
pub fn own(daemon: &Daemon) -> Result<Value> {
    let key = daemon.peers.key()?.public;
    Ok(json!({ "key": key, "address": daemon.peers.listens.get() }))
}

pub fn list(daemon: &Daemon) -> Value {
    json!({ "nodes": daemon.peers.known.all() })
}

pub fn add(daemon: &Daemon, name: String, address: String, key: &str, arrays: bool) -> Result<Value> {
    let key = key.parse().map_err(|reason| PeerError::Bad { reason })?;
    if key == daemon.peers.key()?.public {
        return Err(PeerError::Bad { reason: "that is this node's own key".to_string() }.into());
    }
    let peer = Peer { name, address, key, arrays };
    daemon.peers.known.add(peer.clone())?;
    Ok(json!(peer))
}

/// Forgets a node. One that a program waits for stays.
pub fn remove(daemon: &Daemon, name: &str) -> Result<Value> {
    let waits = |record: &Record| record.leaving.as_ref().is_some_and(|leaving| leaving.node == name);
    if let Some(record) = daemon.sandboxes.all().iter().map(|sandbox| sandbox.record()).find(waits) {
        let reason = "it is not known whether it has the program".to_string();
        return Err(NodeError::Held { name: record.name, node: name.to_string(), reason }.into());
    }
    daemon.peers.known.remove(name)?;
    Ok(json!({ "name": name }))
}

/// Sees to what migrations of an earlier daemon have left.
pub fn tidy(daemon: &Arc<Daemon>) {
    let received = daemon.paths.nodes().join(arrival::DIRECTORY);
    let _ = std::fs::remove_dir_all(received);
    image_name::clear_all(daemon);
    for sandbox in daemon.sandboxes.all() {
        // Those that were being restored are settled.
        if let Some(id) = sandbox.record().arrival {
            daemon.peers.arrivals.runs(&id);
        }
    }
    daemon.peers.arrivals.give_up_lost();
    forward::resume(daemon);
    for sandbox in daemon.sandboxes.all() {
        if sandbox.record().leaving.is_some() {
            resume(daemon, &sandbox);
        }
    }
}

/// Lets a program go on that was to move to another node when its daemon died, and had not been given away by its record of
/// then.
pub fn keep(sandbox: &Sandbox, before: &Record, cpu: &CpuHalf) {
    let is_between_gpus = before.moving.is_some() || before.tenant.is_some();
    if before.state != State::Migrating || before.leaving.is_some() || is_between_gpus {
        return;
    }
    if let Err(error) = cpu.settle(false) {
        log::error!("{error}");
    }
    sandbox.report_problem("the daemon died while this was to move; it goes on here".to_string());
}
