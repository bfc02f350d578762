//! A program that goes: sent while it runs, and for the last time while it stands still, until the other node runs it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rekindle_protocol::daemon::{Mode, NodeMigrationReport, Round};
use rekindle_protocol::network::Port;
use rekindle_sandbox::Frozen;

use crate::checkpoint::Purpose;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::events;
use crate::fault;
use crate::migration::MigrationError;
use crate::peers::{Link, MESSAGE_LIMIT, PeerError};
use crate::reply::Reply;
use crate::sandboxes::record::Leaving;
use crate::sandboxes::recovery::unix_ms;
use crate::sandboxes::{Sandbox, SandboxError};
use crate::timeline::Timeline;

use super::message::{Answer, Ask, Hello, Offer};
use super::rounds::MOST_ROUNDS;
use super::settle::{self, Decision};
use super::{image_name, logs, refused};

const WANTED: &str = "migrated";
/// How long the other node may take for an image once all of it was sent, and to bring a program to where it could run.
pub const WORK_LIMIT: Duration = Duration::from_secs(150);

/// What the user asks for.
pub struct Departure<'a> {
    pub node: &'a str,
    pub gpu: Option<String>,
    pub rounds: Option<u32>,
    pub publish: Vec<Port>,
    /// For how long its ports here are to lead there.
    pub forward: Option<Duration>,
}

/// One migration under way.
pub(super) struct Migration<'a> {
    pub(super) daemon: &'a Arc<Daemon>,
    pub(super) sandbox: &'a Arc<Sandbox>,
    pub(super) id: String,
    pub(super) link: Mutex<Link>,
    pub(super) logs: Mutex<logs::Sent>,
    pub(super) timeline: &'a Timeline,
    pub(super) reply: &'a Reply<'a>,
    /// What the last round came to.
    pub(super) last: OnceLock<u64>,
    pub(super) gpu: OnceLock<String>,
    pub(super) forward_ms: Option<u64>,
    /// Where it is found there.
    pub(super) ports: OnceLock<Vec<Port>>,
}

/// Moves a running program to another node. Whatever fails, it goes on here or there, and never at both.
pub fn depart(
    daemon: &Arc<Daemon>,
    sandbox: &Arc<Sandbox>,
    options: Departure<'_>,
    reply: &Reply<'_>,
) -> Result<NodeMigrationReport> {
    let timeline = Timeline::begin();
    let _claim = daemon.leaving.take_sandbox(&sandbox.id, &sandbox.name())?;
    check(sandbox)?;
    let peer = daemon.peers.known.get(options.node)?;
    reply.progress("connect", 0, 0);
    let link = timeline.time("connect", || daemon.peers.ends()?.connect(&peer))?;
    let migration = Migration {
        daemon,
        sandbox,
        id: [daemon.paths.new_id()?, daemon.paths.new_id()?].concat(),
        link: Mutex::new(link),
        logs: Mutex::default(),
        timeline: &timeline,
        reply,
        last: OnceLock::new(),
        gpu: OnceLock::new(),
        forward_ms: options.forward.map(|time| time.as_millis() as u64),
        ports: OnceLock::new(),
    };
    let moved = migration.perform(&options);
    image_name::clear(daemon, &migration.id);
    let (rounds, stopped_us) = moved.map_err(|error| match error {
        Error::Cancelled => MigrationError::Cancelled.into(),
        other => other,
    })?;
    log::info!("{:?} has moved to node {:?}", sandbox.name(), peer.name);
    events::tell("migrated", |happened| {
        happened.sandbox = Some(sandbox.name());
        happened.node = Some(peer.name.clone());
    });
    Ok(NodeMigrationReport {
        name: sandbox.name(),
        node: peer.name,
        gpu: migration.gpu.get().cloned().unwrap_or_default(),
        ports: migration.ports.get().cloned().unwrap_or_default(),
        bytes: rounds.iter().map(|round| round.bytes).sum(),
        total_us: timeline.elapsed_us(),
        stopped_us,
        rounds,
        phases: timeline.phases(),
    })
}

/// What cannot move.
fn check(sandbox: &Sandbox) -> Result<()> {
    let record = sandbox.record();
    let refused = |reason: &str| {
        Err(MigrationError::CannotMove { name: record.name.clone(), reason: reason.to_string() }.into())
    };
    if record.service.is_some() {
        return refused("it is an instance of a service; serve its image there");
    }
    if record.tenant.is_some() {
        return refused("it shares its context with other programs; stop it, and export its image there");
    }
    if record.mode == Mode::Driver {
        return refused("the driver has its GPU half; stop it, and export its image there");
    }
    if record.asleep.is_some() {
        return refused("its GPU half sleeps; `rekindle wake` wakes it");
    }
    sandbox.cpu(WANTED).map(drop)
}

/// What went wrong at the node that the sentence names anyway.
fn why(error: Error) -> String {
    match error {
        Error::Peers(PeerError::Failed { reason, .. }) => reason,
        other => other.to_string(),
    }
}

