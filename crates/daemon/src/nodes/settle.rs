//! A program that was given away, and of which it is not known yet whether the other node has it: that is asked, and the program
//! stands still meanwhile.

use std::sync::Arc;
use std::time::Duration;

use rekindle_protocol::daemon::State;
use rekindle_protocol::network::Port;
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::Result;
use crate::nodes::NodeError;
use crate::peers::MESSAGE_LIMIT;
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::Leaving;

use super::forward;
use super::message::{Answer, Hello};

/// How often a node is asked that does not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// Where the program goes on.
pub enum Decision {
    /// There, where these ports lead to it.
    Gone(Vec<Port>),
    /// Here, for this reason.
    Stays(String),
}

/// Asks the other node until it has answered, or the user has decided, or the program has ended here.
pub fn decide(daemon: &Daemon, sandbox: &Sandbox, leaving: &Leaving, goes_on: impl Fn() -> bool) -> Decision {
    let mut told = None;
    loop {
        let is_taken_back = || sandbox.record().leaving.is_some_and(|leaving| leaving.taken_back);
        if is_taken_back() {
            return Decision::Stays("the program was taken back".to_string());
        }
        let answer = ask(daemon, leaving);
        // What was answered after the user has decided is of no account.
        if is_taken_back() {
            continue;
        }
        let problem = match answer {
            Ok(Answer::Runs { ports }) => return Decision::Gone(ports),
            Ok(Answer::Never { reason }) => return Decision::Stays(reason),
            Ok(_) => "it does not know yet".to_string(),
            Err(error) => error.to_string(),
        };
        if !goes_on() {
            return Decision::Stays("the program was ended here".to_string());
        }
        if told.as_ref() != Some(&problem) {
            let (name, node) = (sandbox.name(), leaving.node.clone());
            sandbox
                .report_problem_if_known(NodeError::Held { name, node, reason: problem.clone() }.to_string());
            told = Some(problem);
        }
        std::thread::sleep(AGAIN);
    }
}

fn ask(daemon: &Daemon, leaving: &Leaving) -> Result<Answer> {
    let peer = daemon.peers.known.get(&leaving.node)?;
    let mut link = daemon.peers.ends()?.connect(&peer)?;
    link.send(&Hello::Settle { id: leaving.id.clone() })?;
    link.receive(MESSAGE_LIMIT)
}

/// The program has ended here and goes on there, which the other node need not remember any more.
pub fn gone(daemon: &Daemon, sandbox: &Arc<Sandbox>, leaving: &Leaving, ports: Vec<Port>) {
    if !sandbox.is_known() {
        return;
    }
    sandbox.note(|record| {
        record.node = Some(leaving.node.clone());
        record.problem = None;
    });
    forward::begin(daemon, sandbox, leaving, ports);
    let forget = || -> Result<()> {
        let peer = daemon.peers.known.get(&leaving.node)?;
        let mut link = daemon.peers.ends()?.connect(&peer)?;
        link.send(&Hello::Forget { id: leaving.id.clone() })?;
        link.receive::<Answer>(MESSAGE_LIMIT).map(drop)
    };
    match forget() {
        Ok(()) => {}
        // It keeps a line of it, that is all.
        Err(error) => log::warn!("{error}"),
    }
    sandbox.note(|record| record.leaving = None);
}

/// Goes on with what an earlier daemon has left open, on a thread. Nothing else is done to the program before.
pub fn resume(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) {
    let Some(leaving) = sandbox.record().leaving else { return };
    let (daemon, sandbox) = (daemon.clone(), sandbox.clone());
    let (begun, begins) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let operation = sandbox.begin(State::Migrating, "settled");
        let _ = begun.send(());
        let goes_on = || sandbox.cpu("settled").is_ok_and(|cpu| matches!(cpu.exit_status(), Ok(None)));
        let decision = decide(&daemon, &sandbox, &leaving, goes_on);
        let held = sandbox.cpu("settled").ok();
        let settled = match (&decision, held) {
            (Decision::Gone(_), Some(cpu)) => cpu.settle(true).map(drop),
            (Decision::Stays(_), Some(cpu)) => cpu.settle(false).map(drop),
            (_, None) => Ok(()),
        };
        if let Err(error) = settled {
            sandbox.report_problem(error.to_string());
        }
        match decision {
            Decision::Gone(ports) => {
                drop(operation);
                sandbox.wait_end(None);
                gone(&daemon, &sandbox, &leaving, ports);
                log::info!("{:?} has moved to node {:?}", sandbox.name(), leaving.node);
            }
            Decision::Stays(reason) => {
                sandbox.note(|record| {
                    record.leaving = None;
                    record.problem = Some(format!(
                        "it was to move to node {:?}, and goes on here: {reason}",
                        leaving.node
                    ));
                });
                drop(operation);
            }
        }
    });
    // An error: it has ended at once.
    let _ = begins.recv();
}

/// Has a program go on here that waits for another node, whatever that has.
pub fn take_back(sandbox: &Sandbox) -> Result<Value> {
    let mut leaving = None;
    sandbox.update(|record| {
        if let Some(own) = &mut record.leaving {
            own.taken_back = true;
            leaving = Some(own.clone());
        }
    })?;
    let name = sandbox.name();
    match leaving {
        Some(leaving) => Ok(json!({ "name": name, "node": leaving.node })),
        None => Err(NodeError::NotHeld { name }.into()),
    }
}
