//! Memory of other processes, mapped.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rekindle_cuda::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CuResult,
};
use rekindle_device::{Memory, Result};
use rekindle_protocol::ipc::{Handle, Kind, Source};
use rekindle_protocol::operation::{Answer, IpcMemoryClose, IpcMemoryExport, IpcMemoryOpen, Origin};

use super::Export;
use super::IpcError;
use super::service::{ForeignMemory, Found, Service, find};
use crate::client::Client;

/// Memory of another process.
#[derive(Clone, Debug)]
pub(super) struct Import {
    pub device: usize,
    pub bytes: u64,
    /// None for what has become a buffer of this process, since its owner let go of it.
    pub source: Option<(Source, Memory)>,
    /// Allocations that are open, by their offsets, and how often.
    pub opened: BTreeMap<u64, u32>,
}

impl Client {
    /// Where others ask for memory of this process.
    pub(super) fn ipc_service(&mut self) -> Result<Arc<Service>> {
        if let Some(service) = &self.ipc.service {
            return Ok(service.clone());
        }
        // From now on others can look whether transfers are done.
        self.finish_assumed()?;
        let mut key = [0; 8];
        getrandom(&mut key)?;
        let service = self.new_service(u64::from_ne_bytes(key))?;
        service.begin().map_err(unserved)?;
        self.ipc.service = Some(service.clone());
        Ok(service)
    }

    pub(super) fn new_service(&self, key: u64) -> Result<Arc<Service>> {
        Service::new(self.run_directory(), key).map(Arc::new).map_err(unserved)
    }

