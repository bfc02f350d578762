//! Ending sandboxes, or sending them a signal.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::containers::device;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::lifecycle::end::{GRACE, end};
use crate::nodes::NodeError;
use crate::sandboxes::recovery::unix_ms;
use crate::server::ServerError;

/// With a signal, sends that to each; without, ends each: SIGTERM first, SIGKILL for the whole namespace after the
/// grace. All names are worked on, whatever happens to one.
pub fn kill(
    daemon: &Daemon,
    names: &[String],
    signal: Option<i32>,
    grace: Option<Duration>,
) -> Result<Value> {
    let grace = grace.unwrap_or(GRACE);
    let signal = signal
        .map(|given| Signal::try_from(given).map_err(|_| ServerError::BadSignal { given }))
        .transpose()?;
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            names.iter().map(|name| scope.spawn(move || one(daemon, name, signal, grace))).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::Several(vec!["a thread panicked".to_string()])))
            })
            .collect()
    });
    let mut failures: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    match failures.len() {
        0 => Ok(json!({ "names": names })),
        1 => Err(failures.remove(0)),
        _ => Err(Error::Several(failures.iter().map(Error::to_string).collect())),
    }
}

fn one(daemon: &Daemon, name: &str, signal: Option<Signal>, grace: Duration) -> Result<()> {
    let mut sandbox = daemon.sandboxes.get(name)?;
    if sandbox.is_live() && sandbox.record().device && signal.is_none() {
        device::remove(daemon, &sandbox);
        return Ok(());
    }
    let (now, mut is_to_stay) = (unix_ms(), false);
    loop {
        sandbox.note(|record| {
            is_to_stay |= record.goes_on() && signal.is_none();
            if let Some(recovery) = &mut record.recovery {
                recovery.asked(now);
                recovery.over |= signal.is_none();
            }
        });
        // Who brings it back looks at the record after it has named the successor.
        let Some(next) = sandbox.successor() else { break };
        sandbox = next;
    }
    let cpu = match sandbox.cpu(if signal.is_some() { "sent a signal" } else { "killed" }) {
        // It waits to be brought back, or is just brought back.
        Err(_) if is_to_stay => return Ok(()),
        other => other?,
    };
    if let Some(signal) = signal {
        return Ok(cpu.signal(signal as i32)?);
    }
    end(&sandbox, cpu, grace)?;
    let record = sandbox.record();
    match record.node.or(record.leaving.map(|leaving| leaving.node)) {
        Some(node) => Err(NodeError::GivenAway { name: record.name, node }.into()),
        None => Ok(()),
    }
}
