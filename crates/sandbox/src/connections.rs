//! TCP connections of a program: those with itself come along, as NCCL and process groups make them; those to anybody
//! else are cut ([`crate::severed`]).
//!
//! Connections with itself are read out of the kernel, which nothing may come into meanwhile: with both ends standing
//! still nothing does. What is connected to others is not touched, so that it goes on if the program does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::process::{self, sockets};

/// In the kernel's table: a socket that waits to be called, and one that is only remembered.
const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";

/// The inodes of sockets that the processes have connected to each other.
pub fn inside(pids: &[i32]) -> BTreeSet<u64> {
    let own: BTreeSet<u64> = pids.iter().flat_map(|pid| sockets(*pid)).collect();
    // A table for each network that they are in.
    let networks: BTreeMap<_, _> = pids.iter().map(|pid| (process::namespace(*pid, "net"), *pid)).collect();
    let table =
        |pid: i32, name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    networks.into_values().flat_map(|pid| among(&own, &[table(pid, "tcp"), table(pid, "tcp6")])).collect()
}

fn among(own: &BTreeSet<u64>, tables: &[String]) -> BTreeSet<u64> {
    // One end may be written as an IPv4 address in IPv6: ports and the address's last four bytes tell ends apart.
    let end = |text: &str| {
        let (address, port) = text.split_once(':')?;
        Some((address.get(address.len().checked_sub(8)?..)?.to_string(), port.to_string()))
    };
    let mut ends = BTreeMap::new();
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let (Some(&local), Some(&remote), Some(&state)) = (words.get(1), words.get(2), words.get(3)) else {
            continue;
        };
        let inode = words.get(9).and_then(|word| word.parse().ok());
        if let (Some(local), Some(remote), Some(inode)) = (end(local), end(remote), inode)
            && ![LISTEN, TIME_WAIT].contains(&state)
            && own.contains(&inode)
        {
            ends.insert((local, remote), inode);
        }
    }
    let mirrored = |(local, remote): &(_, _)| ends.contains_key(&(Clone::clone(remote), Clone::clone(local)));
    ends.iter().filter(|(end, _)| mirrored(end)).map(|(_, inode)| *inode).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_connections_whose_both_ends_are_the_program_s() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        let line = |local: &str, remote: &str, state: &str, inode: u64| {
            format!(
                "   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1"
            )
        };
        let (here, there) = ("0100007F:1F90", "0100007F:8000");
        let listening = line("00000000:1F90", "00000000:0000", "0A", 1);
        let table = |lines: &[&String]| {
            let all: Vec<_> = std::iter::once(head).chain(lines.iter().map(|line| line.as_str())).collect();
            all.join("\n")
        };
        let (one, other) = (line(here, there, "01", 2), line(there, here, "01", 3));
        let own = BTreeSet::from([1, 2, 3, 4]);
        let both = BTreeSet::from([2, 3]);
        assert_eq!(among(&own, &[table(&[&listening, &one, &other])]), both);
        assert!(among(&own, &[table(&[&listening])]).is_empty(), "none is none");
        let half = among(&BTreeSet::from([1, 2]), &[table(&[&listening, &one, &other])]);
        assert!(half.is_empty(), "the other end is not its own");
        let away = line(here, "08080808:0035", "01", 4);
        assert_eq!(among(&own, &[table(&[&one, &other, &away])]), both);
        assert!(among(&own, &[table(&[&away])]).is_empty());
        let wide =
            line("0000000000000000FFFF00000100007F:8000", "0000000000000000FFFF00000100007F:1F90", "01", 3);
        assert_eq!(among(&own, &[table(&[&one]), table(&[&wide])]), both);
        assert!(among(&own, &[String::new(), "x\n:\n".to_string()]).is_empty());
    }

    #[test]
    fn a_process_s_own_are_found() {
        let pid = std::process::id() as i32;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = inside(&[pid]);
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        assert!(inside(&[pid]).difference(&before).count() >= 2);
        drop((stream, other));
    }
}
