//! How a daemon starts, and what it takes over from the one before.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rekindle_driver::Helper;
use rekindle_gateway::Gateway;
use rekindle_protocol::daemon::State;
use rekindle_sandbox::{Adopted, Sandbox as CpuHalf};
use rekindle_store::{Faults, Image, Store};

use crate::access_log::AccessLog;
use crate::caches::{CacheLimits, Caches};
use crate::containers::{self, device};
use crate::contexts::Contexts;
use crate::daemon::{Daemon, ServiceSettings, Watchers, room};
use crate::data::{Data, DataLimits};
use crate::error::{Error, Result};
use crate::host::client_library;
use crate::host::doctor;
use crate::host::gpu;
use crate::host::lock::{self, Lock};
use crate::host::paths::Paths;
use crate::host::resources::give_memory_back;
use crate::images::metadata::ImageMetadata;
use crate::images::verify::page_files;
use crate::images::verify::page_files::First;
use crate::migration;
use crate::nodes::{self, Outcome};
use crate::peers::Peers;
use crate::pool::{IMAGES, PoolSize, WorkerPool};
use crate::recovery;
use crate::restore::{self, mapped, proof};
use crate::sandboxes::admission::AdmissionSocket;
use crate::sandboxes::mending::{self, when_workers_are_lost};
use crate::sandboxes::record::Record;
use crate::sandboxes::workers::when_contexts_fail;
use crate::sandboxes::{Sandbox, remove_directory};
use crate::services;
use crate::sleep;
use crate::sleep::wake;
use crate::spans::Spans;
use crate::tenants;
use crate::workers::Spares;

impl Daemon {
    /// Takes the state directory, tidies up after a daemon that died, and finds its sandboxes again.
    pub fn open(
        paths: Paths,
        pool: PoolSize,
        caches: CacheLimits,
        data: DataLimits,
        services: ServiceSettings,
    ) -> Result<Arc<Daemon>> {
        give_memory_back();
        when_contexts_fail(migration::outlive);
        when_workers_are_lost(restore::mending::replace);
        doctor::tell_of_capabilities();
        paths.prepare()?;
        let lock = Lock::take(&paths)?;
        let paths = paths.named();
        let program =
            std::env::current_exe().map_err(|source| Error::system("find this executable", source))?;
        // Made and tidied without faults: those that a test asks for are for what comes after.
        let store = Store::open_with(&paths.store(), Faults::default())?;
        for name in store.abandoned() {
            log::warn!("the checkpoint to image {name:?} was not finished; what was written is removed");
        }
        let store = match Faults::from_environment() {
            Some(faults) => Store::open_with(&paths.store(), faults)?,
            None => store,
        };
        let access_log = services.access_log.map(|to| AccessLog::open(&to, paths.log_max)).transpose()?;
        let spans = services.otlp_endpoint.map(|endpoint| Spans::open(&endpoint)).transpose()?;
        let watchers = Watchers { access_log, spans };
        let gateway = Gateway::new(room(), services.memory)
            .with_access(watchers.clone().access())
            .with_proxies(&services.proxies);
        let log = paths.logs().join("driver-helper.log");
        let driver = Helper::new(&program, paths.driver(), log);
        let spares = Spares::open(&paths, program.clone());
        let caches = Caches::new(caches, store.root().to_path_buf(), spares.clone());
        let contexts = Contexts::open(&paths, program.clone());
        let pool = WorkerPool::new(program.clone(), pool, spares, caches, contexts);
        let peers = Peers::open(paths.nodes())?;
        let data = Data::open(&paths, program.clone(), data, peers.name()?)?;
        let has = (gateway, watchers, lock);
        let daemon = Arc::new(Daemon::new(paths, program, store, driver, pool, (data, peers), has)?);
        nodes::listen_to_memory(&daemon)?;
        if let Some(spans) = &daemon.spans {
            spans.begin(Arc::downgrade(&daemon.sandboxes))?;
        }
        daemon.clear_dumps();
        daemon.adopt()?;
        daemon.driver.recover_all();
        nodes::tidy(&daemon);
        for sandbox in daemon.sandboxes.all() {
            recovery::follow(&daemon, &sandbox);
        }
        daemon.pool.prepare(&gpu::choose(None)?);
        note_images(&daemon);
        tenants::resume(&daemon)?;
        services::resume(&daemon)?;
        Ok(daemon)
    }

