//! Memory that the program makes and maps itself (`cuMemCreate`), in several of its processes.
//!
//! Whoever imports a handle has a handle of its own of the same memory, which it maps where it likes. The contents are the
//! exporter's in an image; the importer's handle and mappings are made again once the exporter has them.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Access, Result};
use rekindle_protocol::ipc::{Handle, Kind, Source};
use rekindle_protocol::operation::{PhysicalExport, PhysicalImport};

use super::service::{ForeignMemory, Found, find};
use super::{Export, IpcError, PhysicalShared};
use crate::client::Client;
use crate::memory::Physical;

/// What is to be mapped again.
pub(crate) struct PhysicalArrival {
    pub serial: u64,
    pub physical: Physical,
    /// Address, bytes, protection.
    pub mappings: Vec<(u64, u64, Access)>,
}

impl Client {
    pub(crate) fn export_physical(&mut self, request: PhysicalExport) -> Result<Vec<u8>> {
        let serial = self.virtual_memory.serial(request.id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let physical = *self.virtual_memory.physical.get(&serial).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        // What is another's is handed on under its name.
        let source = match self.ipc.physical.imports.get(&serial) {
            Some(source) => *source,
            None => {
                let key = self.ipc_service()?.key;
                let known = self.ipc.physical.exports.get(&serial).map(|export| export.number);
                let number = known.unwrap_or(self.ipc.next + 1);
                if known.is_none() {
                    self.offer_physical(serial, physical, number)?;
                    self.ipc.next = number;
                }
                Source { key, number }
            }
        };
        Ok(Handle { kind: Kind::Physical, source, offset: 0, bytes: physical.bytes }.encode().to_vec())
    }

    /// Others may have this memory from now on.
    pub(super) fn offer_physical(&mut self, serial: u64, physical: Physical, number: u64) -> Result<()> {
        let descriptor = self.on(physical.device)?.memory_export(physical.memory)?;
        let gpu = self.gpus.info(physical.device).map(|info| info.uuid);
        let export = Export { number, descriptor, bytes: physical.bytes, gpu };
        let service = self.ipc.service.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let export = service.offer(export);
        self.ipc.physical.exports.insert(serial, export);
        Ok(())
    }

    /// The device on which it lies, and its bytes.
    pub(crate) fn import_physical(&mut self, request: PhysicalImport<'_>) -> Result<(u8, u64)> {
        let handle = Handle::decode(request.handle, Kind::Physical).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.refuse_own(handle.source)?;
        let Found::Here(ForeignMemory { descriptor, bytes, gpu: Some(gpu) }) =
            self.find_shared(handle.source)?
        else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let infos = self.gpus.infos();
        let device = infos.iter().position(|info| info.uuid == gpu).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        self.open(device)?;
        let memory = self.on(device)?.memory_import(descriptor.as_fd(), bytes)?;
        let physical = Physical { device, bytes, memory, id: Some(request.id), mappings: 0 };
        let serial = self.virtual_memory.add(physical, None).inspect_err(|_| {
            let _ = self.on(device).and_then(|device| device.memory_release(memory));
        })?;
        self.ipc.physical.imports.insert(serial, handle.source);
        Ok((device as u8, bytes))
    }

    /// Forgets what the program has let go of.
    pub(crate) fn sweep_physical(&mut self) {
        let known = &self.virtual_memory.physical;
        self.ipc.physical.exports.retain(|serial, _| known.contains_key(serial));
        self.ipc.physical.imports.retain(|serial, _| known.contains_key(serial));
    }

    /// Whether its contents are another process's to save.
    pub(crate) fn is_of_others(&self, serial: u64) -> bool {
        self.ipc.physical.imports.contains_key(&serial)
    }

    /// What others have let go of is this process's own from now on.
    pub(super) fn own_physical(&mut self) -> std::result::Result<(), IpcError> {
        let directory = self.run_directory().to_path_buf();
        for (serial, source) in self.ipc.physical.imports.clone() {
            let found =
                find(&directory, source).map_err(|source| IpcError::Unknown { what: "a memory", source })?;
            if !matches!(found, Found::Here(_)) {
                self.ipc.physical.imports.remove(&serial);
            }
        }
        Ok(())
    }

    pub(crate) fn physical_shared(&self) -> PhysicalShared {
        let PhysicalSharing { exports, imports } = &self.ipc.physical;
        PhysicalShared {
            exports: exports.iter().map(|(serial, export)| (*serial, export.number)).collect(),
            imports: imports.clone(),
        }
    }

    /// Maps what has come.
    pub(super) fn place_physical(
        &mut self,
        arrival: &PhysicalArrival,
        source: Source,
        descriptor: &impl AsFd,
    ) -> Result<()> {
        let PhysicalArrival { serial, physical, mappings } = arrival;
        let memory = self.on(physical.device)?.memory_import(descriptor.as_fd(), physical.bytes)?;
        self.virtual_memory.add(Physical { memory, ..*physical }, Some(*serial))?;
        self.ipc.physical.imports.insert(*serial, source);
        mappings
            .iter()
            .try_for_each(|(address, bytes, access)| self.map_at(*address, *bytes, *serial, *access))
    }
}

/// Memory of this kind that several processes have, by the serial numbers of its handles here.
#[derive(Default)]
pub(super) struct PhysicalSharing {
    pub exports: BTreeMap<u64, Arc<Export>>,
    /// Whose it is.
    pub imports: BTreeMap<u64, Source>,
}
