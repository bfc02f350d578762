//! CUDA IPC: memory and events of one process that others of its program have too.
//!
//! ```text
//!   exporter   IpcMemoryExport ─▶ a descriptor of the buffer's memory, under a number
//!   importer   IpcMemoryOpen ── number ─▶ exporter's worker ── descriptor ─▶ mapped
//! ```
//!
//! A worker whose program has given a handle listens in the run directory ([`service`]), beside its dispatch thread: whoever
//! asks is answered while the program stands still, too. The memory is mapped, never copied. What a process has given keeps
//! its number, and the process its key, in an image; so handles that lie in the program's memory stay good, and who opened
//! one finds the memory again.
//!
//! An image has the contents once, from the process that allocated them. A process whose memory's owner has let go of it, or
//! has ended, gets a copy of its own when it is saved.
//!
//! Memory of `cuMemCreate` is shared in the same way ([`physical`]), and what pools gave as other buffers are.
//!
//! An event of several processes is a pair of counters in host memory that all of their GPUs write and wait for
//! ([`page`]).

mod arrivals;
mod error;
mod events;
mod memory;
mod page;
mod physical;
mod saved;
mod service;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use rekindle_protocol::ipc::Source;
use rekindle_protocol::operation::Id;

pub(crate) use arrivals::{Arrivals, Arrived};
pub(crate) use error::IpcError;
use memory::Import;
pub(crate) use page::SharedRecord;
use page::{Page, SharedEvent};
pub(crate) use physical::PhysicalArrival;
use physical::PhysicalSharing;
pub(crate) use saved::{IpcState, PhysicalShared};
pub(crate) use service::Export;
use service::Service;

/// What one program shares with other processes.
#[derive(Default)]
pub(crate) struct Ipc {
    /// Once it has given a handle.
    service: Option<Arc<Service>>,
    /// The number that the next memory gets.
    next: u64,
    /// Memory of others, by where it is mapped.
    imports: BTreeMap<u64, Import>,
    /// Pages with events of its own, by their numbers.
    pages: BTreeMap<u64, Rc<Page>>,
    /// Pages of others, as long as an event in them is open.
    others: HashMap<Source, Rc<Page>>,
    events: HashMap<Id, SharedEvent>,
    /// Memory that is mapped by the program itself.
    physical: PhysicalSharing,
}

impl Ipc {
    /// Whether work of another process may be under way on memory of this one, or the other way round.
    pub(crate) fn is_used(&self) -> bool {
        let has_physical = !self.physical.imports.is_empty();
        self.service.is_some() || !self.imports.is_empty() || !self.others.is_empty() || has_physical
    }

    /// The program goes on with this worker: others find it, though another one was to take its place.
    pub(crate) fn be_found(&self) {
        if let Some(Err(error)) = self.service.as_ref().map(|service| service.take_name_back()) {
            log::error!("other processes of the program do not find what it has given handles of: {error}");
        }
    }

    /// Others are not answered any more: the program has ended.
    pub(crate) fn stop(&mut self) {
        self.service = None;
    }
}
