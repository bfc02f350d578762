//! A program's network, and which ports of the machine lead to its own.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// The machine's.
    #[default]
    Host,
    /// One of its own, which has its loopback and the ports that are published.
    Private,
}

impl Network {
    pub fn is_host(&self) -> bool {
        *self == Network::Host
    }
}

/// A TCP port of the machine's that leads to one of the program's; `[ADDRESS:]PORT:TO` in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// None: at all addresses of the machine.
    pub address: Option<IpAddr>,
    /// The machine's; 0 until one was chosen that is free.
    pub port: u16,
    /// The program's.
    pub to: u16,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Port, String> {
        parse(text).ok_or_else(|| {
            let known = if text.contains('/') { "; only TCP is published" } else { "" };
            format!("expected [ADDRESS:]PORT:PORT, such as 8080:8000, the machine's port first{known}")
        })
    }
}

fn parse(text: &str) -> Option<Port> {
    let (from, to) = text.rsplit_once(':')?;
    let to = number(to).filter(|port| *port != 0)?;
    let (address, port) = match from.rsplit_once(':') {
        None => (None, number(from)?),
        // Addresses of IPv6 have colons themselves.
        Some((address, port)) if address.starts_with('[') => {
            let address = address.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
            (Some(IpAddr::V6(address)), number(port)?)
        }
        Some((address, port)) => (Some(IpAddr::V4(address.parse().ok()?)), number(port)?),
    };
    Some(Port { address, port, to })
}

/// Digits alone: `parse` would take a sign too.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for Port {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(formatter, "{}:{}", SocketAddr::new(address, self.port), self.to),
            None => write!(formatter, "{}:{}", self.port, self.to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_they_are_written() {
        for text in ["8080:8000", "0:80", "127.0.0.1:8080:80", "[::1]:65535:1"] {
            assert_eq!(text.parse::<Port>().unwrap().to_string(), text);
        }
        let port: Port = "127.0.0.1:8080:80".parse().unwrap();
        assert_eq!((port.address, port.port, port.to), (Some([127, 0, 0, 1].into()), 8080, 80));
    }

    #[test]
    fn what_is_no_port_says_what_one_is() {
        let wrong =
            ["", ":", "80", "80:", ":80", "80:0", "+80:80", "80:65536", "a:80", "1:2:3:4", "::1:80:80"];
        for text in wrong.into_iter().chain(["localhost:80:80", "[::1:80:80", "80:80/udp", " 80:80", "٣:80"])
        {
            let why = text.parse::<Port>().unwrap_err();
            assert!(why.contains("[ADDRESS:]PORT:PORT"), "{text}: {why}");
            assert_eq!(why.contains("only TCP"), text.contains('/'), "{text}: {why}");
        }
    }
}
