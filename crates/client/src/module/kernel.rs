//! Kernels: what `CUfunction` and `CUkernel` are handles of.
//!
//! A module's function belongs to the module's device; a library's kernel to every device, found there when it is first
//! used. The same handle serves as both types, as launches take either.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{FunctionInfo, Parameter};
use rekindle_protocol::operation::{FunctionGet, FunctionSet, Id};

use crate::abi::{Handle, Result};
use crate::arena::{Kind, Object};
use crate::{context, lane};

use super::library::Code as LibraryCode;

/// Devices of a worker.
pub const DEVICES: usize = 8;
const ATTRIBUTES: usize = 16;

pub struct Kernel {
    pub name: CString,
    pub owner: Owner,
    /// The handle of the module or library.
    pub owner_handle: Handle,
    found: [OnceLock<Found>; DEVICES],
}

pub enum Owner {
    Module { id: Id, device: u8 },
    Library(Arc<LibraryCode>),
}

/// A kernel on one device.
pub struct Found {
    pub id: Id,
    pub device: u8,
    pub parameters: Vec<Parameter>,
    pub parameter_bytes: usize,
    attributes: [AtomicI32; ATTRIBUTES],
}

impl Object for Kernel {
    const KIND: Kind = Kind::Kernel;
    fn device(&self) -> Option<u8> {
        match self.owner {
            Owner::Module { device, .. } => Some(device),
            Owner::Library(_) => None,
        }
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Kernel {
    /// Looks a kernel up on `device`, so that a name that is not there fails now.
    pub fn find(owner: Owner, owner_handle: Handle, name: &str, device: u8) -> Result<Kernel> {
        let text = CString::new(name).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let kernel = Kernel { name: text, owner, owner_handle, found: [const { OnceLock::new() }; DEVICES] };
        kernel.on(device)?;
        Ok(kernel)
    }

    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or("")
    }

    /// The kernel on a device.
    pub fn on(&self, device: u8) -> Result<&Found> {
        let place = self.found.get(usize::from(device)).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        if let Some(found) = place.get() {
            return Ok(found);
        }
        let module = match &self.owner {
            Owner::Module { id, .. } => *id,
            Owner::Library(code) => code.on(device)?,
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let info = lane::ask(&FunctionGet { module, id, name: self.name() })?.info;
        Ok(place.get_or_init(|| Found::new(id, device, info)))
    }

    /// The kernel on the device on which it has this number.
    pub fn found(&self, id: Id) -> Option<&Found> {
        self.found.iter().filter_map(OnceLock::get).find(|found| found.id == id)
    }

    pub fn has(&self, id: Id) -> bool {
        self.found(id).is_some()
    }

    /// The kernel where it is launched now: on its module's device, or the current context's.
    pub fn here(&self) -> Result<&Found> {
        match self.owner {
            Owner::Module { device, .. } => self.on(device),
            Owner::Library(_) => self.on(context::device()?),
        }
    }
}

impl Found {
    fn new(id: Id, device: u8, info: FunctionInfo) -> Found {
        let found = Found {
            id,
            device,
            parameter_bytes: info.parameter_bytes(),
            parameters: info.parameters,
            attributes: Default::default(),
        };
        found.store(&info.attributes);
        found
    }

    fn store(&self, attributes: &[i32]) {
        for (place, value) in self.attributes.iter().zip(attributes) {
            place.store(*value, Ordering::Relaxed);
        }
    }

    pub fn attribute(&self, attribute: i32) -> Result<i32> {
        let place = usize::try_from(attribute).ok().and_then(|index| self.attributes.get(index));
        Ok(place.ok_or(CUDA_ERROR_INVALID_VALUE)?.load(Ordering::Relaxed))
    }

    pub fn set_attribute(&self, attribute: i32, value: i32) -> Result<()> {
        self.attribute(attribute)?;
        let info = lane::ask(&FunctionSet { id: self.id, attribute, value })?;
        self.store(&info.attributes);
        Ok(())
    }
}
