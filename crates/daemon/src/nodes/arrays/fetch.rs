//! What another node has comes here.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::elsewhere::{FETCH_LIMIT, NODE_DIGITS, NodeAnswer, Room};
use rekindle_protocol::frame::{self, Limits};

use super::{COPY_LIMIT, PIECE, of_node};
use crate::daemon::Daemon;
use crate::nodes::message::{ArrayAnswer, ArrayAsk, Hello};
use crate::peers::{Link, MESSAGE_LIMIT};
use crate::sandboxes::record;

/// The most characters of what another node says that is told on.
const LONGEST_SENTENCE: usize = 1000;

type Result<T> = std::result::Result<T, Problem>;

/// Has an array written to memory that the memory daemon makes for it.
pub fn fetch(daemon: &Daemon, stream: &UnixStream, owner: String, id: String) -> Result<NodeAnswer> {
    let deadline = Instant::now() + FETCH_LIMIT;
    let mut link = connect(daemon, &owner, &id)?;
    link.send(&Hello::Array { owner, id: id.clone() }).map_err(of_node)?;
    let ArrayAnswer::Here(array) = hear(&mut link, MESSAGE_LIMIT)? else { return Err(misunderstood(&link)) };
    let lost = |error: frame::FrameError| {
        of_node(format!("the memory daemon is gone that an array is for: {error}"))
    };
    frame::send(stream, &NodeAnswer::Comes(array), &[]).map_err(lost)?;
    let limits = Limits { time: Some(MESSAGE_LIMIT), ..Limits::default() };
    let (Room {}, memories) = frame::receive_within(stream, &limits).map_err(lost)?;
    let memory = memories.into_iter().next().ok_or_else(|| lost(frame::FrameError::DescriptorsLost))?;
    link.send(&ArrayAsk::Send).map_err(of_node)?;
    let ArrayAnswer::Ready = hear(&mut link, COPY_LIMIT)? else { return Err(misunderstood(&link)) };
    let came = receive(&mut link, &File::from(memory), array.bytes, deadline)?;
    match hear(&mut link, MESSAGE_LIMIT)? {
        ArrayAnswer::Sent { hash } if hash == came => Ok(NodeAnswer::Whole {}),
        ArrayAnswer::Sent { .. } => Err(of_node(format!(
            "what came of the array {id} is not what node {:?} has: its hash is another one; get it again",
            link.peer.name
        ))),
        _ => Err(misunderstood(&link)),
    }
}

/// Says at its node that an array is not needed any more.
pub fn drop_there(daemon: &Daemon, owner: String, id: String, use_only: bool) -> Result<NodeAnswer> {
    let mut link = connect(daemon, &owner, &id)?;
    link.send(&Hello::DropArray { owner, id, use_only }).map_err(of_node)?;
    match hear(&mut link, MESSAGE_LIMIT)? {
        ArrayAnswer::Done => Ok(NodeAnswer::Done {}),
        _ => Err(misunderstood(&link)),
    }
}

/// Writes so many bytes to this memory, and says their hash.
fn receive(link: &mut Link, memory: &File, bytes: u64, deadline: Instant) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < bytes {
        if Instant::now() > deadline {
            return Err(of_node(format!(
                "node {:?} has sent {at} of {bytes} bytes of an array within {} s; is the network between too slow?",
                link.peer.name,
                FETCH_LIMIT.as_secs()
            )));
        }
        let length = PIECE.min(bytes - at);
        let piece = link.receive_bytes(length, PIECE).map_err(of_node)?;
        hasher.update(&piece);
        memory.write_all_at(&piece, at).map_err(of_node)?;
        at += length;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Connects to the node whose key begins as the array's name does.
fn connect(daemon: &Daemon, owner: &str, id: &str) -> Result<Link> {
    if !record::is_of_several(owner) {
        let sentence = format!(
            "the array {id} is at another node, and this program has nobody there to hand arrays on with; make it a function of \
             an app, or have both share contexts by one name"
        );
        return Err(Problem::new(ProblemKind::Access, sentence));
    }
    let digits = id.get(..NODE_DIGITS).unwrap_or(id);
    let Some(peer) = daemon.peers.known.with_digits(digits) else {
        return Err(of_node(format!(
            "the array {id} is at a node whose key begins with {digits}, and none such is known here; `rekindle node add --arrays` \
             adds it"
        )));
    };
    if !peer.arrays {
        return Err(of_node(format!(
            "the array {id} is at node {:?}, which was added without --arrays here; add it so, at both nodes",
            peer.name
        )));
    }
    daemon.peers.ends().and_then(|ends| ends.connect(&peer)).map_err(of_node)
}

fn hear(link: &mut Link, within: std::time::Duration) -> Result<ArrayAnswer> {
    match link.receive(within).map_err(of_node)? {
        ArrayAnswer::Failed(Problem { kind, sentence }) => {
            let sentence: String = sentence.chars().take(LONGEST_SENTENCE).collect();
            Err(Problem::new(kind, format!("node {:?}: {sentence}", link.peer.name)))
        }
        answer => Ok(answer),
    }
}

fn misunderstood(link: &Link) -> Problem {
    of_node(format!(
        "node {:?} answered something else than was asked about an array; is it of another version?",
        link.peer.name
    ))
}
