//! How a process that is brought back has again what it shares.
//!
//! ```text
//!   of its own   placed ── contents loaded ── others are answered ┐
//!   of others    addresses taken ─────────────────────────────────┴ asked for ── mapped ─▶ its requests are done
//! ```
//!
//! Each answers the others once its own contents are there, and asks them after that; so two that have memory of each other
//! both come to their end, and nobody meets memory whose contents are not there yet.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};
use rekindle_device::Result;
use rekindle_protocol::ipc::Source;

use super::memory::Import;
use super::page::{PAGE_BYTES, SLOTS, SharedEvent};
use super::physical::PhysicalArrival;
use super::saved::{EventLocation, EventState, IpcState};
use super::service::{ForeignMemory, Found, Service, find};
use super::{Export, Ipc, IpcError, PhysicalShared};
use crate::client::Client;
use crate::image::LeftMemory;

/// How often it is looked whether another process is back.
const LOOK: Duration = Duration::from_millis(1);

/// What is still to come.
#[derive(Default)]
pub(crate) struct Arrivals {
    directory: PathBuf,
    service: Option<Arc<Service>>,
    imports: Vec<(u64, Source, Import)>,
    events: Vec<(Source, EventState)>,
    physical: Vec<(Source, PhysicalArrival)>,
    /// What was left of it, and need not be asked for.
    left: Arrived,
}

/// What has come: descriptors, and how many bytes each is of.
pub(crate) type Arrived = HashMap<Source, (OwnedFd, u64)>;

fn left_name(source: Source) -> String {
    format!("shared-{:016x}-{}", source.key, source.number)
}

impl Arrivals {
    /// Answers the others from now on, and waits for what they have.
    pub(crate) fn fetch(&self, stop: &AtomicBool) -> std::result::Result<Arrived, IpcError> {
        if let Some(service) = &self.service {
            service.begin().map_err(IpcError::Service)?;
        }
        let imports = self.imports.iter().map(|(_, source, _)| *source);
        let events = self.events.iter().map(|(source, _)| *source);
        let physical = self.physical.iter().map(|(source, _)| *source);
        let wanted: BTreeSet<Source> = imports.chain(events).chain(physical).collect();
        wanted
            .into_iter()
            .filter(|source| !self.left.contains_key(source))
            .map(|source| Ok((source, self.wait_for(source, stop)?)))
            .collect()
    }

    fn wait_for(&self, source: Source, stop: &AtomicBool) -> std::result::Result<(OwnedFd, u64), IpcError> {
        while !stop.load(Ordering::Relaxed) {
            match find(&self.directory, source) {
                Ok(Found::Here(ForeignMemory { descriptor, bytes, .. })) => return Ok((descriptor, bytes)),
                // A worker that was killed is replaced.
                Ok(Found::Nobody | Found::NotYet) => std::thread::sleep(LOOK),
                Ok(Found::Gone) => return Err(IpcError::Gone),
                Err(error) => return Err(IpcError::Fetch(error)),
            }
        }
        Err(IpcError::GivenUp)
    }
}

