//! Copies and fills.
//!
//! Device memory and shared host memory are copied by the worker where they are. Pageable memory goes through the
//! ring's staging area in pieces: an upload returns when its bytes are staged, a download when they have arrived.

mod across;
mod array;
mod batch;
mod bulk;
mod linear;
mod memcpy;
pub mod set;
mod staged;
pub mod strided;

use crate::memory;

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Memory that the worker reaches at this address.
    Shared(u64),
    /// Memory of the program's own.
    Pageable(u64),
}

impl Side {
    fn address(self) -> u64 {
        match self {
            Side::Shared(address) | Side::Pageable(address) => address,
        }
    }

    /// A host address, as the call says.
    fn host(address: u64, bytes: u64) -> Side {
        if memory::is_shared(address, bytes) { Side::Shared(address) } else { Side::Pageable(address) }
    }

    /// An address that may be of either.
    fn unified(address: u64, bytes: u64) -> Side {
        if memory::is_shared(address, bytes) {
            return Side::Shared(address);
        }
        match memory::find(address).map(|a| a.purpose) {
            Some(memory::Purpose::Registered { .. }) | None => Side::Pageable(address),
            Some(_) => Side::Shared(address),
        }
    }
}
