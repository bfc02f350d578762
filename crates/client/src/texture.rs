//! Texture and surface objects. Their numbers are the device's, for kernels get them as arguments; the client keeps what the
//! program described, for it to read back.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_cuda::types::{ResourceDescriptor, ResourceViewDescriptor, TextureDescriptor, resource_type};
use rekindle_device::{ArrayFormat, ResourceView, Sampler, Texture, TextureResource, View, ViewKind};
use rekindle_protocol::operation::{Id, ViewCreate, ViewDestroy};

use crate::abi::{Handle, In, Out, Result};
use crate::array::{Array, MipmappedArray};
use crate::export::exports;
use crate::{arena, context, lane};

struct Object {
    device: u8,
    kind: ViewKind,
    number: u64,
    resource: ResourceDescriptor,
    texture: Option<TextureDescriptor>,
    view: Option<ResourceViewDescriptor>,
}

static OBJECTS: Mutex<Vec<Object>> = Mutex::new(Vec::new());

fn objects() -> MutexGuard<'static, Vec<Object>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device was reset.
pub fn forget_device(device: u8) {
    objects().retain(|object| object.device != device);
}

/// What an object of the current context was described by.
fn described<T>(kind: ViewKind, number: u64, what: impl FnOnce(&Object) -> Option<T>) -> Result<T> {
    let device = context::device()?;
    let objects = objects();
    let found =
        objects.iter().find(|object| (object.device, object.kind, object.number) == (device, kind, number));
    found.and_then(what).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn array(handle: u64, device: u8) -> Result<&'static Array> {
    let array = arena::get::<Array>(Handle(handle as usize))?;
    if array.device == device { Ok(array) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn resource(given: &ResourceDescriptor, device: u8) -> Result<TextureResource<Id>> {
    let format = || ArrayFormat::new(given.format).ok_or(CUDA_ERROR_INVALID_VALUE);
    let channels = given.channels;
    let memory = || matches!(channels, 1 | 2 | 4) && given.handle != 0 && given.width != 0;
    if given.flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match given.kind {
        resource_type::ARRAY => Ok(TextureResource::Array(array(given.handle, device)?.at)),
        resource_type::MIPMAPPED_ARRAY => {
            let array = arena::get::<MipmappedArray>(Handle(given.handle as usize))?;
            if array.device == device {
                Ok(TextureResource::Mipmapped(array.id))
            } else {
                Err(CUDA_ERROR_INVALID_VALUE)
            }
        }
        resource_type::LINEAR if memory() => Ok(TextureResource::Linear {
            address: given.handle,
            format: format()?,
            channels,
            bytes: given.width as u64,
        }),
        resource_type::PITCH2D if memory() && given.height != 0 => Ok(TextureResource::Pitched {
            address: given.handle,
            format: format()?,
            channels,
            width: given.width as u64,
            height: given.height as u64,
            pitch: given.pitch as u64,
        }),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn sampler(given: &TextureDescriptor) -> Sampler {
    Sampler {
        address_modes: given.address_modes,
        filter: given.filter,
        flags: given.flags,
        anisotropy: given.anisotropy,
        mipmap_filter: given.mipmap_filter,
        level_bias: given.level_bias,
        level_clamp: given.level_clamp,
        border: given.border,
    }
}

fn resource_view(given: &ResourceViewDescriptor) -> ResourceView {
    ResourceView {
        format: given.format,
        width: given.width as u64,
        height: given.height as u64,
        depth: given.depth as u64,
        levels: given.levels,
        layers: given.layers,
    }
}

/// Has the device make it, and keeps what it was described by.
fn make(
    out: Out<u64>,
    view: View<Id>,
    device: u8,
    resource: ResourceDescriptor,
    texture: Option<TextureDescriptor>,
    seen: Option<ResourceViewDescriptor>,
) -> Result<()> {
    let number = lane::ask(&ViewCreate { device, view })?;
    objects().push(Object { device, kind: view.kind(), number, resource, texture, view: seen });
    out.put(number)
}

fn create_texture(
    out: Out<u64>,
    given: ResourceDescriptor,
    texture: TextureDescriptor,
    view: Option<ResourceViewDescriptor>,
) -> Result<()> {
    out.check()?;
    let device = context::device()?;
    // Plain memory has no other formats, levels or layers.
    if view.is_some() && matches!(given.kind, resource_type::LINEAR | resource_type::PITCH2D) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let seen = view.as_ref().map(resource_view);
    let object = Texture { resource: resource(&given, device)?, sampler: sampler(&texture), view: seen };
    make(out, View::Texture(object), device, given, Some(texture), view)
}

fn create_surface(out: Out<u64>, given: ResourceDescriptor) -> Result<()> {
    out.check()?;
    let device = context::device()?;
    if given.kind != resource_type::ARRAY || given.flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    make(out, View::Surface(array(given.handle, device)?.at), device, given, None, None)
}

fn destroy(kind: ViewKind, number: u64) -> Result<()> {
    described(kind, number, |_| Some(()))?;
    let device = context::device()?;
    lane::ask(&ViewDestroy { device, kind, number })?;
    objects().retain(|object| (object.device, object.kind, object.number) != (device, kind, number));
    Ok(())
}

exports! {
    call fn cuTexObjectCreate(out: Out<u64>, resource: In<ResourceDescriptor>, texture: In<TextureDescriptor>, view: In<ResourceViewDescriptor>) {
        let view = if view.is_null() { None } else { Some(view.get()?) };
        create_texture(out, resource.get()?, texture.get()?, view)
    }
    call fn cuTexObjectDestroy(number: u64) { destroy(ViewKind::Texture, number) }
    ready fn cuTexObjectGetResourceDesc(out: Out<ResourceDescriptor>, number: u64) {
        out.put(described(ViewKind::Texture, number, |object| Some(object.resource))?)
    }
    ready fn cuTexObjectGetTextureDesc(out: Out<TextureDescriptor>, number: u64) {
        out.put(described(ViewKind::Texture, number, |object| object.texture)?)
    }
    ready fn cuTexObjectGetResourceViewDesc(out: Out<ResourceViewDescriptor>, number: u64) {
        out.put(described(ViewKind::Texture, number, |object| object.view)?)
    }
    call fn cuSurfObjectCreate(out: Out<u64>, resource: In<ResourceDescriptor>) { create_surface(out, resource.get()?) }
    call fn cuSurfObjectDestroy(number: u64) { destroy(ViewKind::Surface, number) }
    ready fn cuSurfObjectGetResourceDesc(out: Out<ResourceDescriptor>, number: u64) {
        out.put(described(ViewKind::Surface, number, |object| Some(object.resource))?)
    }
}
