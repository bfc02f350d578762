//! Arrays, and the textures and surfaces by which kernels use them.
//!
//! Kernels get a texture's or surface's number among their arguments, where nobody can tell it from another number. So the
//! program has the device's own, and whoever makes such an object again sees to it that it gets the same
//! ([`numbers`](super::numbers)).

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE};
use rekindle_device::{Array, ArrayCopy, ArrayDescription, CopyEnd, Device, Result, TextureResource, View};
use rekindle_protocol::operation::{
    Answer, ArrayCreate, ArrayDestroy, CopyArray, Id, Origin, ViewCreate, ViewDestroy,
};

use super::{Client, Step};

/// More halvings than any size has.
const MOST_LEVELS: u32 = 32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayObject {
    pub device: usize,
    pub description: ArrayDescription,
    pub handle: Array,
}

/// A texture or surface object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViewObject {
    pub device: usize,
    /// The device's, and the program's.
    pub number: u64,
    pub view: View<Id>,
}

impl Client {
    pub(super) fn create_array(&mut self, request: ArrayCreate) -> Result<()> {
        let ArrayCreate { device, id, description } = request;
        let levels = description.levels.unwrap_or(1);
        if self.arrays.contains_key(&id) || levels > MOST_LEVELS {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let device = usize::from(device);
        let handle = self.with_memory(device, |client| client.on(device)?.array_create(&description))?;
        self.arrays.insert(id, ArrayObject { device, description, handle });
        Ok(())
    }

    pub(super) fn destroy_array(&mut self, origin: Origin, request: ArrayDestroy) -> Answer<()> {
        let Some(array) = self.arrays.remove(&request.id) else {
            return Answer::Now(Err(CUDA_ERROR_INVALID_HANDLE));
        };
        self.when_idle(origin, array.device, move |client| {
            client.on(array.device)?.array_destroy(array.handle)
        })
    }

    /// What an array's number stands for on the device that it is on.
    fn array(&self, device: usize, id: Id) -> Result<Array> {
        let array = self.arrays.get(&id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if array.device == device { Ok(array.handle) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
    }

    /// The copy as the device takes it.
    pub(super) fn array_copy(&self, device: usize, copy: ArrayCopy<Id>) -> Result<ArrayCopy<Array>> {
        copy.try_map(|id| self.array(device, id))
    }

    pub(super) fn copy_array_rows(&mut self, origin: Origin, request: CopyArray) -> Result<()> {
        let CopyArray { device, stream, copy } = request;
        let made = self.array_copy(device.into(), copy)?;
        let work = |device: &dyn Device, stream| device.copy_array(&made, stream);
        self.issue(origin, device, stream, work, |stream| Step::CopyArray { stream, copy })?;
        if let (CopyEnd::Linear { address: to, .. }, CopyEnd::Array { .. }) = (copy.to, copy.from) {
            self.count_copy(to, 0, copy.bytes());
        }
        if let (CopyEnd::Array { .. }, CopyEnd::Linear { address: from, .. }) = (copy.to, copy.from) {
            self.count_copy(0, from, copy.bytes());
        }
        Ok(())
    }

    pub(super) fn create_view(&mut self, request: ViewCreate) -> Result<u64> {
        let ViewCreate { device, view } = request;
        let device = usize::from(device);
        let made = view.try_map(|id| self.array(device, id))?;
        let number = self.on(device)?.view_create(&made)?;
        self.views.push(ViewObject { device, number, view });
        Ok(number)
    }

    pub(super) fn destroy_view(&mut self, request: ViewDestroy) -> Result<()> {
        let ViewDestroy { device, kind, number } = request;
        let device = usize::from(device);
        let is_it =
            |view: &ViewObject| (view.device, view.number, view.view.kind()) == (device, number, kind);
        let at = self.views.iter().position(is_it).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.on(device)?.view_destroy(kind, number)?;
        self.views.remove(at);
        Ok(())
    }

    /// Bytes of a device's arrays, as far as is known of how a device lays them out.
    pub(crate) fn array_bytes(&self, device: usize) -> u64 {
        self.arrays
            .values()
            .filter(|array| array.device == device)
            .map(|array| array.description.bytes())
            .sum()
    }

    /// Why some texture or surface could not be made again, if that is so.
    pub(crate) fn stale_view(&self) -> Option<String> {
        self.views.iter().find_map(|view| {
            let what = match view.view {
                View::Texture(texture) => match texture.resource {
                    TextureResource::Linear { address, .. } | TextureResource::Pitched { address, .. } => {
                        self.range_of(address).is_err().then_some("memory that is no allocation of the program")
                    }
                    _ => None,
                },
                View::Surface(_) => None,
            };
            let gone = view.view.array().is_some_and(|id| !self.arrays.contains_key(&id));
            let what = what.or(gone.then_some("an array that was destroyed"))?;
            Some(format!(
                "its {} object {} is of {what}, and could not be made again; have the program destroy it, or wait until it has",
                view.view.kind(),
                view.number
            ))
        })
    }

    /// Gives back what the program has of these on a device; the first error.
    pub(super) fn reset_arrays(&mut self, index: usize) -> Result<()> {
        let device = self.context(index)?.device.clone();
        let mut first = Ok(());
        for view in self.views.extract_if(.., |view| view.device == index) {
            first = first.and(device.view_destroy(view.view.kind(), view.number));
        }
        for array in self.arrays.extract_if(.., |_, array| array.device == index).map(|(_, array)| array) {
            first = first.and(device.array_destroy(array.handle));
        }
        first
    }
}
