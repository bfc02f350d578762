//! Arrays, and the objects by which kernels read and write them.
//!
//! The driver has one type for arrays and another for those with mipmaps. An [`Array`] is the pointer of either; that of an
//! array with mipmaps has its lowest bit set, which no pointer of the driver's has.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{
    Array, ArrayCopy, ArrayDescription, ArrayFormat, ArrayLevel, CopyEnd, Graph, GraphNode, ResourceView,
    Result, Sampler, Stream, TextureResource, View, ViewKind,
};

use crate::device::{NvidiaDevice, ask};
use crate::driver::call;
use crate::graph::handles;
use crate::sys;

const MIPMAPPED: u64 = 1;

/// `CUresourcetype`.
const RESOURCE_ARRAY: u32 = 0;
const RESOURCE_MIPMAPPED: u32 = 1;
const RESOURCE_LINEAR: u32 = 2;
const RESOURCE_PITCHED: u32 = 3;

impl NvidiaDevice {
    pub(crate) fn create_array(&self, description: &ArrayDescription) -> Result<Array> {
        let described = sys::ArrayDescriptor {
            width: description.width as usize,
            height: description.height as usize,
            depth: description.depth as usize,
            format: description.format.number(),
            channels: description.channels,
            flags: description.flags,
        };
        let mut made = 0;
        match description.levels {
            None => ask!(self, cuArray3DCreate_v2(&mut made, &described))?,
            Some(levels) => {
                ask!(self, cuMipmappedArrayCreate(&mut made, &described, levels))?;
                made |= MIPMAPPED;
            }
        }
        Ok(Array(made))
    }

    pub(crate) fn destroy_array(&self, array: Array) -> Result<()> {
        match array.0 & MIPMAPPED {
            0 => ask!(self, cuArrayDestroy(array.0)),
            _ => ask!(self, cuMipmappedArrayDestroy(array.0 & !MIPMAPPED)),
        }
    }

