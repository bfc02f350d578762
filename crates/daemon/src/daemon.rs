//! What the daemon has.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ipnet::IpNet;
use nix::sys::resource::{Resource, getrlimit};
use rekindle_driver::Helper;
use rekindle_gateway::{Access, Gateway, HeaderMap, Record, Span, Watch};
use rekindle_protocol::service_name::ServiceName;
use rekindle_sandbox::Criu;
use rekindle_store::Store;

use crate::access_log::AccessLog;
use crate::claims::Claims;
use crate::data::Data;
use crate::error::{Error, Result};
use crate::host::breakpoints::BreakpointEvent;
use crate::host::gpu_usage::GpuUsage;
use crate::host::lock::Lock;
use crate::host::paths::Paths;
use crate::network::Publisher;
use crate::peers::Peers;
use crate::pool::WorkerPool;
use crate::sandboxes::Sandbox;
use crate::sandboxes::registry::Registry;
use crate::spans::Spans;

/// A client of a service takes a descriptor, and its request another; all of them at most half of what the process may
/// have.
const SHARE: u64 = 4;

/// What all services have in common.
#[derive(Clone, Debug, Default)]
pub struct ServiceSettings {
    /// Bytes of each GPU's memory that their instances have together.
    pub memory: Option<u64>,
    /// Where a line is written for each request: a file, or `-`.
    pub access_log: Option<PathBuf>,
    /// The collector that is told of requests as spans of traces.
    pub otlp_endpoint: Option<String>,
    /// The clients whose word is taken on the way that requests came.
    pub proxies: Vec<IpNet>,
}

/// Who is told of requests to services.
#[derive(Clone, Default)]
pub struct Watchers {
    pub access_log: Option<Arc<AccessLog>>,
    pub spans: Option<Arc<Spans>>,
}

impl Watchers {
    /// None if nobody is.
    pub fn access(self) -> Option<Access> {
        (self.access_log.is_some() || self.spans.is_some()).then(|| -> Access { Arc::new(self) })
    }
}

impl Watch for Watchers {
    fn comes(&self, headers: &mut HeaderMap) -> Option<Span> {
        self.spans.as_ref()?.comes(headers)
    }

    fn through(&self, record: Record) {
        if let Some(spans) = self.spans.as_ref().filter(|_| record.span.is_some()) {
            spans.note(record.clone());
        }
        if let Some(log) = &self.access_log {
            log.note(record);
        }
    }
}

pub struct Daemon {
    pub paths: Paths,
    /// `rekindled`, as workers and sandboxes are started from it.
    pub program: PathBuf,
    pub store: Store,
    pub sandboxes: Arc<Registry>,
    /// What the driver itself takes and brings back.
    pub driver: Helper,
    /// Processes that are being checkpointed.
    pub claims: Claims<i32>,
    /// Names of images in the making.
    pub making: Claims<String>,
    pub pool: Arc<WorkerPool>,
    pub publisher: Arc<Publisher>,
    pub data: Arc<Data>,
    /// Other nodes.
    pub peers: Peers,
    /// Sandboxes, by their ids, that are being moved to other nodes.
    pub leaving: Claims<String>,
    /// The one that a worker waits for, to wake its GPU half.
    wakes: Mutex<Weak<Sandbox>>,
    /// The services.
    pub gateway: Gateway,
    /// What is told of their requests.
    pub access_log: Option<Arc<AccessLog>>,
    pub spans: Option<Arc<Spans>>,
    pub gpu_usage: GpuUsage,
    /// Names of services that are being changed.
    pub serving: Claims<ServiceName>,
    /// Where the page is, or why it is not, if there is to be one.
    page: OnceLock<std::result::Result<SocketAddr, String>>,
    /// Held while tenants are changed.
    pub tenants: Mutex<()>,
    criu: OnceLock<Criu>,
    _breakpoints: Option<BreakpointEvent>,
    _lock: Lock,
}

impl Daemon {
    pub fn new(
        paths: Paths,
        program: PathBuf,
        store: Store,
        driver: Helper,
        pool: Arc<WorkerPool>,
        (data, peers): (Arc<Data>, Peers),
        (gateway, watchers, lock): (Gateway, Watchers, Lock),
    ) -> Result<Daemon> {
        let Watchers { access_log, spans } = watchers;
        let publisher = Publisher::new(paths.publish_wait);
        Ok(Daemon {
            peers,
            leaving: Claims::default(),
            paths,
            driver,
            program,
            store,
            sandboxes: Arc::default(),
            claims: Claims::default(),
            making: Claims::default(),
            pool,
            publisher,
            data,
            wakes: Mutex::default(),
            gpu_usage: GpuUsage::default(),
            gateway,
            access_log,
            spans,
            serving: Claims::default(),
            page: OnceLock::new(),
            tenants: Mutex::default(),
            criu: OnceLock::new(),
            _breakpoints: BreakpointEvent::keep(),
            _lock: lock,
        })
    }

    /// Has a worker wait for what of this sandbox lies in this image, and for no other's any more.
    pub fn start_waker(&self, sandbox: &Arc<Sandbox>, image: &Path) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = wakes.upgrade() {
            before.end_waker();
        }
        *wakes = Arc::downgrade(sandbox);
        sandbox.start_waker(image);
    }

    pub fn page(&self) -> Option<&std::result::Result<SocketAddr, String>> {
        self.page.get()
    }

    /// The page is there from now on, or is not to be.
    pub fn note_page(&self, opened: std::result::Result<SocketAddr, String>) {
        let _ = self.page.set(opened);
    }

    /// The CRIU of this machine. Looked for until one is found, so that setting one up needs no new daemon.
    pub fn criu(&self) -> Result<&Criu> {
        if self.criu.get().is_none() {
            let _ = self.criu.set(Criu::find(&[])?);
        }
        self.criu.get().ok_or_else(|| Error::system("find CRIU", std::io::ErrorKind::NotFound))
    }
}

/// How many clients services have together.
pub fn room() -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(descriptors / SHARE).unwrap_or(usize::MAX).max(1)
}
