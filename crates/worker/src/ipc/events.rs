//! Events that several processes record and wait for.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use rekindle_cuda::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MAP_FAILED, CUDA_ERROR_OPERATING_SYSTEM,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use rekindle_device::{Result, Stream};
use rekindle_protocol::ipc::{Handle, Kind, Source};
use rekindle_protocol::operation::{Id, IpcEventExport, IpcEventOpen, IpcEventRecord, IpcEventWait, Origin};

use super::page::{PAGE_BYTES, Page, SLOTS, SharedEvent, SharedRecord, make_file};
use super::service::{ForeignMemory, Found, find};
use super::{Export, Ipc, IpcError};
use crate::client::{Client, DISABLE_TIMING, EventObject, INTERPROCESS};

impl Ipc {
    /// Where an event lies: the page's number, and the slot. None for one of another process.
    pub(super) fn own_place(&self, event: &SharedEvent) -> Option<(u64, u64)> {
        let is_it = |page: &Rc<Page>| Rc::ptr_eq(page, &event.page);
        self.pages.iter().find_map(|(number, page)| is_it(page).then_some((*number, event.slot)))
    }

    /// Whose page an event lies in, if it is another process's.
    pub(super) fn source_of(&self, event: &SharedEvent) -> Option<Source> {
        let is_it = |page: &Rc<Page>| Rc::ptr_eq(page, &event.page);
        self.others.iter().find_map(|(source, page)| is_it(page).then_some(*source))
    }
}

impl Client {
    /// Makes room for an event that other processes may have.
    pub(crate) fn share_event(&mut self, device: usize, id: Id) -> Result<()> {
        let mut pages = self.ipc.pages.values().filter(|page| page.device == device);
        let found = pages.find_map(|page| Some((page.clone(), page.take_slot()?)));
        let (page, slot) = match found {
            Some(found) => found,
            None => (self.make_page(device, None, 1..SLOTS)?, 0),
        };
        self.ipc.events.insert(id, SharedEvent { page, slot, is_own: true });
        Ok(())
    }

    /// A page of this process's: a new one, or one that it had, by its number and what was left of it.
    pub(super) fn make_page(
        &mut self,
        device: usize,
        earlier: Option<(u64, Option<&OwnedFd>)>,
        free: impl IntoIterator<Item = u64>,
    ) -> Result<Rc<Page>> {
        let unmade = |error| {
            log::error!("memory for events cannot be made: {error}");
            CUDA_ERROR_OPERATING_SYSTEM
        };
        let service = self.ipc_service()?;
        let (number, left) = earlier.unwrap_or((self.ipc.next + 1, None));
        self.ipc.next = self.ipc.next.max(number);
        let file = left.map_or_else(make_file, OwnedFd::try_clone).map_err(unmade)?;
        let descriptor = file.try_clone().map_err(unmade)?;
        let gpu = self.context(device)?.device.clone();
        let export = service.offer(Export { number, descriptor, bytes: PAGE_BYTES, gpu: None });
        let page = Rc::new(Page::map((device, gpu), &file, free.into_iter(), Some(export))?);
        self.ipc.pages.insert(number, page.clone());
        Ok(page)
    }

    /// The event of this process's is no more.
    pub(crate) fn unshare_event(&mut self, id: Id) {
        let Some(event) = self.ipc.events.remove(&id) else { return };
        event.give_up();
        self.ipc.others.retain(|_, page| Rc::strong_count(page) > 1);
    }

    /// What an event was recorded for last, if it is one of several processes.
    pub(crate) fn shared_record(&self, id: Id) -> Option<SharedRecord> {
        self.ipc.events.get(&id).map(SharedEvent::last)
    }