impl Migration<'_> {
    fn perform(&self, options: &Departure<'_>) -> Result<(Vec<Round>, u64)> {
        let record = self.sandbox.record();
        let offer = Offer {
            id: self.id.clone(),
            name: record.name,
            gpu: options.gpu.clone(),
            publish: options.publish.clone(),
            log_start: record.log_start,
            // Its images stay here.
            recovery: record.recovery.map(|recovery| recovery.leaves(unix_ms())),
            user: record.user,
            terminal: record.terminal,
        };
        self.ask(&Hello::Migrate(Box::new(offer)), MESSAGE_LIMIT, |answer| {
            matches!(answer, Answer::Done).then_some(())
        })?;
        fault::point("node-begun")?;
        let rounds = self.send_ahead(options.rounds)?;
        self.send_last(rounds)
    }

    /// The program stands still, and ends here once it runs there.
    fn send_last(&self, mut rounds: Vec<Round>) -> Result<(Vec<Round>, u64)> {
        let number = MOST_ROUNDS + 1;
        let (name, began) = (image_name::name(&self.id, number), Instant::now());
        let hand_over = |frozen: &Frozen<'_>| self.hand_over(&name, frozen);
        let taken = self.take(&name, false, Purpose::Move(&hand_over));
        let leaving = self.sandbox.record().leaving;
        match (taken, leaving) {
            // It has ended here, and it is known that it has gone there; what failed after that is of no account.
            (taken, Some(leaving)) if !self.sandbox.is_live() => {
                if let Err(error) = &taken {
                    log::warn!("{error}");
                }
                let ports = self.ports.get().cloned().unwrap_or_default();
                settle::gone(self.daemon, self.sandbox, &leaving, ports);
                let stopped_us =
                    taken.map_or_else(|_| began.elapsed().as_micros() as u64, |report| report.stopped_us);
                let bytes = self.last.get().copied().unwrap_or_default();
                rounds.push(Round { bytes, duration_us: stopped_us, stopped_us });
                Ok((rounds, stopped_us))
            }
            (Err(error), leaving) => {
                if leaving.is_some() {
                    settle::resume(self.daemon, self.sandbox);
                }
                Err(error)
            }
            (Ok(_), _) => {
                Err(SandboxError::EndedMeanwhile { name: self.sandbox.name(), wanted: WANTED }.into())
            }
        }
    }

    /// All is in the image, and the program stands still. Returns once it is certain that it runs there; an error once it is
    /// certain that it does not.
    fn hand_over(&self, name: &str, frozen: &Frozen<'_>) -> Result<()> {
        fault::point("node-stopped")?;
        let image = self.daemon.store.image(name)?;
        let bytes = self.timeline.time("send", || self.send(&image))?;
        let _ = self.last.set(bytes);
        self.lock_logs().send_more(self.sandbox, &mut self.lock())?;
        fault::point("node-sent")?;
        self.reply.progress("restore", 0, 0);
        self.timeline.time("restore there", || {
            self.ask(&Ask::Restore, WORK_LIMIT, |answer| matches!(answer, Answer::Ready).then_some(()))
        })?;
        fault::point("node-ready")?;
        self.reply.check_wanted()?;
        // From here on nobody's death lets it go on here.
        frozen.hold()?;
        fault::point("node-held")?;
        // One that was killed meanwhile does not go on there.
        frozen.check_alive()?;
        let node = self.lock().peer.name.clone();
        let leaving = Leaving { node, id: self.id.clone(), forward_ms: self.forward_ms, taken_back: false };
        if let Err(error) = self.sandbox.update(|record| record.leaving = Some(leaving.clone())) {
            self.sandbox.note(|record| record.leaving = None);
            return Err(error);
        }
        let told = fault::point("node-given").and_then(|()| self.tell());
        let decision = match told {
            Ok(decision) => decision,
            Err(error) => {
                log::warn!("{error}");
                match settle::decide(self.daemon, self.sandbox, &leaving, || frozen.goes_on()) {
                    Decision::Stays(reason) => Decision::Stays(format!("{reason}; {}", why(error))),
                    gone => gone,
                }
            }
        };
        match decision {
            Decision::Gone(ports) => {
                let _ = self.ports.set(ports);
                fault::point("node-told").or(Ok(()))
            }
            Decision::Stays(reason) => {
                self.sandbox.update(|record| record.leaving = None)?;
                Err(PeerError::Failed { name: leaving.node, reason }.into())
            }
        }
    }

    /// Gives the word.
    fn tell(&self) -> Result<Decision> {
        self.timeline.time("run there", || {
            let mut link = self.lock();
            link.send(&Ask::Run)?;
            match link.receive(WORK_LIMIT)? {
                Answer::Runs { ports } => Ok(Decision::Gone(ports)),
                Answer::Never { reason } => Ok(Decision::Stays(reason)),
                other => Err(refused(&link, other)),
            }
        })
    }

    pub(super) fn ask<T>(
        &self,
        what: &impl serde::Serialize,
        within: Duration,
        take: impl FnOnce(&Answer) -> Option<T>,
    ) -> Result<T> {
        let mut link = self.lock();
        link.send(what)?;
        let answer = link.receive(within)?;
        take(&answer).ok_or_else(|| refused(&link, answer))
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_logs(&self) -> std::sync::MutexGuard<'_, logs::Sent> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
