//! What memory a request of the program may change, as far as its words tell.
//!
//! Arguments of kernels do not say which memory is only read, so all that a kernel names counts. One that comes to memory by an
//! address that lies in memory is not found here: whoever relies on this has to find out otherwise whether it was right.
//! PARALLELGPUOS speculates so on arguments, and validates what it has guessed (section 5).

use rekindle_protocol::operation::*;
use rekindle_ring::Record;

use super::needs::{Needs, TouchedMemory, needs};
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
    match needs(client, opcode, body, trailer) {
        Needs::Look(_) => Writes::Nothing,
        Needs::Memory(touched) => match opcode {
            Copy::OPCODE | CopyStrided::OPCODE | SetMemory::OPCODE | Upload::OPCODE => {
                Writes::These(TouchedMemory { ranges: touched.written, ..TouchedMemory::default() })
            }
            _ => Writes::These(touched),
        },
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
