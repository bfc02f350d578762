//! Arrays that other nodes have. `rekindled` talks with those; what it brings lies in memory of the host, as what had to leave a
//! GPU does, and is an array of this node from then on.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::elsewhere::{FETCH_LIMIT, NodeAnswer, NodeRequest, Room};
use rekindle_protocol::exchange::ArrayKind;
use rekindle_protocol::frame::{self, FrameError};

use super::item::Item;
use super::room::HostRoom;
use super::{Exchange, Found, random};

/// By how much longer than the array itself an answer may take.
const MARGIN: Duration = Duration::from_secs(5);
/// The most bytes by which the memory of an array may be larger than that is.
const MOST_ROUNDING: u64 = 64 << 20;

/// This node among others.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// How the names begin of what is put here.
    pub name: String,
    /// Where `rekindled` is asked.
    pub socket: PathBuf,
}

impl Node {
    /// Another node has put it, and has it if anybody does.
    fn is_elsewhere(&self, id: &str) -> bool {
        !self.name.is_empty() && !id.starts_with(&self.name)
    }

    fn ask(&self, request: &NodeRequest) -> Result<UnixStream, Problem> {
        let stream = UnixStream::connect(&self.socket).map_err(|error| unreachable(error.into()))?;
        stream.set_read_timeout(Some(FETCH_LIMIT + MARGIN)).map_err(|error| unreachable(error.into()))?;
        frame::send(&stream, request, &[]).map_err(unreachable)?;
        Ok(stream)
    }
}

/// Somebody has an array brought here; others wait for that.
struct Coming<'a> {
    exchange: &'a Exchange,
    id: String,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.exchange.known().coming.remove(&self.id);
        self.exchange.changed.notify_all();
    }
}

impl Exchange {
    /// Finds an array of so many bytes, here or at the node that has put it.
    pub(super) fn get_anywhere(
        self: &Arc<Exchange>,
        owner: &str,
        id: &str,
        bytes: u64,
    ) -> Result<Found, Problem> {
        loop {
            match self.get(owner, id) {
                Err(Problem { kind: ProblemKind::NotFound, .. }) if self.node.is_elsewhere(id) => {}
                other => return other,
            }
            if let Some(_coming) = self.come(id) {
                return self.fetch(owner, id, bytes);
            }
        }
    }

    /// None where somebody else had it brought meanwhile.
    fn come(&self, id: &str) -> Option<Coming<'_>> {
        let mut known = self.known();
        if known.coming.insert(id.to_string()) {
            return Some(Coming { exchange: self, id: id.to_string() });
        }
        while known.coming.contains(id) {
            known = self.wait(known);
        }
        None
    }

    fn fetch(self: &Arc<Exchange>, owner: &str, id: &str, bytes: u64) -> Result<Found, Problem> {
        let stream = self.node.ask(&NodeRequest::Fetch { owner: owner.to_string(), id: id.to_string() })?;
        let NodeAnswer::Comes(array) = hear(&stream)? else { return Err(misunderstood()) };
        check(id, &array, bytes)?;
        let (room, memory) = HostRoom::take(self, bytes, "is at another node")?;
        frame::send(&stream, &Room {}, &[memory.as_fd()]).map_err(unreachable)?;
        let NodeAnswer::Whole {} = hear(&stream)? else { return Err(misunderstood()) };
        log::info!("fetched {bytes} bytes of an array from another node");
        // Each use of one whose uses are counted is asked for there.
        let name = if array.counted { random("").map_err(unnamed)? } else { id.to_string() };
        let mut known = self.known();
        known.used += 1;
        known.moves.from_nodes += 1;
        let order = known.used;
        known.items.insert(name.clone(), Item::fetched(owner, &array, memory, order));
        drop(known);
        drop(room);
        self.changed.notify_all();
        let found = self.get(owner, &name);
        if array.counted {
            self.drop_item(owner, &name, false)?;
        }
        found
    }

    /// Somebody needs an array no more that lies here or at another node.
    pub(super) fn drop_anywhere(
        self: &Arc<Exchange>,
        owner: &str,
        id: &str,
        use_only: bool,
    ) -> Result<(), Problem> {
        if !self.node.is_elsewhere(id) {
            return self.drop_item(owner, id, use_only);
        }
        let request = NodeRequest::Drop { owner: owner.to_string(), id: id.to_string(), use_only };
        if use_only {
            // A copy under that name is of one whose uses nobody counts: its node has no need to know.
            if self.drop_item(owner, id, false).is_ok() {
                return Ok(());
            }
            // Whoever has used it does not wait for a node that may be gone; the array expires there.
            let exchange = self.clone();
            std::thread::spawn(move || {
                if let Err(problem) = exchange.tell(&request) {
                    log::warn!("{}", problem.sentence);
                }
            });
            return Ok(());
        }
        let here = self.drop_item(owner, id, false);
        match self.tell(&request) {
            Err(Problem { kind: ProblemKind::NotFound, .. }) if here.is_ok() => Ok(()),
            told => told,
        }
    }

    fn tell(&self, request: &NodeRequest) -> Result<(), Problem> {
        match hear(&self.node.ask(request)?)? {
            NodeAnswer::Done {} => Ok(()),
            _ => Err(misunderstood()),
        }
    }
}