    fn adopt(&self) -> Result<()> {
        let mut known = HashSet::new();
        let mut adopted = Vec::new();
        let mut records = Record::load_all(&self.paths.sandboxes())?;
        // A port leads to one that runs, before one that was stopped.
        records.sort_by_key(Record::is_live);
        for record in records {
            known.insert(record.id.clone());
            let sandbox = Sandbox::new(&self.paths, &self.pool, record);
            if sandbox.is_live()
                && let Err(error) = sandbox.claim()
            {
                log::error!("sandbox {:?}: {error}", sandbox.name());
                continue;
            }
            match sandbox.is_live() {
                true if sandbox.record().device => {
                    if let Err(error) = device::adopt(self, &sandbox) {
                        log::error!("{error}");
                    }
                }
                true if sandbox.record().state == State::Restoring => {
                    if !self.take_over_restored(&sandbox) {
                        sandbox.forget();
                        continue;
                    }
                }
                true => {
                    let found = CpuHalf::adopt(&sandbox.run_directory);
                    self.take_over(&sandbox, found);
                }
                // Those of one that has gone elsewhere are seen to with that.
                false if sandbox.record().state == State::Stopped && sandbox.record().node.is_none() => {
                    sandbox.adopt_network(&self.publisher, None)
                }
                false => {}
            }
            adopted.push(sandbox);
        }
        self.sandboxes.adopt(adopted);
        self.clear_strays(&known);
        proof::remove_unproven(self);
        let sleeps = |id: &str, store: &Path| {
            let sleeps_there = |sandbox: &Arc<Sandbox>| {
                sandbox.id == id && sandbox.record().asleep.is_some_and(|asleep| asleep.store == store)
            };
            self.sandboxes.all().iter().any(sleeps_there)
        };
        migration::clear(&self.paths);
        mending::clear(&self.paths.mending(), &self.sandboxes.all());
        client_library::clear(&self.paths);
        sleep::clear_strays(&self.paths, sleeps);
        // What they are good for ended with the daemon that had them.
        for entry in std::fs::read_dir(self.paths.last_images()).into_iter().flatten().flatten() {
            remove_directory(&entry.path())?;
        }
        for entry in std::fs::read_dir(self.paths.pages()).into_iter().flatten().flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            if !self.sandboxes.all().iter().any(|sandbox| sandbox.id == id && sandbox.is_live()) {
                remove_directory(&entry.path())?;
            }
        }
        Ok(())
    }

    /// One that has come from another node goes on if that has given it away; false if nothing is to be left of it.
    fn take_over_restored(&self, sandbox: &Arc<Sandbox>) -> bool {
        let is_arrival = sandbox.record().arrival.is_some();
        let found = match nodes::outcome(self, sandbox) {
            Outcome::Runs(cpu) => Adopted::Running(cpu),
            Outcome::Ended(exit) => Adopted::Ended(Some(exit)),
            Outcome::Never => {
                sandbox.reconnect_workers();
                sandbox.ended(None);
                if !is_arrival {
                    sandbox.report_problem(
                        "the daemon died while this was being restored; all it had taken was given back"
                            .into(),
                    );
                }
                return !is_arrival;
            }
        };
        self.take_over(sandbox, Ok(found));
        nodes::take_up(sandbox);
        true
    }

    fn take_over(&self, sandbox: &Arc<Sandbox>, found: rekindle_sandbox::Result<Adopted>) {
        let (record, last_sign) = (sandbox.record(), sandbox.last_sign());
        log::info!("sandbox {:?} of an earlier daemon: {:?}", record.name, record.state);
        if let Err(error) = sandbox.limit() {
            sandbox.report_problem(error.to_string());
        }
        match (record.state, found) {
            (state, Ok(Adopted::Running(cpu))) => {
                sandbox.reconnect_workers();
                wake::settle(self, sandbox);
                migration::settle(sandbox);
                // Who comes from now on finds all workers known, and whose they are.
                if let Err(error) = AdmissionSocket::open(sandbox, wake::knocked) {
                    sandbox.report_problem(format!("no further process can use the GPU: {error}"));
                }
                nodes::keep(sandbox, &record, &cpu);
                sandbox.adopt_network(&self.publisher, Some(cpu.init_pid()));
                if let Err(error) = sandbox.runs(cpu).and_then(|()| sandbox.is_up()) {
                    log::error!("{error}");
                }
                // Whether the daemon before came to that is not known.
                let image = sandbox.record().image.and_then(|image| self.store.image(&image).ok());
                let image = image.map(|image| image.path().to_path_buf());
                let mapped = page_files::open_again(&sandbox.pages, image.as_deref());
                mapped::follow(sandbox, mapped, First::default(), None);
                if state == State::Checkpointing {
                    sandbox.report_problem("the daemon died during a checkpoint; the checkpoint was undone and the program goes on".into());
                }
            }
            (_, Ok(Adopted::Ended(exit))) => {
                sandbox.reconnect_workers();
                sandbox.ended_at(exit, last_sign);
            }
            (_, Err(error)) => {
                sandbox.reconnect_workers();
                sandbox.ended_at(None, last_sign);
                sandbox.report_problem(format!("it ended while no daemon ran ({error})"));
            }
        }
    }

    /// Removes what checkpoints of an earlier daemon have left. CRIU may still be writing there until the sandboxes
    /// have let it go; it keeps its directory by a descriptor and fails, as it is to.
    fn clear_dumps(&self) {
        for entry in std::fs::read_dir(self.paths.dumps()).into_iter().flatten().flatten() {
            containers::proof::clear(self, &entry.path());
            if let Err(error) = std::fs::remove_dir_all(entry.path()) {
                log::warn!("{} stays: {error}", entry.path().display());
            }
        }
    }

    /// Ends what runs in run directories of this state's daemons that no record knows, and removes them.
    fn clear_strays(&self, known: &HashSet<String>) {
        for entry in std::fs::read_dir(self.paths.run_directories()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if known.contains(&name) || !self.paths.is_own(&name) {
                continue;
            }
            let _claim = match lock::claim(&entry.path()) {
                Ok(claim) => claim,
                Err(error) => {
                    log::warn!("{error}");
                    continue;
                }
            };
            log::warn!("{} belongs to no sandbox and is removed", entry.path().display());
            if let Ok(Adopted::Running(cpu)) = CpuHalf::adopt(&entry.path()) {
                let _ = cpu.kill();
            }
            if let Err(error) = remove_directory(&entry.path()) {
                log::warn!("{error}");
            }
        }
    }
}

/// Has as many workers wait as images of the last day have processes: those that the daemon before had seen, and others. They
/// are read meanwhile.
fn note_images(daemon: &Arc<Daemon>) {
    if daemon.pool.is_off() {
        return;
    }
    let daemon = daemon.clone();
    std::thread::spawn(move || {
        for summary in daemon.store.images().unwrap_or_default() {
            let changed = std::fs::metadata(&summary.path).and_then(|found| found.modified());
            if !changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < IMAGES)) {
                continue;
            }
            let read =
                Image::open(&summary.path).map_err(Error::from).and_then(|image| ImageMetadata::read(&image));
            if let Ok(metadata) = read
                && metadata.tenant.is_none()
            {
                daemon.pool.note_image(&metadata.gpu, metadata.clients.len());
            }
        }
        daemon.pool.refill();
    });
}
