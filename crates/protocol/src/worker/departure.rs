//! What a worker says when it leaves its program's place for [another one](super::ask::ServeAnother).

use std::io::{self, Read, Write};

/// What it says, in the pipe that came with the request. If that is closed before the last word, its process ends, or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The program sleeps, and a keeper with this pid listens in the worker's place.
    Kept(i32),
    /// All that the program had is given back: the worker waits at the other place.
    Returned,
}

const BYTES: usize = 5;

impl Departure {
    pub fn send(self, mut to: impl Write) -> io::Result<()> {
        let (word, pid) = match self {
            Departure::Kept(pid) => (1, pid),
            Departure::Returned => (2, 0),
        };
        let [a, b, c, d] = pid.to_le_bytes();
        to.write_all(&[word, a, b, c, d])
    }

    /// None if nothing more comes.
    pub fn receive(from: &mut impl Read) -> Option<Departure> {
        let mut bytes = [0; BYTES];
        from.read_exact(&mut bytes).ok()?;
        let [word, pid @ ..] = bytes;
        match word {
            1 => Some(Departure::Kept(i32::from_le_bytes(pid))),
            2 => Some(Departure::Returned),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_received_in_order_and_half_a_word_is_none() {
        let mut said = Vec::new();
        Departure::Kept(70_000).send(&mut said).unwrap();
        Departure::Returned.send(&mut said).unwrap();
        said.push(1);
        let mut rest = &said[..];
        assert_eq!(Departure::receive(&mut rest), Some(Departure::Kept(70_000)));
        assert_eq!(Departure::receive(&mut rest), Some(Departure::Returned));
        assert_eq!(Departure::receive(&mut rest), None);
    }
}