/// Before room is made for it.
fn check(id: &str, array: &ArrayKind, bytes: u64) -> Result<(), Problem> {
    if array.bytes != bytes {
        let sentence = format!(
            "the array {id} has {} bytes at its node, and its shape and dtype say {bytes}; put it again",
            array.bytes
        );
        return Err(Problem::new(ProblemKind::Size, sentence));
    }
    match array.room.checked_sub(bytes).is_some_and(|more| more <= MOST_ROUNDING) {
        true => Ok(()),
        false => Err(misunderstood()),
    }
}

fn hear(stream: &UnixStream) -> Result<NodeAnswer, Problem> {
    match frame::receive(stream).map_err(unreachable)?.0 {
        NodeAnswer::Failed(problem) => Err(problem),
        answer => Ok(answer),
    }
}

fn unreachable(error: FrameError) -> Problem {
    let sentence =
        format!("other nodes cannot be asked for an array, as rekindled does not answer ({error})");
    Problem::new(ProblemKind::Unavailable, sentence)
}

fn unnamed(error: std::io::Error) -> Problem {
    Problem::new(ProblemKind::Unavailable, format!("an array cannot be given a name: {error}"))
}

fn misunderstood() -> Problem {
    let sentence =
        "another node answered something else than was asked about an array; is it of another version?";
    Problem::new(ProblemKind::Node, sentence)
}

#[cfg(test)]
mod tests {
    use super::super::ExchangeLimits;
    use super::*;

    #[test]
    fn names_say_where_an_array_is() {
        let node = Node { name: "0123abcd".into(), socket: PathBuf::from("/nowhere") };
        let own = random(&node.name).unwrap();
        assert_eq!(own.len(), 32);
        assert!(!node.is_elsewhere(&own) && node.is_elsewhere(&random("0123abce").unwrap()));
        assert!(!Node::default().is_elsewhere(&own));
        let exchange = Exchange::new(ExchangeLimits { gpu: 0, host: 0 }, node);
        let kind = |id: &str| exchange.get_anywhere("app:a", id, 1).err().unwrap().kind;
        assert_eq!(kind(&own), ProblemKind::NotFound);
        assert_eq!(kind("ffff"), ProblemKind::Unavailable, "nobody can be asked");
        assert!(exchange.known().coming.is_empty());
    }

    #[test]
    fn what_is_not_as_it_was_said_to_be_gets_no_room() {
        let array = |bytes, room| ArrayKind { bytes, room, expiry_ms: 0, counted: false };
        assert!(check("a", &array(5, 2 << 20), 5).is_ok());
        assert_eq!(check("a", &array(6, 2 << 20), 5).err().unwrap().kind, ProblemKind::Size);
        for room in [4, 5 + MOST_ROUNDING + 1, u64::MAX] {
            assert_eq!(check("a", &array(5, room), 5).err().unwrap().kind, ProblemKind::Node, "{room}");
        }
    }
}
