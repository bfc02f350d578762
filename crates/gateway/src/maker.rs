//! Who makes instances, and what can be done with one. The gateway knows no more of them.

use std::io;
use std::sync::Arc;

use rekindle_protocol::daemon::Level;
use rekindle_protocol::data::Problem;
use tokio::net::TcpSocket;

use crate::memory::Holding;
use crate::plan::Source;

/// Why an instance is not there, or not awake or asleep: a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub why: String,
    /// Its GPU was full: so many bytes were missing, 0 if nobody knows how many.
    pub missing: Option<u64>,
}

/// All of these may block, but for [`Instance::socket`]. A failure is a sentence.
pub trait Maker: Send + Sync {
    /// Returns when the program runs; it need not listen yet.
    fn start(&self, source: &Source, name: &str) -> Result<Arc<dyn Instance>, Failure>;
    /// Has an object fetched that a request names. Returns once its store has said that it is there, or why it cannot be had;
    /// none also if that takes long.
    fn fetch_data(&self, url: &str) -> Option<Problem>;
    /// On which GPU most bytes of these arrays lie, as [`MemoryNeed::gpu`](crate::MemoryNeed) has it; none if that is not known.
    fn locate(&self, arrays: &[String]) -> Option<String>;
    /// Nobody needs these arrays any more, which instances of the source have put. Those who have them mapped keep them.
    fn drop_arrays(&self, source: &Source, arrays: &[String]);
}

pub trait Instance: Send + Sync {
    /// Gives its GPU back; its memory there goes to this level. One that sleeps already goes on to it from a higher one.
    fn sleep(&self, level: Level) -> Result<(), Failure>;
    /// It is wanted: it need not go on to a lower level.
    fn call_off(&self);
    fn wake(&self) -> Result<(), Failure>;
    /// It sleeps, and is to find a context of its GPU when it wakes. Does not block, nor does [`Instance::let_context_go`].
    fn keep_context(&self) {}
    /// It need not find one any more.
    fn let_context_go(&self) {}
    /// What it has of its GPU's memory, its context included; none if that is not known just now.
    fn memory(&self) -> Option<Holding>;
    /// Why its GPU context is good for nothing any more, if that is so: all that its program asks of the GPU fails.
    fn fault(&self) -> Option<String>;
    /// Returns when nothing is left of it.
    fn end(&self);
    /// Returns when its program has ended, and says how.
    fn wait_end(&self) -> String;
    /// Returns when its GPU memory is given back after its program's end, or when that takes too long.
    fn wait_given_back(&self) {}
    /// A socket from which the program's loopback can be reached.
    fn socket(&self, is_v6: bool) -> io::Result<TcpSocket>;
}
