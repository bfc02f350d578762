//! What memory a request of the program may change, as far as its words tell.
//!
//! Of a kernel counts what it names by parameters through which it may write, as far as its code or its name tell of these, and
//! else all that it names ([`Client::written_parameters`]). One that comes to memory by an address that lies in memory, or writes
//! to what its name calls constant, is not found here: whoever relies on this has to find out otherwise whether it was right.
//! PARALLELGPUOS speculates so on arguments, and validates what it has guessed (sections 4.2 and 5).

use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::needs::{Needs, TouchedMemory, needs_to_write};
use super::sharing::only_waits;
use crate::client::Client;

#[derive(Debug, PartialEq)]
pub(crate) enum Writes {
    Nothing,
    /// This memory, at most; or it takes it away.
    These(TouchedMemory),
    /// Nobody knows.
    Anything,
}

pub(crate) fn writes(client: &Client, record: &Record<'_>) -> Writes {
    let Record { opcode, body, trailer, .. } = *record;
    match opcode {
        MemoryFree::OPCODE => {
            return postcard::from_bytes(body)
                .map_or(Writes::Nothing, |MemoryFree { address, .. }| Writes::at(address, 1));
        }
        MemoryFreeAsync::OPCODE => {
            return postcard::from_bytes(body)
                .map_or(Writes::Nothing, |MemoryFreeAsync { address, .. }| Writes::at(address, 1));
        }
        WriteValue::OPCODE => {
            return postcard::from_bytes(body)
                .map_or(Writes::Nothing, |WriteValue { address, .. }| Writes::at(address, 8));
        }
        Download::OPCODE
        | WaitValue::OPCODE
        | MemoryAllocate::OPCODE
        | MemoryAllocateAsync::OPCODE
        | HostCall::OPCODE => return Writes::Nothing,
        _ => {}
    }
    match needs_to_write(client, opcode, body, trailer) {
        Needs::Look(_) => Writes::Nothing,
        Needs::Memory(TouchedMemory { words, written, .. }) => {
            Writes::These(TouchedMemory { ranges: written, words, ..TouchedMemory::default() })
        }
        Needs::All if only_waits(opcode) => Writes::Nothing,
        Needs::All => Writes::Anything,
    }
}

impl Writes {
    fn at(address: u64, bytes: u64) -> Writes {
        let range = address..address.saturating_add(bytes);
        Writes::These(TouchedMemory { ranges: vec![range], ..TouchedMemory::default() })
    }
}