impl Client {
    /// Takes what a state has of this process's own, and the addresses of what is to come of others.
    pub(crate) fn prepare_shared(&mut self, state: IpcState, left: &LeftMemory) -> Result<Arrivals> {
        let IpcState { key, last, exports, pages, imports, events } = state;
        let directory = self.run_directory().to_path_buf();
        let service = key.map(|key| self.new_service(key)).transpose()?;
        self.ipc = Ipc { service: service.clone(), next: last, ..Ipc::default() };
        let mut arrivals = Arrivals { directory, service: service.clone(), ..Arrivals::default() };
        for row in exports {
            let service = service.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let way = |descriptor, bytes| {
                service.offer(Export { number: row.number, descriptor, bytes, gpu: None })
            };
            self.bind(row.device)?;
            self.heap(row.device)?.offer(row.address, way)?;
        }
        for row in imports {
            let import = |memory| Import {
                device: row.device,
                bytes: row.bytes,
                source: memory,
                opened: row.opened.clone(),
            };
            match row.source {
                None => drop(self.ipc.imports.insert(row.address, import(None))),
                Some(source) => {
                    if !self.heap(row.device)?.take_addresses_at(row.address, row.bytes) {
                        return Err(CUDA_ERROR_INVALID_VALUE);
                    }
                    arrivals.imports.push((row.address, source, import(None)));
                }
            }
        }
        let own = |number| key.map(|key| Source { key, number });
        for row in pages {
            let file = own(row.number).and_then(|source| left.get(&left_name(source)));
            let own = events.iter().filter(|event| event.place == EventLocation::Own(row.number));
            let used: HashSet<u64> = own.map(|event| event.slot).collect();
            self.make_page(
                row.device,
                Some((row.number, file)),
                (0..SLOTS).filter(|slot| !used.contains(slot)),
            )?;
        }
        for row in events {
            if row.slot >= SLOTS {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            match row.place {
                EventLocation::Other(source) => arrivals.events.push((source, row)),
                EventLocation::Own(number) => {
                    let page = self.ipc.pages.get(&number).ok_or(CUDA_ERROR_INVALID_VALUE)?.clone();
                    self.ipc.events.insert(row.id, SharedEvent { page, slot: row.slot, is_own: true });
                }
            }
        }
        Ok(arrivals)
    }

    /// As [`Client::prepare_shared`], of memory that the program maps itself. `rows` are the handles that are others'.
    pub(crate) fn prepare_physical(
        &mut self,
        arrivals: &mut Arrivals,
        shared: PhysicalShared,
        rows: Vec<PhysicalArrival>,
    ) -> Result<()> {
        for (serial, number) in shared.exports {
            let physical = *self.virtual_memory.physical.get(&serial).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            self.offer_physical(serial, physical, number)?;
        }
        for row in rows {
            let source = *shared.imports.get(&row.serial).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            arrivals.physical.push((source, row));
        }
        Ok(())
    }

    /// Takes what was left of what others have: nobody is asked for that.
    pub(crate) fn take_left(&self, arrivals: &mut Arrivals, left: &LeftMemory) -> Result<()> {
        let imports = arrivals.imports.iter().map(|(_, source, import)| (*source, import.bytes));
        let pages = arrivals.events.iter().map(|(source, _)| (*source, PAGE_BYTES));
        let physical = arrivals.physical.iter().map(|(source, row)| (*source, row.physical.bytes));
        for (source, bytes) in imports.chain(pages).chain(physical).collect::<Vec<_>>() {
            if let Some(memory) = left.get(&left_name(source)) {
                let memory = memory.try_clone().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
                arrivals.left.insert(source, (memory, bytes));
            }
        }
        Ok(())
    }

    /// Leaves behind what the program shares, but for its own buffers: whoever is brought back first goes on with it.
    pub(crate) fn leave_shared(&mut self, left: &mut LeftMemory) -> Result<()> {
        let sources = self.ipc.imports.values().filter_map(|import| Some((import.device, import.source?)));
        let physical = self.ipc.physical.imports.iter().filter_map(|(serial, source)| {
            let physical = self.virtual_memory.physical.get(serial)?;
            Some((physical.device, (*source, physical.memory)))
        });
        for (device, (source, memory)) in sources.chain(physical).collect::<Vec<_>>() {
            left.insert(left_name(source), self.on(device)?.memory_export(memory)?);
        }
        let key = self.ipc.service.as_ref().map(|service| service.key);
        let own = self
            .ipc
            .pages
            .iter()
            .filter_map(|(number, page)| Some((Source { key: key?, number: *number }, page)));
        for (source, page) in own.chain(self.ipc.others.iter().map(|(source, page)| (*source, page))) {
            left.insert(left_name(source), page.file()?);
        }
        Ok(())
    }

    /// Maps what has come.
    pub(crate) fn take_arrived(&mut self, arrivals: &Arrivals, arrived: &Arrived) -> Result<()> {
        for (base, source, import) in &arrivals.imports {
            let (descriptor, bytes) =
                arrivals.left.get(source).or(arrived.get(source)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            if *bytes != import.bytes {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            self.place_import(*base, import, *source, descriptor)?;
        }
        for (source, row) in &arrivals.physical {
            let (descriptor, bytes) =
                arrivals.left.get(source).or(arrived.get(source)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            if *bytes != row.physical.bytes {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            self.place_physical(row, *source, descriptor)?;
        }
        for (source, event) in &arrivals.events {
            let (file, _) =
                arrivals.left.get(source).or(arrived.get(source)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            let page = match self.ipc.others.get(source) {
                Some(page) => page.clone(),
                None => self.take_page(event.device, *source, file)?,
            };
            self.ipc.events.insert(event.id, SharedEvent { page, slot: event.slot, is_own: false });
        }
        Ok(())
    }
}
