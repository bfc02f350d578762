//! CUDA IPC: handles that processes of one program give each other, and what their workers say to each other about them.
//!
//! A worker whose program has given a handle listens at a socket of its own in the run directory ([`socket_name`]); the
//! worker of the process that opens the handle asks there, and gets a descriptor of the memory.

use serde::{Deserialize, Serialize};

/// Raised when a message or a handle changes.
pub const VERSION: u32 = 1;

/// Bytes of `CUipcMemHandle` and `CUipcEventHandle`.
pub const HANDLE_BYTES: usize = 64;

const MAGIC: &[u8; 4] = b"RKIP";
/// What the names of workers' sockets begin with.
const SOCKET: &str = "ipc-";

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory = 1,
    Event = 2,
    /// Of `cuMemCreate`.
    Physical = 3,
    /// A pool that allocations were made from: who has this knows where they lie, and has none of them yet.
    Pool = 4,
}

/// What is in a handle's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub kind: Kind,
    /// Whose it is.
    pub source: Source,
    /// Of the allocation in the memory, or of the event in its page.
    pub offset: u64,
    /// Of the allocation; 0 for an event.
    pub bytes: u64,
}

/// Memory that a process of the program gives others: the key of the process, and its number for the memory. They stay the
/// same over a checkpoint and a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    pub key: u64,
    pub number: u64,
}

impl Handle {
    pub fn encode(&self) -> [u8; HANDLE_BYTES] {
        let Handle { kind, source, offset, bytes } = *self;
        let mut encoded = [0; HANDLE_BYTES];
        encoded[..4].copy_from_slice(MAGIC);
        encoded[4] = VERSION as u8;
        encoded[5] = kind as u8;
        for (at, word) in [source.key, source.number, offset, bytes].into_iter().enumerate() {
            encoded[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        encoded
    }

    /// None if these are no bytes of a handle of this version and kind.
    pub fn decode(encoded: &[u8], kind: Kind) -> Option<Handle> {
        if encoded.len() != HANDLE_BYTES || !encoded.starts_with(MAGIC) || encoded[4] != VERSION as u8 {
            return None;
        }
        let mut words = encoded[8..].chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes));
        let mut word = || words.next()?.ok();
        let source = Source { key: word()?, number: word()? };
        let handle = Handle { kind, source, offset: word()?, bytes: word()? };
        (encoded[5] == kind as u8).then_some(handle)
    }
}

/// The file name of the socket at which the worker of a process listens.
pub fn socket_name(key: u64) -> String {
    format!("{SOCKET}{key:016x}")
}

/// Whether a file of the run directory is such a socket.
pub fn is_socket_name(name: &str) -> bool {
    name.starts_with(SOCKET)
}

/// What it is called while another worker is to be found by its name.
pub fn withdrawn_name(name: &str) -> String {
    format!("withdrawn-{name}")
}

/// Asks for memory by its number.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemoryRequest {
    pub version: u32,
    pub number: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A descriptor of it comes along.
    Here { bytes: u64 },
    /// The process has it no more.
    Gone {},
    /// The worker speaks this version.
    Version { version: u32 },
    /// As `Here`, of memory that says on which GPU it lies.
    On { bytes: u64, gpu: [u8; 16] },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_reads_back_and_nonsense_does_not() {
        let source = Source { key: u64::MAX - 1, number: 7 };
        let handle = Handle { kind: Kind::Memory, source, offset: 512, bytes: 1 << 40 };
        let mut encoded = handle.encode();
        assert_eq!(Handle::decode(&encoded, Kind::Memory), Some(handle));
        assert_eq!(Handle::decode(&encoded, Kind::Event), None);
        assert_eq!(Handle::decode(&encoded[1..], Kind::Memory), None);
        assert_eq!(Handle::decode(&[0; HANDLE_BYTES], Kind::Memory), None);
        encoded[4] = 9;
        assert_eq!(Handle::decode(&encoded, Kind::Memory), None);
    }
}
