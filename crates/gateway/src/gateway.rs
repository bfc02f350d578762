//! All services: one thread that serves their clients.

use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ipnet::IpNet;
use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::workflow::Graph;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::directory::{Directory, Entry, Served};
use crate::listener::{Door, Listener, ListenerOptions};
use crate::maker::Maker;
use crate::memory::{Memory, keep_looking};
use crate::plan::{Plan, Source};
use crate::service::{Service, TenantAccess};
use crate::tenant::{Membership, Tenant, Tenants};
use crate::tls::{self, Tls};
use crate::workflow::Workflow;

/// One for each instance, which waits for its end, and those that do something to one: more than there can be.
const THREADS: usize = 1 << 16;

pub struct Gateway {
    /// The thread, once there is a service.
    runtime: OnceLock<Handle>,
    beginning: Mutex<()>,
    room: Arc<Semaphore>,
    memory: Arc<Memory>,
    tenants: Arc<Tenants>,
    directory: Arc<Directory>,
    /// Who is told of each request.
    access: Option<Access>,
    proxies: Arc<[IpNet]>,
}

impl Gateway {
    /// For so many clients at once; others wait. Instances of all services together have at most so many bytes of each
    /// GPU's memory, if there is a limit.
    pub fn new(room: usize, memory: Option<u64>) -> Gateway {
        let room = Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS)));
        let memory = Arc::new(Memory::new(memory));
        Gateway {
            runtime: OnceLock::new(),
            beginning: Mutex::default(),
            room,
            tenants: Arc::new(Tenants::new(memory.clone())),
            memory,
            directory: Arc::default(),
            access: None,
            proxies: Arc::default(),
        }
    }

    /// Has somebody be told of each request that is through.
    pub fn with_access(self, access: Option<Access>) -> Gateway {
        Gateway { access, ..self }
    }

    /// Has these clients believed what they say of the way that requests came.
    pub fn with_proxies(self, proxies: &[IpNet]) -> Gateway {
        Gateway { proxies: proxies.into(), ..self }
    }

    /// The GPU memory of all services.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// All tenants.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// A service that nobody comes to yet, and that is not known by its name before it is [added](Gateway::add). Names of
    /// its instances are `stem` and a number. A tenant's lets in who shows a token of that.
    pub fn make(
        &self,
        (name, stem): (&str, &str),
        tenant: Option<Arc<Tenant>>,
        plan: Plan,
        source: Option<Source>,
        maker: Arc<dyn Maker>,
    ) -> io::Result<Arc<Service>> {
        let entrance = tenant.map(|tenant| TenantAccess { tenants: self.tenants.clone(), tenant });
        Ok(Service::begin(
            (self.runtime()?, self.memory.clone()),
            (name, stem),
            entrance,
            plan,
            source,
            maker,
        ))
    }

    pub fn add(&self, service: &Arc<Service>, tenant: Option<Membership>) {
        let entry = Entry::new(Served::Service(service.clone()), tenant);
        self.directory.lock().insert(service.name.clone(), entry);
        service.act(|policy, now| policy.tick(now));
    }

    /// A workflow that nobody comes to yet. A tenant's lets in who shows a token of that.
    pub fn add_workflow(
        &self,
        name: &ServiceName,
        tenant: Option<Membership>,
        graph: Graph,
    ) -> Arc<Workflow> {
        let entrance = tenant
            .as_ref()
            .map(|one| TenantAccess { tenants: self.tenants.clone(), tenant: one.tenant.clone() });
        let workflow = Workflow::new(name.clone(), entrance, graph, &self.directory);
        let entry = Entry::new(Served::Workflow(workflow.clone()), tenant);
        self.directory.lock().insert(name.clone(), entry);
        workflow
    }

    /// Has clients come to what is served by a name, in place of where they came before.
    pub fn listen(&self, name: &ServiceName, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = self.begin(name, Door::Port(listener))?;
        let former = self.directory.lock().get_mut(name).and_then(|entry| entry.listener.replace(listener));
        drop(former);
        Ok(())
    }

    /// Has programs of this machine come to it by this socket, beside its port.
    pub fn listen_here(&self, name: &ServiceName, socket: UnixListener) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let listener = self.begin(name, Door::Socket(socket))?;
        let former = self.directory.lock().get_mut(name).and_then(|entry| entry.socket.replace(listener));
        drop(former);
        Ok(())
    }

    fn begin(&self, name: &ServiceName, door: Door) -> io::Result<Listener> {
        let found = self.directory.lock().get(name).map(|entry| (entry.served.clone(), entry.tls.clone()));
        let (served, tls) = found.ok_or(io::ErrorKind::NotFound)?;
        let needs = ListenerOptions {
            room: self.room.clone(),
            tls,
            access: self.access.clone(),
            proxies: self.proxies.clone(),
        };
        Ok(Listener::begin(self.runtime()?, door, served, needs))
    }

    /// Has those who come to a service from now on speak TLS, or not.
    pub fn secure(&self, name: &ServiceName, tls: Option<Arc<Tls>>) -> io::Result<()> {
        if let Some(tls) = &tls {
            self.runtime()?.spawn(tls::keep_looking(Arc::downgrade(tls)));
        }
        let place = self.directory.lock().get(name).map(|entry| entry.tls.clone());
        if let Some(place) = place {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = tls;
        }
        Ok(())
    }

    /// The certificate of a service, if it has one.
    pub fn tls(&self, name: &ServiceName) -> Option<Arc<Tls>> {
        let place = self.directory.lock().get(name)?.tls.clone();
        place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn get(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.directory.service(name)
    }

    pub fn workflow(&self, name: &ServiceName) -> Option<Arc<Workflow>> {
        self.directory.workflow(name)
    }

    /// Of services and workflows.
    pub fn names(&self) -> Vec<ServiceName> {
        self.directory.lock().keys().cloned().collect()
    }

    /// All services, by their names: of one name nobody's first.
    pub fn all(&self) -> Vec<Arc<Service>> {
        let service = |entry: &Entry| match &entry.served {
            Served::Service(service) => Some(service.clone()),
            Served::Workflow(_) => None,
        };
        self.directory.lock().values().filter_map(service).collect()
    }

    /// All workflows, in the same order.
    pub fn workflows(&self) -> Vec<Arc<Workflow>> {
        let workflow = |entry: &Entry| match &entry.served {
            Served::Workflow(workflow) => Some(workflow.clone()),
            Served::Service(_) => None,
        };
        self.directory.lock().values().filter_map(workflow).collect()
    }

    /// Whether clients can come to a service.
    pub fn is_open(&self, name: &ServiceName) -> bool {
        self.directory.lock().get(name).is_some_and(|entry| entry.listener.is_some())
    }

    /// Has nobody come to a service any more.
    pub fn close(&self, name: &ServiceName) {
        let listeners =
            self.directory.lock().get_mut(name).map(|entry| (entry.listener.take(), entry.socket.take()));
        drop(listeners);
    }

    /// Closes the port of a service, and forgets it.
    pub fn remove(&self, name: &ServiceName) {
        let gone = self.directory.lock().remove(name);
        drop(gone);
    }

    fn runtime(&self) -> io::Result<&Handle> {
        let _beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.runtime.get().is_none() {
            let mut builder = Builder::new_current_thread();
            let runtime = builder.enable_io().enable_time().max_blocking_threads(THREADS).build()?;
            let handle = runtime.handle().clone();
            let serve = move || runtime.block_on(pending::<()>());
            std::thread::Builder::new().name("gateway".into()).spawn(serve)?;
            handle.spawn(keep_looking(Arc::downgrade(&self.memory)));
            // Made with it locked: there is one.
            let _ = self.runtime.set(handle);
        }
        self.runtime.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
