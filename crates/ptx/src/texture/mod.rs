//! Textures and surfaces: memory that kernels read by coordinates, with filters, and write by coordinates.
//!
//! ```text
//!  coordinates ──[sample]──▶ texels, weights ──[texel]──▶ channels
//! ```
//!
//! What lies at coordinates follows the CUDA programming guide's appendix on texture fetching. Weights of linear filters have
//! eight fractional bits, as those of GPUs.

mod cube;
mod sample;
mod texel;

use std::any::Any;
use std::sync::Arc;

pub use texel::TexelFormat;

/// A level of an array, or memory that is read as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    pub address: u64,
    pub format: TexelFormat,
    /// 1, 2 or 4.
    pub channels: u8,
    /// Elements of a row, rows, and slices, layers or faces; none is 0.
    pub size: [u32; 3],
    /// Bytes from a row to the next, and from a slice to the next.
    pub pitch: u64,
    pub slice: u64,
}

impl Image {
    pub fn element_bytes(&self) -> u64 {
        self.format.bytes() * u64::from(self.channels)
    }
}

/// What is read at coordinates that lie outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    Wrap,
    Clamp,
    Mirror,
    Border,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Texture {
    /// Of mipmaps; at least one.
    pub levels: Vec<Image>,
    pub address: [AddressMode; 3],
    pub linear: bool,
    /// Coordinates go from 0 to 1.
    pub normalized: bool,
    /// Integers of 8 and 16 bits are read as they are, not as fractions.
    pub integer: bool,
    pub srgb: bool,
    pub linear_levels: bool,
    pub level_bias: f32,
    pub level_clamp: [f32; 2],
    pub border: [f32; 4],
    /// What lies outside of plain memory, read by integers, is zero.
    pub bounded: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ViewKind {
    Texture(Texture),
    Surface(Image),
}

/// What a number that a kernel gets stands for.
#[derive(Clone)]
pub struct View {
    pub kind: ViewKind,
    /// What must stay as long as somebody looks.
    pub memory: Option<Arc<dyn Any + Send + Sync>>,
}

/// How an instruction names a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Geometry {
    D1,
    D2,
    D3,
    /// Layers of one or two dimensions.
    A1,
    A2,
    Cube,
    CubeLayers,
}

impl Geometry {
    /// Whether the first coordinate is the number of a layer.
    pub fn has_layer(self) -> bool {
        matches!(self, Geometry::A1 | Geometry::A2 | Geometry::CubeLayers)
    }

    /// Coordinates beside the layer.
    pub fn dimensions(self) -> usize {
        match self {
            Geometry::D1 | Geometry::A1 => 1,
            Geometry::D2 | Geometry::A2 => 2,
            Geometry::D3 | Geometry::Cube | Geometry::CubeLayers => 3,
        }
    }
}

/// How an instruction chooses the level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Detail {
    Base,
    Level(f32),
    Gradient([f32; 3], [f32; 3]),
}

/// Where an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub geometry: Geometry,
    pub layer: u32,
    pub at: At,
    pub detail: Detail,
    /// In elements, added to where the coordinates lead.
    pub offset: [i32; 3],
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum At {
    Float([f32; 3]),
    /// Elements as they lie, without a filter.
    Integer([i32; 3]),
}

/// An address that is not mapped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(pub u64);
