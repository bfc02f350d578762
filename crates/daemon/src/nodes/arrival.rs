//! A program that comes: its images are taken in, and it is brought to where it could run, and runs once the word has come.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rekindle_protocol::network::Port;
use rekindle_sandbox::{Adopted, Exit, Sandbox as CpuHalf};
use rekindle_store::{Image, LONGEST_SENT};

use crate::daemon::Daemon;
use crate::error::Result;
use crate::fault;
use crate::host::{gpu, mounts};
use crate::images::metadata::ImageMetadata;
use crate::images::preflight;
use crate::images::verify::cpu_half;
use crate::network;
use crate::peers::{Link, PeerError};
use crate::recovery;
use crate::reply::Reply;
use crate::restore::{self, RestoreRequest, load_order};
use crate::sandboxes::names;
use crate::sandboxes::record::Record;
use crate::sandboxes::recovery::unix_ms;
use crate::sandboxes::{Sandbox, SandboxError};
use crate::workers::gpu_half;

use super::logs::Received;
use super::message::{Answer, Ask, Offer};
use super::{gpus, image_name};

/// Below what is known of nodes: what comes of logs.
pub const DIRECTORY: &str = "coming";
/// How long the other node may take from one question to the next, while its program runs. One that is gone is noticed before.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// How long it may take for the word, once the program could run.
const WORD_LIMIT: Duration = Duration::from_secs(60);

struct Arrival<'a> {
    daemon: &'a Arc<Daemon>,
    offer: Offer,
    /// The image that came last, by its number.
    last: u32,
    logs: Received,
}

/// Takes a program in, up to its end or the connection's. Nothing is left of one that does not come to run.
pub fn arrive(daemon: &Arc<Daemon>, link: &mut Link, offer: Offer) -> Result<()> {
    let id = offer.id.clone();
    if let Err(error) =
        is_welcome(daemon, &offer).and_then(|()| daemon.peers.arrivals.begin(&id, link.peer.key, &offer.name))
    {
        return link.send(&Answer::Refused { reason: error.to_string() });
    }
    let came = Received::make(daemon.paths.nodes().join(DIRECTORY).join(&id)).and_then(|logs| {
        link.send(&Answer::Done)?;
        let mut arrival = Arrival { daemon, offer, last: 0, logs };
        arrival.serve(link)
    });
    image_name::clear(daemon, &id);
    if !daemon.peers.arrivals.has_run(&id) {
        daemon.peers.arrivals.never(&id)?;
    }
    came
}

