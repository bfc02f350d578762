//! What the user of a program's terminal and its sandbox's init say to each other, over a socket that keeps packets apart.
//!
//! ```text
//!  command ──Said──▶ init ──▶ the program's terminal
//!     ◀── what the program prints, as it is ──┘
//! ```
//!
//! Whoever closes the socket has let go: the user leaves the program, or the program has ended.

use serde::{Deserialize, Serialize};

/// The most bytes of a packet.
pub const PACKET: usize = 16 << 10;

const TYPED: u8 = 0;
const RESIZED: u8 = 1;

/// How much a terminal shows, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    pub rows: u16,
    pub columns: u16,
}

impl Default for WindowSize {
    /// What programs expect where nobody says.
    fn default() -> WindowSize {
        WindowSize { rows: 24, columns: 80 }
    }
}

/// What a user says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalInput<'a> {
    Typed(&'a [u8]),
    Resized(WindowSize),
}

impl<'a> TerminalInput<'a> {
    pub fn packet(&self) -> Vec<u8> {
        match self {
            TerminalInput::Typed(bytes) => [&[TYPED], *bytes].concat(),
            TerminalInput::Resized(WindowSize { rows, columns }) => {
                [&[RESIZED][..], &rows.to_le_bytes(), &columns.to_le_bytes()].concat()
            }
        }
    }

    /// None for what is no packet of a user's.
    pub fn read(packet: &'a [u8]) -> Option<TerminalInput<'a>> {
        match packet {
            [TYPED, bytes @ ..] => Some(TerminalInput::Typed(bytes)),
            [RESIZED, a, b, c, d] => {
                let (rows, columns) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
                Some(TerminalInput::Resized(WindowSize { rows, columns }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_says_what_was_said() {
        for said in [
            TerminalInput::Typed(b"ls\r"),
            TerminalInput::Typed(b""),
            TerminalInput::Resized(WindowSize { rows: 300, columns: 7 }),
        ] {
            assert_eq!(TerminalInput::read(&said.packet()), Some(said));
        }
        for odd in [&b""[..], &[RESIZED], &[RESIZED, 1, 2, 3], &[RESIZED, 1, 2, 3, 4, 5], &[9, 1]] {
            assert_eq!(TerminalInput::read(odd), None);
        }
    }
}
