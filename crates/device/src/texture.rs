//! Texture and surface objects: what kernels read and write arrays by, and memory as if it were one.

use serde::{Deserialize, Serialize};

use crate::array::{ArrayFormat, ArrayLevel};

/// `CU_TRSF_READ_AS_INTEGER`.
pub const TEXTURE_AS_INTEGER: u32 = 1;
/// `CU_TRSF_NORMALIZED_COORDINATES`.
pub const TEXTURE_NORMALIZED: u32 = 2;
/// `CU_TRSF_SRGB`.
pub const TEXTURE_SRGB: u32 = 0x10;

/// What a texture reads: `CUDA_RESOURCE_DESC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextureResource<A> {
    Array(ArrayLevel<A>),
    Mipmapped(A),
    Linear { address: u64, format: ArrayFormat, channels: u32, bytes: u64 },
    Pitched { address: u64, format: ArrayFormat, channels: u32, width: u64, height: u64, pitch: u64 },
}

/// `CUDA_RESOURCE_VIEW_DESC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceView {
    pub format: u32,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    pub levels: [u32; 2],
    pub layers: [u32; 2],
}

/// How a texture reads: `CUDA_TEXTURE_DESC`, enums as their header values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampler {
    pub address_modes: [u32; 3],
    pub filter: u32,
    pub flags: u32,
    pub anisotropy: u32,
    pub mipmap_filter: u32,
    pub level_bias: f32,
    pub level_clamp: [f32; 2],
    pub border: [f32; 4],
}

/// A texture object. `A` is what stands for an array, as in [`ArrayCopy`](crate::ArrayCopy).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Texture<A> {
    pub resource: TextureResource<A>,
    pub sampler: Sampler,
    pub view: Option<ResourceView>,
}

/// Which kind of object kernels know by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ViewKind {
    Texture,
    Surface,
}

impl std::fmt::Display for ViewKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            ViewKind::Texture => "texture",
            ViewKind::Surface => "surface",
        })
    }
}

/// What a kernel is given the number of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum View<A> {
    Texture(Texture<A>),
    Surface(ArrayLevel<A>),
}

impl<A: Copy> View<A> {
    pub fn kind(&self) -> ViewKind {
        match self {
            View::Texture(_) => ViewKind::Texture,
            View::Surface(_) => ViewKind::Surface,
        }
    }

    /// The array behind it; none where that is plain memory.
    pub fn array(&self) -> Option<A> {
        match self {
            View::Surface(at) => Some(at.array),
            View::Texture(texture) => match &texture.resource {
                TextureResource::Array(at) => Some(at.array),
                TextureResource::Mipmapped(array) => Some(*array),
                TextureResource::Linear { .. } | TextureResource::Pitched { .. } => None,
            },
        }
    }

    pub fn try_map<B, E>(self, map: impl FnOnce(A) -> Result<B, E>) -> Result<View<B>, E> {
        let Texture { resource, sampler, view } = match self {
            View::Surface(at) => return Ok(View::Surface(at.try_map(map)?)),
            View::Texture(texture) => texture,
        };
        let resource = match resource {
            TextureResource::Array(at) => TextureResource::Array(at.try_map(map)?),
            TextureResource::Mipmapped(array) => TextureResource::Mipmapped(map(array)?),
            TextureResource::Linear { address, format, channels, bytes } => {
                TextureResource::Linear { address, format, channels, bytes }
            }
            TextureResource::Pitched { address, format, channels, width, height, pitch } => {
                TextureResource::Pitched { address, format, channels, width, height, pitch }
            }
        };
        Ok(View::Texture(Texture { resource, sampler, view }))
    }
}
