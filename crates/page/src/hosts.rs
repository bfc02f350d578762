//! By which names the page may be asked for.
//!
//! A page of somebody else's may have its own name lead to this machine, and then read what is here as its own (DNS
//! rebinding). It comes with that name; those who mean this machine come with an address, or one of its names.

use std::net::{Ipv4Addr, Ipv6Addr};

pub struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    /// Beside addresses and `localhost`, these.
    pub fn new(names: impl IntoIterator<Item = String>) -> Hosts {
        let plain = |name: String| name.trim().trim_end_matches('.').to_ascii_lowercase();
        Hosts { names: names.into_iter().map(plain).filter(|name| !name.is_empty()).collect() }
    }

    /// Whether this is one of them: a host as a request names it, with a port or without.
    pub fn have(&self, host: &str) -> bool {
        if let Some(rest) = host.strip_prefix('[') {
            let inner = rest.split_once(']').filter(|(_, port)| port.is_empty() || port.starts_with(':'));
            return inner.is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
        }
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let is_local = name == "localhost" || name.ends_with(".localhost");
        is_local || name.parse::<Ipv4Addr>().is_ok() || self.names.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_known_and_no_others() {
        let hosts = Hosts::new(["node.example".to_string(), " Other. ".to_string(), String::new()]);
        for known in
            ["127.0.0.1", "10.0.0.7:7070", "[::1]", "[fe80::1]:80", "localhost", "localhost:1", "a.localhost"]
        {
            assert!(hosts.have(known), "{known}");
        }
        for known in ["node.example", "NODE.example.:7070", "other"] {
            assert!(hosts.have(known), "{known}");
        }
        for other in ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "[x]:1"]
        {
            assert!(!hosts.have(other), "{other}");
        }
    }
}
