//! Who makes instances, and what can be done with one. The gateway knows no more of them.

use std::io;
use std::sync::Arc;

use tokio::net::TcpSocket;

use crate::plan::Source;

/// All of these may block, but for [`Instance::socket`]. A failure is a sentence.
pub trait Maker: Send + Sync {
    /// Returns when the program runs; it need not listen yet.
    fn start(&self, source: &Source, name: &str) -> Result<Arc<dyn Instance>, String>;
}

pub trait Instance: Send + Sync {
    /// Gives its GPU back.
    fn sleep(&self) -> Result<(), String>;
    fn wake(&self) -> Result<(), String>;
    /// Returns when nothing is left of it.
    fn end(&self);
    /// Returns when its program has ended, and says how.
    fn wait_end(&self) -> String;
    /// A socket from which the program's loopback can be reached.
    fn socket(&self, is_v6: bool) -> io::Result<TcpSocket>;
}