    pub(crate) fn export_memory(&mut self, request: IpcMemoryExport) -> Result<Vec<u8>> {
        let IpcMemoryExport { device, address } = request;
        let device = usize::from(device);
        self.bind(device)?;
        let (base, bytes) = self.heap(device)?.range(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let service = self.ipc_service()?;
        let number = self.ipc.next + 1;
        let offer = |descriptor, bytes| service.offer(Export { number, descriptor, bytes, gpu: None });
        let (start, export) = self.heap(device)?.offer(base, offer)?;
        self.ipc.next = self.ipc.next.max(export.number);
        let source = Source { key: service.key, number: export.number };
        let handle = Handle { kind: Kind::Memory, source, offset: base - start, bytes };
        Ok(handle.encode().to_vec())
    }

    pub(crate) fn open_memory(&mut self, request: IpcMemoryOpen<'_>) -> Result<(u64, u64)> {
        let IpcMemoryOpen { device, handle } = request;
        let device = usize::from(device);
        let handle = Handle::decode(handle, Kind::Memory).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let Handle { source, offset, bytes, .. } = handle;
        self.bind(device)?;
        self.refuse_own(source)?;
        let is_it = |import: &Import| {
            import.device == device && import.source.is_some_and(|(found, _)| found == source)
        };
        let open = self.ipc.imports.iter_mut().find(|(_, import)| is_it(import));
        let (base, import) = match open {
            Some((base, import)) => (*base, import),
            None => {
                let (base, import) = self.map_import(device, source)?;
                (base, self.ipc.imports.entry(base).or_insert(import))
            }
        };
        if offset.checked_add(bytes).is_none_or(|end| end > import.bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        *import.opened.entry(offset).or_default() += 1;
        Ok((base + offset, bytes))
    }

    /// A process does not open what it has itself.
    pub(super) fn refuse_own(&self, source: Source) -> Result<()> {
        match &self.ipc.service {
            Some(service) if service.key == source.key => Err(CUDA_ERROR_INVALID_CONTEXT),
            _ => Ok(()),
        }
    }

    /// What another process of the program has, once that has its contents itself.
    pub(super) fn find_shared(&self, source: Source) -> Result<Found> {
        loop {
            match find(self.run_directory(), source) {
                Ok(Found::NotYet) => {}
                Ok(found) => return Ok(found),
                Err(error) => {
                    log::error!("memory of another process cannot be had: {error}");
                    return Err(CUDA_ERROR_OPERATING_SYSTEM);
                }
            }
        }
    }

    fn map_import(&mut self, device: usize, source: Source) -> Result<(u64, Import)> {
        let Found::Here(ForeignMemory { descriptor, bytes, .. }) = self.find_shared(source)? else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        self.bind(device)?;
        let (address, memory) = self.heap(device)?.map_other(None, bytes, descriptor.as_fd())?;
        Ok((address, Import { device, bytes, source: Some((source, memory)), opened: BTreeMap::new() }))
    }

    /// Answers when no work is under way that could use it.
    pub(crate) fn close_memory(&mut self, origin: Origin, request: IpcMemoryClose) -> Answer<bool> {
        let IpcMemoryClose { device, address, all } = request;
        let found = self.ipc.imports.range_mut(..=address).next_back();
        let Some((&base, import)) =
            found.filter(|(base, import)| import.opened.contains_key(&(address - **base)))
        else {
            return Answer::Now(Err(CUDA_ERROR_INVALID_VALUE));
        };
        let opens = import.opened.entry(address - base).or_default();
        *opens = if all { 0 } else { *opens - 1 };
        if *opens > 0 {
            return Answer::Now(Ok(false));
        }
        import.opened.remove(&(address - base));
        if !import.opened.is_empty() {
            return Answer::Now(Ok(true));
        }
        self.when_idle(origin, device.into(), move |client| {
            // It may have been opened anew meanwhile, by another thread.
            if client.ipc.imports.get(&base).is_some_and(|import| import.opened.is_empty()) {
                client.unmap_import(base)?;
            }
            Ok(true)
        })
    }

    fn unmap_import(&mut self, base: u64) -> Result<()> {
        let Some(Import { device, bytes, source, .. }) = self.ipc.imports.remove(&base) else {
            return Ok(());
        };
        self.bind(device)?;
        let heap = self.heap(device)?;
        match source {
            Some((_, memory)) => heap.unmap_other(base, bytes, memory),
            None => heap.retire(base).and_then(|_| heap.release(base)),
        }
    }

    /// Lets go of all that is shared on a device: its memory is given back.
    pub(crate) fn forget_shared(&mut self, device: usize) -> Result<()> {
        let of_device = |(base, import): (&u64, &Import)| (import.device == device).then_some(*base);
        let bases: Vec<u64> = self.ipc.imports.iter().filter_map(of_device).collect();
        bases.into_iter().try_for_each(|base| self.unmap_import(base))?;
        self.sweep_physical();
        self.forget_shared_events();
        Ok(())
    }

    /// The allocation of another process that holds an address: where it starts, its bytes, and the device.
    pub(crate) fn shared_range(&self, address: u64) -> Option<(u64, u64, u8)> {
        let (base, import) = self.ipc.imports.range(..=address).next_back()?;
        (address - base < import.bytes).then_some((*base, import.bytes, import.device as u8))
    }

    /// Maps what has come of an import where it was before a restore.
    pub(super) fn place_import(
        &mut self,
        base: u64,
        import: &Import,
        source: Source,
        descriptor: &impl AsFd,
    ) -> Result<()> {
        self.bind(import.device)?;
        let heap = self.heap(import.device)?;
        let (_, memory) = heap.map_other(Some(base), import.bytes, descriptor.as_fd())?;
        self.ipc.imports.insert(base, Import { source: Some((source, memory)), ..import.clone() });
        Ok(())
    }

    /// What others have let go of becomes this process's own. The device is idle.
    pub(crate) fn own_orphans(&mut self) -> std::result::Result<(), IpcError> {
        let directory = self.run_directory().to_path_buf();
        let sources = self.ipc.imports.iter().filter_map(|(base, import)| Some((*base, import.source?.0)));
        let sources: Vec<(u64, Source)> = sources.collect();
        for (base, source) in sources {
            let found =
                find(&directory, source).map_err(|source| IpcError::Unknown { what: "a memory", source })?;
            if !matches!(found, Found::Here(_)) {
                self.own_import(base).map_err(IpcError::NoRoom)?;
            }
        }
        self.own_physical()?;
        self.own_pages(&directory)
    }

    fn own_import(&mut self, base: u64) -> Result<()> {
        let Some(import) = self.ipc.imports.get(&base).cloned() else { return Ok(()) };
        let Some((_, memory)) = import.source else { return Ok(()) };
        self.with_memory(import.device, |client| {
            client.bind(import.device)?;
            client.heap(import.device)?.adopt(base, import.bytes, memory)
        })?;
        if let Some(import) = self.ipc.imports.get_mut(&base) {
            import.source = None;
        }
        Ok(())
    }
}

fn unserved(error: std::io::Error) -> CuResult {
    log::error!("other processes cannot be given memory: {error}");
    CUDA_ERROR_OPERATING_SYSTEM
}

fn getrandom(bytes: &mut [u8]) -> Result<()> {
    // SAFETY: writes into a valid slice, no more than it has room for.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if filled == bytes.len() as isize { Ok(()) } else { Err(CUDA_ERROR_OPERATING_SYSTEM) }
}