    pub(crate) fn export_event(&mut self, request: IpcEventExport) -> Result<Vec<u8>> {
        let event = self.ipc.events.get(&request.event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        // One that was opened here is not handed on.
        let (number, offset) = self.ipc.own_place(event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let source = Source { key: self.ipc_service()?.key, number };
        Ok(Handle { kind: Kind::Event, source, offset, bytes: 0 }.encode().to_vec())
    }

    pub(crate) fn open_event(&mut self, request: IpcEventOpen<'_>) -> Result<()> {
        let IpcEventOpen { device, event: id, handle } = request;
        let device = usize::from(device);
        let handle = Handle::decode(handle, Kind::Event).ok_or(CUDA_ERROR_MAP_FAILED)?;
        if !self.events.is_free(id) || handle.offset >= SLOTS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.refuse_own(handle.source)?;
        let page = match self.ipc.others.get(&handle.source) {
            Some(page) => page.clone(),
            None => {
                let Found::Here(ForeignMemory { descriptor: file, bytes: PAGE_BYTES, .. }) =
                    self.find_shared(handle.source)?
                else {
                    return Err(CUDA_ERROR_INVALID_HANDLE);
                };
                self.take_page(device, handle.source, &file)?
            }
        };
        let flags = INTERPROCESS | DISABLE_TIMING;
        let own = self.on(device)?.event_create(DISABLE_TIMING)?;
        let object = EventObject { device, flags, handle: own, recorded: false, restored: None };
        self.events.insert(id, object)?;
        self.ipc.events.insert(id, SharedEvent { page, slot: handle.offset, is_own: false });
        Ok(())
    }

    /// Maps a page of another process.
    pub(super) fn take_page(&mut self, device: usize, source: Source, file: &OwnedFd) -> Result<Rc<Page>> {
        let gpu = self.context(device)?.device.clone();
        let page = Rc::new(Page::map((device, gpu), file, std::iter::empty(), None)?);
        self.ipc.others.insert(source, page.clone());
        Ok(page)
    }

    pub(crate) fn record_shared(&mut self, origin: Origin, request: IpcEventRecord) -> Result<()> {
        let (device, stream) = self.enter_shared(origin, request.device, request.stream)?;
        let event = self.ipc.events.get(&request.event).ok_or(CUDA_ERROR_INVALID_HANDLE)?.clone();
        self.events.get_mut(request.event)?.recorded = true;
        event.record(self.on(device)?, stream)
    }

    pub(crate) fn wait_shared(&mut self, origin: Origin, request: IpcEventWait) -> Result<()> {
        let (device, stream) = self.enter_shared(origin, request.device, request.stream)?;
        let record = self.shared_record(request.event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        record.wait(self.on(device)?, stream)
    }

    /// A graph would wait for, or write, what the event was recorded for when it was captured.
    fn enter_shared(&mut self, origin: Origin, device: u8, stream: Id) -> Result<(usize, Stream)> {
        let (device, stream) = self.enter(origin, device, stream)?;
        match self.is_captured(device, stream)? {
            true => Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            false => Ok((device, stream)),
        }
    }

    /// All events of a device were destroyed.
    pub(super) fn forget_shared_events(&mut self) {
        let gone: Vec<Id> =
            self.ipc.events.keys().filter(|id| self.events.get(**id).is_err()).copied().collect();
        gone.into_iter().for_each(|id| self.unshare_event(id));
    }

    /// Events of processes that have ended become this one's own. All that was recorded is done.
    pub(super) fn own_pages(&mut self, directory: &Path) -> std::result::Result<(), IpcError> {
        for source in self.ipc.others.keys().copied().collect::<Vec<_>>() {
            let found =
                find(directory, source).map_err(|source| IpcError::Unknown { what: "an event", source })?;
            if !matches!(found, Found::Here(_)) {
                self.own_page(source).map_err(IpcError::Events)?;
            }
        }
        Ok(())
    }

    fn own_page(&mut self, source: Source) -> Result<()> {
        let Some(page) = self.ipc.others.remove(&source) else { return Ok(()) };
        let in_it = |event: &SharedEvent| Rc::ptr_eq(&event.page, &page);
        let ids = self.ipc.events.iter().filter(|(_, event)| in_it(event)).map(|(id, _)| *id);
        for id in ids.collect::<Vec<_>>() {
            self.share_event(page.device, id)?;
        }
        Ok(())
    }
}
