//! Instances of services: sandboxes of an image, each in a network of its own.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rekindle_gateway::{Failure, Holding, Instance, Maker, Source, TcpSocket, Variant};
use rekindle_protocol::daemon::{Level, State};
use rekindle_protocol::data::Problem;
use rekindle_protocol::service_name::ServiceName;

use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::host::gpu;
use crate::images::metadata::ImageMetadata;
use crate::lifecycle::end::{GRACE, end};
use crate::network::NetworkDialer;
use crate::reply::Reply;
use crate::restore::{self, load_order};
use crate::sandboxes::Sandbox;
use crate::sandboxes::record::owner;
use crate::services::ServiceError;
use crate::services::memory;
use crate::services::variants::{self, PendingVariants};
use crate::sleep::{self, SleepError, wake};

/// How long what an ended instance had of a GPU may take to be given back, and how often it is looked.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// Makes those of one service.
pub struct InstanceMaker {
    pub daemon: Arc<Daemon>,
    pub service: ServiceName,
    pub dialer: NetworkDialer,
    pub coming: PendingVariants,
}

struct Member {
    daemon: Arc<Daemon>,
    sandbox: Arc<Sandbox>,
    dialer: NetworkDialer,
}

/// Whether instances can be made of an image; why not, otherwise.
pub fn check(image: &str, metadata: &ImageMetadata) -> Result<()> {
    let reason = match metadata {
        ImageMetadata { container: Some(_), .. } => {
            "it is of a container, whose engine has its network; take one of a program that `rekindle run --network private` runs"
        }
        ImageMetadata { framework: true, .. } => {
            "its program waits for an app; start that by `rekindle run --from`, and take an image once it listens"
        }
        _ => return Ok(()),
    };
    Err(ServiceError::CannotServe { image: image.to_string(), reason: reason.to_string() }.into())
}

impl InstanceMaker {
    /// An instance that an earlier daemon has made.
    pub fn adopt(&self, sandbox: &Arc<Sandbox>) -> Arc<dyn Instance> {
        let (daemon, sandbox, dialer) = (self.daemon.clone(), sandbox.clone(), self.dialer.clone());
        Arc::new(Member { daemon, sandbox, dialer })
    }

    fn make(&self, source: &Source, name: &str) -> Result<Arc<Sandbox>> {
        let Source { gpu, tenant, limits, .. } = source;
        let coming = self.coming.choose(source, || variants::running(&self.daemon, &self.service));
        let Variant { image, id } = coming.variant();
        let request = restore::RestoreRequest {
            image,
            name: Some(name),
            gpu: gpu.as_deref(),
            tenant: tenant.as_deref(),
            limits: *limits,
            order: load_order::usual(),
            service: Some(&self.service),
            ..restore::RestoreRequest::default()
        };
        let reply = Reply::to_nobody();
        let opened = restore::open(&self.daemon, &request, &reply)?;
        if opened.image.manifest().id != *id {
            let reason = "another image has its name by now; `rekindle serve` takes that one".to_string();
            return Err(ServiceError::CannotServe { image: image.clone(), reason }.into());
        }
        let report = restore::restore(&self.daemon, opened, &request, &reply)?;
        self.daemon.sandboxes.get(&report.name)
    }
}

fn failure(error: Error) -> Failure {
    Failure { missing: error.missing_gpu_memory(), why: error.to_string() }
}

impl Maker for InstanceMaker {
    fn start(&self, source: &Source, name: &str) -> std::result::Result<Arc<dyn Instance>, Failure> {
        // It is on its way while the program is restored.
        source.data.iter().for_each(|url| self.daemon.data.prefetch(url));
        let sandbox = self.make(source, name).map_err(failure)?;
        Ok(self.adopt(&sandbox))
    }

    fn fetch_data(&self, url: &str) -> Option<Problem> {
        self.daemon.data.begin(url).err()
    }

    fn locate(&self, arrays: &[String]) -> Option<String> {
        let gpu = self.daemon.data.locate(arrays)?;
        Some(gpu::first(&gpu.choice).to_string())
    }

    fn drop_arrays(&self, source: &Source, arrays: &[String]) {
        let Some(owner) =
            owner(self.service.tenant.as_deref(), source.tenant.as_deref(), Some(&self.service.name))
        else {
            return;
        };
        for id in arrays {
            // Who was called with it may have had its use of it already.
            if let Err(problem) = self.daemon.data.drop_array(&owner, id, false) {
                log::debug!("{}", problem.sentence);
            }
        }
    }
}

impl Instance for Member {
    fn sleep(&self, level: Level) -> std::result::Result<(), Failure> {
        match sleep::sleep(&self.daemon, &self.sandbox, level, &Reply::to_nobody()) {
            Ok(_) | Err(Error::Sleep(SleepError::AlreadyAsleep { .. })) => Ok(()),
            Err(error) => Err(failure(error)),
        }
    }

    fn call_off(&self) {
        self.sandbox.call_off_descent();
    }

    fn wake(&self) -> std::result::Result<(), Failure> {
        match wake::wake(&self.sandbox, &Reply::to_nobody()) {
            // Its program may have been faster.
            Ok(_) | Err(Error::Sleep(SleepError::NotAsleep { .. })) => Ok(()),
            Err(error) => Err(failure(error)),
        }
    }

    fn keep_context(&self) {
        let record = self.sandbox.record();
        let workers = record.asleep.map_or(1, |asleep| asleep.processes().len());
        self.daemon.pool.keep_contexts(&self.sandbox.id, (&record.gpu, workers));
    }

    fn let_context_go(&self) {
        self.daemon.pool.let_contexts_go(&self.sandbox.id);
    }

    fn memory(&self) -> Option<Holding> {
        memory::held(&self.daemon, &self.sandbox)
    }

    fn fault(&self) -> Option<String> {
        self.sandbox.live_workers().iter().find_map(|worker| worker.glance()?.fault)
    }

    fn end(&self) {
        // One that has ended already is as it is to be.
        if let Ok(cpu) = self.sandbox.cpu("ended")
            && let Err(error) = end(&self.sandbox, cpu, GRACE)
        {
            log::error!("the instance {:?} was not ended: {error}", self.sandbox.name());
        }
    }

    fn wait_end(&self) -> String {
        let record = self.sandbox.wait_end(None);
        match record.map(|record| (record.state, record.exit_code, record.problem)) {
            Some((_, _, Some(problem))) => format!("ended: {problem}"),
            Some((State::Stopped, ..)) => "was stopped with an image".to_string(),
            Some((_, Some(code), _)) => format!("ended (exit code {code})"),
            _ => "ended".to_string(),
        }
    }

    fn wait_given_back(&self) {
        let began = Instant::now();
        while !self.sandbox.live_workers().is_empty() && began.elapsed() < LEAVES_WITHIN {
            std::thread::sleep(LOOK);
        }
    }

    fn socket(&self, is_v6: bool) -> io::Result<TcpSocket> {
        let network = self.sandbox.network.network().ok_or(io::ErrorKind::NotConnected)?;
        self.dialer.socket(network, is_v6)
    }
}
