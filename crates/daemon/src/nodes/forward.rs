//! Ports of a program that has gone on at another node, which lead there for a time.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::network::Port;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::{Forward, Leaving};
use crate::sandboxes::recovery::unix_ms;

/// The program has ended here: its ports lead there, if that is wanted, or are given back.
pub fn begin(daemon: &Daemon, sandbox: &Arc<Sandbox>, leaving: &Leaving, ports: Vec<Port>) {
    let Some(time_ms) = leaving.forward_ms else { return sandbox.network.close() };
    let peer = daemon.peers.known.get(&leaving.node);
    let begun = peer.and_then(|peer| {
        let host = peer.address.rsplit_once(':').map(|(host, _)| host).unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let forward = Forward { host, ports, until_unix_ms: unix_ms().saturating_add(time_ms) };
        sandbox.update(|record| record.forward = Some(forward.clone()))?;
        lead(sandbox, &forward)
    });
    if let Err(error) = begun {
        sandbox.network.close();
        sandbox.report_problem(format!("its ports lead nowhere: {error}"));
    }
}

/// Goes on with what an earlier daemon has begun.
pub fn resume(daemon: &Daemon) {
    for sandbox in daemon.sandboxes.all() {
        let record = sandbox.record();
        let Some(forward) = record.forward.filter(|_| !record.state.is_live()) else { continue };
        if forward.until_unix_ms <= unix_ms() {
            sandbox.note(|record| record.forward = None);
            continue;
        }
        sandbox.adopt_network(&daemon.publisher, None);
        if let Err(error) = lead(&sandbox, &forward) {
            sandbox.network.close();
            sandbox.report_problem(format!("its ports lead nowhere: {error}"));
        }
    }
}

fn lead(sandbox: &Arc<Sandbox>, forward: &Forward) -> Result<()> {
    sandbox.network.forward(address(&forward.host)?, &forward.ports);
    let left = Duration::from_millis(forward.until_unix_ms.saturating_sub(unix_ms()));
    let sandbox = Arc::downgrade(sandbox);
    std::thread::spawn(move || {
        std::thread::sleep(left);
        if let Some(sandbox) = sandbox.upgrade().filter(|sandbox| sandbox.is_known()) {
            sandbox.network.close();
            sandbox.note(|record| record.forward = None);
        }
    });
    Ok(())
}

fn address(host: &str) -> Result<IpAddr> {
    let failed = |source| Error::system("find the other node", source);
    let mut found = (host, 0).to_socket_addrs().map_err(failed)?;
    found.next().map(|found| found.ip()).ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}