    /// The driver's pointer of an array, or of a level.
    fn level(&self, at: &ArrayLevel<Array>) -> Result<u64> {
        match (at.level, at.array.0 & MIPMAPPED) {
            (None, 0) => Ok(at.array.0),
            (Some(level), MIPMAPPED) => {
                let mut found = 0;
                ask!(self, cuMipmappedArrayGetLevel(&mut found, at.array.0 & !MIPMAPPED, level))?;
                Ok(found)
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub(crate) fn copy_arrays(&self, copy: &ArrayCopy<Array>, stream: Stream) -> Result<()> {
        if copy.bytes() == 0 {
            return Ok(());
        }
        let described = self.described(copy)?;
        ask!(self, cuMemcpy3DAsync_v2(&described, stream.0))
    }

    pub(crate) fn add_array_copy(
        &self,
        graph: Graph,
        after: &[GraphNode],
        copy: &ArrayCopy<Array>,
    ) -> Result<GraphNode> {
        let (described, after) = (self.described(copy)?, handles(after));
        let mut node = 0;
        ask!(
            self,
            cuGraphAddMemcpyNode(&mut node, graph.0, after.as_ptr(), after.len(), &described, self.context)
        )?;
        Ok(GraphNode(node))
    }

    fn described(&self, copy: &ArrayCopy<Array>) -> Result<sys::Memcpy3D> {
        Ok(sys::Memcpy3D {
            from: self.end(&copy.from, copy.height)?,
            to: self.end(&copy.to, copy.height)?,
            width: copy.width as usize,
            height: copy.height as usize,
            depth: copy.depth as usize,
        })
    }

    fn end(&self, end: &CopyEnd<Array>, rows: u64) -> Result<sys::MemcpySide> {
        match *end {
            CopyEnd::Linear { address, pitch, slice } => linear(address, pitch, slice, rows),
            CopyEnd::Array { ref at, x, y, z } => Ok(sys::MemcpySide {
                kind: sys::MEMORY_ARRAY,
                array: self.level(at)?,
                x: x as usize,
                y: y as usize,
                z: z as usize,
                ..Default::default()
            }),
        }
    }

    pub(crate) fn create_view(&self, view: &View<Array>) -> Result<u64> {
        let mut number = 0;
        match view {
            View::Surface(at) => {
                let resource = sys::ResourceDescriptor {
                    kind: RESOURCE_ARRAY,
                    handle: self.level(at)?,
                    ..Default::default()
                };
                ask!(self, cuSurfObjectCreate(&mut number, &resource))?;
            }
            View::Texture(texture) => {
                let resource = match &texture.resource {
                    TextureResource::Array(at) => sys::ResourceDescriptor {
                        kind: RESOURCE_ARRAY,
                        handle: self.level(at)?,
                        ..Default::default()
                    },
                    TextureResource::Mipmapped(array) => sys::ResourceDescriptor {
                        kind: RESOURCE_MIPMAPPED,
                        handle: array.0 & !MIPMAPPED,
                        ..Default::default()
                    },
                    memory => memory_resource(memory),
                };
                let sampler = sampler(&texture.sampler);
                let view = texture.view.as_ref().map(resource_view);
                let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                ask!(self, cuTexObjectCreate(&mut number, &resource, &sampler, view))?;
            }
        }
        Ok(number)
    }

    pub(crate) fn destroy_view(&self, kind: ViewKind, number: u64) -> Result<()> {
        match kind {
            ViewKind::Texture => ask!(self, cuTexObjectDestroy(number)),
            ViewKind::Surface => ask!(self, cuSurfObjectDestroy(number)),
        }
    }
}

/// Slices of linear memory are whole rows.
fn linear(address: u64, pitch: u64, slice: u64, rows: u64) -> Result<sys::MemcpySide> {
    let height = slice.checked_div(pitch).unwrap_or(rows);
    if pitch != 0 && !slice.is_multiple_of(pitch) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(sys::MemcpySide {
        kind: sys::MEMORY_UNIFIED,
        device: address,
        pitch: pitch as usize,
        height: height.max(rows) as usize,
        ..Default::default()
    })
}

/// What a texture of plain memory reads.
fn memory_resource(resource: &TextureResource<Array>) -> sys::ResourceDescriptor {
    let of = |kind, address, format: ArrayFormat, channels| sys::ResourceDescriptor {
        kind,
        handle: address,
        format: format.number(),
        channels,
        ..Default::default()
    };
    match *resource {
        TextureResource::Linear { address, format, channels, bytes } => sys::ResourceDescriptor {
            width: bytes as usize,
            ..of(RESOURCE_LINEAR, address, format, channels)
        },
        TextureResource::Pitched { address, format, channels, width, height, pitch } => {
            sys::ResourceDescriptor {
                width: width as usize,
                height: height as usize,
                pitch: pitch as usize,
                ..of(RESOURCE_PITCHED, address, format, channels)
            }
        }
        TextureResource::Array(_) | TextureResource::Mipmapped(_) => sys::ResourceDescriptor::default(),
    }
}

fn sampler(sampler: &Sampler) -> sys::TextureDescriptor {
    sys::TextureDescriptor {
        address_modes: sampler.address_modes,
        filter: sampler.filter,
        flags: sampler.flags,
        anisotropy: sampler.anisotropy,
        mipmap_filter: sampler.mipmap_filter,
        level_bias: sampler.level_bias,
        level_clamp: sampler.level_clamp,
        border: sampler.border,
        reserved: [0; 12],
    }
}

fn resource_view(view: &ResourceView) -> sys::ResourceViewDescriptor {
    sys::ResourceViewDescriptor {
        format: view.format,
        width: view.width as usize,
        height: view.height as usize,
        depth: view.depth as usize,
        levels: view.levels,
        layers: view.layers,
        reserved: [0; 16],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_memory_are_counted_in_rows() {
        let side = linear(0x1000, 64, 64 * 6, 5).unwrap();
        assert_eq!((side.kind, side.device, side.pitch, side.height), (sys::MEMORY_UNIFIED, 0x1000, 64, 6));
        assert_eq!(linear(0, 64, 65, 1).err(), Some(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn memory_lies_in_the_descriptor_as_the_header_says() {
        let linear = TextureResource::Linear { address: 7, format: ArrayFormat::F32, channels: 4, bytes: 64 };
        let found = memory_resource(&linear);
        assert_eq!(
            (found.kind, found.handle, found.format, found.channels, found.width),
            (2, 7, 0x20, 4, 64)
        );
    }
}
