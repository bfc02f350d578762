//! All services: one thread that serves their clients.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;

use crate::listener::Listener;
use crate::maker::Maker;
use crate::plan::{Plan, Source};
use crate::service::Service;

/// One for each instance, which waits for its end, and those that do something to one: more than there can be.
const THREADS: usize = 1 << 16;

pub struct Gateway {
    /// The thread, once there is a service.
    runtime: OnceLock<Handle>,
    room: Arc<Semaphore>,
    services: Mutex<BTreeMap<String, Entry>>,
}

struct Entry {
    service: Arc<Service>,
    listener: Option<Listener>,
}

impl Gateway {
    /// For so many clients at once; others wait.
    pub fn new(room: usize) -> Gateway {
        let room = Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS)));
        Gateway { runtime: OnceLock::new(), room, services: Mutex::default() }
    }

    /// A service that nobody comes to yet, and that is not known by its name before it is [added](Gateway::add).
    pub fn make(
        &self,
        name: &str,
        plan: Plan,
        source: Option<Source>,
        maker: Arc<dyn Maker>,
    ) -> io::Result<Arc<Service>> {
        Ok(Service::begin(self.runtime()?, name, plan, source, maker))
    }

    pub fn add(&self, service: &Arc<Service>) {
        let entry = Entry { service: service.clone(), listener: None };
        self.lock().insert(service.name.clone(), entry);
        service.act(|policy, now| policy.tick(now));
    }

    /// Has clients come to a service, in place of where they came before.
    pub fn listen(&self, service: &Arc<Service>, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = Listener::begin(self.runtime()?, listener, service.clone(), self.room.clone());
        let former = self.lock().get_mut(&service.name).and_then(|entry| entry.listener.replace(listener));
        drop(former);
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<Arc<Service>> {
        self.lock().get(name).map(|entry| entry.service.clone())
    }

    /// All, by their names.
    pub fn all(&self) -> Vec<Arc<Service>> {
        self.lock().values().map(|entry| entry.service.clone()).collect()
    }

    /// Whether clients can come to a service.
    pub fn is_open(&self, name: &str) -> bool {
        self.lock().get(name).is_some_and(|entry| entry.listener.is_some())
    }

    /// Has nobody come to a service any more.
    pub fn close(&self, name: &str) {
        let listener = self.lock().get_mut(name).and_then(|entry| entry.listener.take());
        drop(listener);
    }

    /// Closes the port of a service, and forgets it.
    pub fn remove(&self, name: &str) {
        let gone = self.lock().remove(name);
        drop(gone);
    }

    fn runtime(&self) -> io::Result<&Handle> {
        let _services = self.lock();
        if self.runtime.get().is_none() {
            let mut builder = Builder::new_current_thread();
            let runtime = builder.enable_io().enable_time().max_blocking_threads(THREADS).build()?;
            let handle = runtime.handle().clone();
            let serve = move || runtime.block_on(pending::<()>());
            std::thread::Builder::new().name("gateway".into()).spawn(serve)?;
            // Made with the services locked: there is one.
            let _ = self.runtime.set(handle);
        }
        self.runtime.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
