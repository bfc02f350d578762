//! What the parts of Rekindle say to each other.
//!
//! | between | carried by | module |
//! | --- | --- | --- |
//! | a program's thread → its worker | ring records | [`operation`] |
//! | client ↔ worker, beside the rings | a Unix socket, frames | [`client`] |
//! | daemon ↔ worker | a Unix socket, frames | [`worker`] |
//! | command line ↔ daemon | a Unix socket, frames | [`daemon`] |

pub mod client;
pub mod daemon;
pub mod frame;
pub mod operation;
pub mod worker;
