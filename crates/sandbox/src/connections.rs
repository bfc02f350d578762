//! TCP connections of a program with itself, as NCCL and process groups make them: both ends are dumped and brought
//! back, and nobody else sees anything of it.
//!
//! A connection to somebody outside of the tree would be cut by a restore, so CRIU is to refuse that.

use std::collections::BTreeSet;
use std::fs;

use crate::process::sockets;

/// In the kernel's table: a socket that waits to be called, and one that is only remembered.
const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";

/// Whether the processes have connections, and all of them with each other.
pub fn are_inside(pids: &[i32]) -> bool {
    let own: BTreeSet<u64> = pids.iter().flat_map(|pid| sockets(*pid)).collect();
    let Some(pid) = pids.first() else { return false };
    let table = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    among(&own, &[table("tcp"), table("tcp6")])
}

fn among(own: &BTreeSet<u64>, tables: &[String]) -> bool {
    // One end may be written as an IPv4 address in IPv6: ports and the address's last four bytes tell ends apart.
    let end = |text: &str| {
        let (address, port) = text.split_once(':')?;
        Some((address.get(address.len().checked_sub(8)?..)?.to_string(), port.to_string()))
    };
    let mut ends = BTreeSet::new();
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
            ends.insert((local, remote));
        }
    }
    !ends.is_empty() && ends.iter().all(|(local, remote)| ends.contains(&(remote.clone(), local.clone())))
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
        let own = BTreeSet::from([1, 2, 3]);
        assert!(among(&own, &[table(&[&listening, &one, &other])]));
        assert!(!among(&own, &[table(&[&listening])]), "none is none");
        assert!(
            !among(&BTreeSet::from([1, 2]), &[table(&[&listening, &one, &other])]),
            "the other end is not its own"
        );
        let away = line(here, "08080808:0035", "01", 3);
        assert!(!among(&own, &[table(&[&one, &other, &away])]) && !among(&own, &[table(&[&away])]));
        let wide =
            line("0000000000000000FFFF00000100007F:8000", "0000000000000000FFFF00000100007F:1F90", "01", 3);
        assert!(among(&own, &[table(&[&one]), table(&[&wide])]));
        assert!(!among(&own, &[String::new(), "x\n:\n".to_string()]));
    }

    #[test]
    fn a_process_s_own_are_found() {
        let pid = std::process::id() as i32;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before: BTreeSet<_> = sockets(pid).into_iter().collect();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let added = sockets(pid).iter().filter(|inode| !before.contains(inode)).count();
        assert!(added >= 2, "{added}");
        drop((stream, other));
    }
}
