//! What an image keeps of it, as plain data.

use std::collections::BTreeMap;

use rekindle_protocol::ipc::Source;
use rekindle_protocol::operation::Id;
use serde::{Deserialize, Serialize};

use super::Ipc;
use crate::client::Client;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct IpcState {
    /// Of the process; none if it has given nothing.
    pub key: Option<u64>,
    /// The last number that memory of it has got.
    pub last: u64,
    pub exports: Vec<ExportState>,
    pub pages: Vec<PageState>,
    pub imports: Vec<ImportState>,
    pub events: Vec<EventState>,
}

/// Memory that the program maps itself and that several processes have, by the serial numbers of its handles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhysicalShared {
    /// Under which numbers others may have it.
    pub exports: BTreeMap<u64, u64>,
    /// Whose it is.
    pub imports: BTreeMap<u64, Source>,
}

impl PhysicalShared {
    pub(crate) fn is_empty(&self) -> bool {
        self.exports.is_empty() && self.imports.is_empty()
    }
}

/// A buffer that others may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExportState {
    pub number: u64,
    pub device: usize,
    pub address: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PageState {
    pub number: u64,
    pub device: usize,
}

/// Memory of another process; of this one, without `source`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ImportState {
    pub address: u64,
    pub device: usize,
    pub bytes: u64,
    pub source: Option<Source>,
    pub opened: BTreeMap<u64, u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EventState {
    pub id: Id,
    pub device: usize,
    pub place: EventLocation,
    pub slot: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum EventLocation {
    /// In the page of this process's with the number.
    Own(u64),
    Other(Source),
}

impl IpcState {
    pub(crate) fn is_empty(&self) -> bool {
        *self == IpcState::default()
    }
}

impl Client {
    /// All that is shared. Others have let go of none of it.
    pub(crate) fn ipc_state(&self) -> IpcState {
        let Ipc { service, next, imports, pages, events, .. } = &self.ipc;
        let exports = self.contexts.iter().enumerate().filter_map(|(device, context)| {
            let buffers = context.as_ref()?.heap.buffers().iter();
            Some(buffers.filter_map(move |(address, buffer)| {
                let number = buffer.export.as_ref()?.number;
                Some(ExportState { number, device, address: *address })
            }))
        });
        let import = |(address, import): (&u64, &super::Import)| ImportState {
            address: *address,
            device: import.device,
            bytes: import.bytes,
            source: import.source.map(|(source, _)| source),
            opened: import.opened.clone(),
        };
        let event = |(id, event): (&Id, &super::SharedEvent)| {
            let own = self.ipc.own_place(event).map(|(number, _)| EventLocation::Own(number));
            let place = own.or_else(|| self.ipc.source_of(event).map(EventLocation::Other))?;
            Some(EventState { id: *id, device: event.page.device, place, slot: event.slot })
        };
        IpcState {
            key: service.as_ref().map(|service| service.key),
            last: *next,
            exports: exports.flatten().collect(),
            pages: pages
                .iter()
                .map(|(number, page)| PageState { number: *number, device: page.device })
                .collect(),
            imports: imports.iter().map(import).collect(),
            events: events.iter().filter_map(event).collect(),
        }
    }
}