/// Whether there is a program already that has its name.
fn is_welcome(daemon: &Daemon, offer: &Offer) -> Result<()> {
    names::check(&offer.name)?;
    match daemon.sandboxes.get(&offer.name) {
        Ok(sandbox) if sandbox.is_live() => Err(SandboxError::NameInUse { name: offer.name.clone() }.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}

impl Arrival<'_> {
    /// Answers until the program runs; an error if nothing comes of it.
    fn serve(&mut self, link: &mut Link) -> Result<()> {
        loop {
            let answer = match link.receive(PATIENCE)? {
                Ask::Image { bytes } => self.take_image(link, bytes).map(|()| Answer::Done),
                Ask::Check => self.check().map(|gpu| Answer::Willing { gpu }),
                Ask::Log { index, at, bytes } => {
                    let piece = link.receive_bytes(bytes, 1 << 20)?;
                    self.logs.take(index, at, &piece).map(|()| Answer::Done)
                }
                Ask::Restore => return self.restore(link),
                Ask::Run => Err(PeerError::GivenUp.into()),
            };
            match answer {
                Ok(answer) => link.send(&answer)?,
                Err(error) => {
                    link.send(&Answer::Refused { reason: error.to_string() })?;
                    link.drain();
                    return Err(error);
                }
            }
        }
    }

    fn image_name(&self) -> String {
        image_name::name(&self.offer.id, self.last)
    }

    fn take_image(&mut self, link: &mut Link, bytes: u64) -> Result<()> {
        let text = link.receive_bytes(bytes, LONGEST_SENT)?;
        let before = self.image_name();
        self.last += 1;
        let incoming = self.daemon.store.receive(&text, &self.image_name())?;
        link.send(&Answer::Wanted { chunks: incoming.wanted().to_vec() })?;
        let check = |directory: &std::path::Path| cpu_half::faults_in(directory).into_iter().next();
        incoming.take(link.stream()?, &check)?;
        fault::point("arrival-received")?;
        if self.last > 1
            && let Err(error) = self.daemon.store.remove(&before)
        {
            log::warn!("{error}");
        }
        Ok(())
    }

    fn image(&self) -> Result<Image> {
        Ok(self.daemon.store.image(&self.image_name())?)
    }

    /// All that can be known before the program stops, as before any restore. The GPU that it is to have; what is chosen here is
    /// what it gets.
    fn check(&mut self) -> Result<String> {
        is_welcome(self.daemon, &self.offer)?;
        let image = self.image()?;
        let metadata = ImageMetadata::read(&image)?;
        self.daemon.criu()?;
        let mounts = mounts::choose(&metadata.mounts, &[])?;
        preflight::check_machine(&self.daemon.paths, &image, &metadata, &mounts)?;
        let gpu = match self.offer.gpu.as_deref() {
            Some(named) => gpu::choose(Some(named))?,
            None => gpus::choose(self.daemon, &image)?,
        };
        if !metadata.clients.is_empty() {
            let worker = self.daemon.pool.spares.start(&gpu, Box::new(|_| ()))?;
            let status = worker.first_status();
            let checked = status
                .and_then(|status| {
                    preflight::wait_for_room((&self.daemon.pool, &gpu), &worker, &image, status)
                })
                .and_then(|(status, _held)| preflight::check_gpus(&image, &status));
            worker.kill();
            checked?;
        }
        let (_, ports) = network::choose(None, &self.offer.publish, (metadata.network, &metadata.ports))?;
        self.daemon.publisher.check(&ports)?;
        fault::point("arrival-checked")?;
        self.offer.gpu = Some(gpu.clone());
        Ok(gpu)
    }

    /// Brings it back, and lets it run once the word has come.
    fn restore(&mut self, link: &mut Link) -> Result<()> {
        let (id, name, image) = (self.offer.id.clone(), self.offer.name.clone(), self.image_name());
        let daemon = self.daemon;
        let (link, this) = (Mutex::new(link), &*self);
        let locked = || link.lock().unwrap_or_else(PoisonError::into_inner);
        let ready_check = |sandbox: &Arc<Sandbox>| -> Result<()> {
            if daemon.peers.arrivals.is_accepted(&id) {
                // A worker has ended after the word, and another one takes its place.
                return Ok(());
            }
            sandbox.note_workers();
            this.logs.put_into(sandbox)?;
            sandbox.update(|record| {
                record.arrival = Some(id.clone());
                record.log_start = this.offer.log_start;
                (record.user, record.terminal) = (this.offer.user.clone(), this.offer.terminal);
            })?;
            fault::point("arrival-ready")?;
            let mut link = locked();
            link.send(&Answer::Ready)?;
            match link.receive(WORD_LIMIT)? {
                Ask::Run => {}
                other => {
                    return Err(PeerError::Failed {
                        name: link.peer.name.clone(),
                        reason: format!("it says {other:?} in place of the word"),
                    }
                    .into());
                }
            }
            drop(link);
            daemon.peers.arrivals.accept(&id)?;
            fault::point("arrival-accepted")
        };
        let request = RestoreRequest {
            image: &image,
            name: Some(&name),
            gpu: self.offer.gpu.as_deref(),
            publish: &self.offer.publish,
            order: load_order::usual(),
            recovery: self.offer.recovery.clone().map(|recovery| recovery.arrives(unix_ms())),
            ready_check: Some(&ready_check),
            ..RestoreRequest::default()
        };
        let reply = Reply::to_nobody();
        let restored = restore::open(daemon, &request, &reply)
            .and_then(|opened| restore::restore(daemon, opened, &request, &reply))
            .and_then(|report| daemon.sandboxes.get(&report.name));
        match restored {
            Ok(sandbox) => {
                // Its image goes.
                sandbox.note(|record| record.image = None);
                daemon.peers.arrivals.runs(&id);
                recovery::follow(daemon, &sandbox);
                log::info!("{name:?} has come from node {:?}", locked().peer.name);
                // A fault here can but end this daemon, or the connection.
                fault::point("arrival-running")?;
                locked().send(&Answer::Runs { ports: sandbox.record().ports })
            }
            Err(error) => {
                let was_accepted = daemon.peers.arrivals.is_accepted(&id);
                daemon.peers.arrivals.never(&id)?;
                let reason = error.to_string();
                let answer = match was_accepted {
                    true => Answer::Never { reason },
                    false => Answer::Refused { reason },
                };
                locked().send(&answer)?;
                Err(error)
            }
        }
    }
}

/// The ports that lead to a program that has come, if there is one yet.
pub fn ports(daemon: &Daemon, id: &str) -> Vec<Port> {
    let records = daemon.sandboxes.all().into_iter().map(|sandbox| sandbox.record());
    let own = records.filter(Record::is_live).find(|record| record.arrival.as_deref() == Some(id));
    own.map(|record| record.ports).unwrap_or_default()
}

/// What became of a program whose daemon died while it came.
pub enum Outcome {
    /// It has run: it goes on, or has ended like this.
    Runs(CpuHalf),
    Ended(Exit),
    /// It never ran.
    Never,
}

/// Finds out what became of a program that was accepted, if it was.
pub fn outcome(daemon: &Daemon, sandbox: &Sandbox) -> Outcome {
    let id = sandbox.record().arrival.filter(|id| daemon.peers.arrivals.is_accepted(id));
    let Some(id) = id else {
        if let Ok(Adopted::Running(cpu)) = CpuHalf::adopt(&sandbox.run_directory) {
            let _ = cpu.kill();
        }
        return Outcome::Never;
    };
    let outcome = match CpuHalf::adopt_settled(&sandbox.run_directory) {
        Ok(Adopted::Running(cpu)) => Outcome::Runs(cpu),
        Ok(Adopted::Ended(Some(exit))) => Outcome::Ended(exit),
        Ok(Adopted::Ended(None)) | Err(_) => Outcome::Never,
    };
    match outcome {
        Outcome::Runs(_) | Outcome::Ended(_) => daemon.peers.arrivals.runs(&id),
        Outcome::Never => {
            if let Err(error) = daemon.peers.arrivals.never(&id) {
                log::error!("{error}");
            }
        }
    }
    outcome
}

/// Lets a program's GPU work go on that waits for that since its daemon died while it came.
pub fn take_up(sandbox: &Arc<Sandbox>) {
    sandbox.note(|record| record.image = None);
    for worker in sandbox.live_workers() {
        if worker.status().is_ok_and(|status| status.held_back)
            && let Err(error) = gpu_half::resume(&worker, true, false)
        {
            sandbox.report_problem(error.to_string());
        }
    }
}
