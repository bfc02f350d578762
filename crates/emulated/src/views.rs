//! Textures and surfaces by the numbers that kernels get: the lowest that is free, from 1 on.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{
    ARRAY_SURFACE, Array, ResourceView, Result, Sampler, TEXTURE_AS_INTEGER, TEXTURE_NORMALIZED,
    TEXTURE_SRGB, TextureResource, View, ViewKind,
};
use rekindle_ptx as ptx;
use rekindle_ptx::{AddressMode, Image, TexelFormat};

use crate::arrays::{ArrayMemory, Arrays, texel};
use crate::space::Space;

/// Of memory that textures read, and of its rows.
const ALIGNMENT: u64 = 512;
const PITCH_ALIGNMENT: u64 = 32;
/// Elements of linear memory.
const MOST_LINEAR: u64 = 1 << 28;
const MOST_PITCHED: [u64; 2] = [131_072, 65000];
const KNOWN_FLAGS: u32 = 0x73;

#[derive(Default)]
pub(crate) struct Views(RwLock<BTreeMap<u64, Arc<ptx::View>>>);

impl Views {
    pub fn get(&self, number: u64) -> Option<Arc<ptx::View>> {
        self.0.read().get(&number).cloned()
    }

    pub fn create(&self, view: &View<Array>, arrays: &Arrays, space: &Space) -> Result<u64> {
        let made = match view {
            View::Texture(texture) => {
                make_texture(texture.resource, &texture.sampler, texture.view, arrays, space)?
            }
            View::Surface(at) => {
                let (array, level) = arrays.level(at)?;
                if array.description.flags & ARRAY_SURFACE == 0 {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                view_of(ptx::ViewKind::Surface(array.image(level)), Some(&array))
            }
        };
        let mut live = self.0.write();
        let number = (1..).zip(live.keys()).find(|(free, taken)| free != *taken).map(|(free, _)| free);
        let number = number.unwrap_or(live.len() as u64 + 1);
        live.insert(number, Arc::new(made));
        Ok(number)
    }

    pub fn destroy(&self, kind: ViewKind, number: u64) -> Result<()> {
        let mut live = self.0.write();
        let found = live.get(&number).map(|view| match view.kind {
            ptx::ViewKind::Texture(_) => ViewKind::Texture,
            ptx::ViewKind::Surface(_) => ViewKind::Surface,
        });
        if found != Some(kind) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        live.remove(&number);
        Ok(())
    }
}

fn view_of(kind: ptx::ViewKind, array: Option<&ArrayMemory>) -> ptx::View {
    ptx::View { kind, memory: array.map(|array| array.storage.clone() as _) }
}

fn make_texture(
    resource: TextureResource<Array>,
    sampler: &Sampler,
    view: Option<ResourceView>,
    arrays: &Arrays,
    space: &Space,
) -> Result<ptx::View> {
    let (mut levels, array, bounded) = match resource {
        TextureResource::Array(at) => {
            let (array, level) = arrays.level(&at)?;
            (vec![array.image(level)], Some(array), false)
        }
        TextureResource::Mipmapped(array) => {
            let array = arrays.get(array)?;
            array.description.levels.ok_or(CUDA_ERROR_INVALID_VALUE)?;
            (array.description.all_levels().map(|level| array.image(level)).collect(), Some(array), false)
        }
        TextureResource::Linear { address, format, channels, bytes } => {
            let format = texel(format);
            let element = format.bytes() * u64::from(channels);
            let width = bytes / element.max(1);
            let image = memory(address, format, channels, [width, 1], bytes, space)?;
            let fits = width <= MOST_LINEAR && sampler.flags & TEXTURE_NORMALIZED == 0;
            fits.then_some((vec![image], None, true)).ok_or(CUDA_ERROR_INVALID_VALUE)?
        }
        TextureResource::Pitched { address, format, channels, width, height, pitch } => {
            let image = memory(address, texel(format), channels, [width, height], pitch, space)?;
            let fits = width <= MOST_PITCHED[0]
                && height <= MOST_PITCHED[1]
                && pitch.is_multiple_of(PITCH_ALIGNMENT);
            fits.then_some((vec![image], None, false)).ok_or(CUDA_ERROR_INVALID_VALUE)?
        }
    };
    if let Some(view) = view {
        levels = seen(levels, &view)?;
    }
    let mode = |mode| match mode {
        0 => Ok(AddressMode::Wrap),
        1 => Ok(AddressMode::Clamp),
        2 => Ok(AddressMode::Mirror),
        3 => Ok(AddressMode::Border),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    };
    let [x, y, z] = sampler.address_modes;
    let (filter, mipmap_filter) = (sampler.filter, sampler.mipmap_filter);
    let integer = sampler.flags & TEXTURE_AS_INTEGER != 0;
    let format = levels.first().ok_or(CUDA_ERROR_INVALID_VALUE)?.format;
    let numbers = format.is_float() || format.is_fraction() && !integer;
    if filter > 1 || mipmap_filter > 1 || sampler.flags & !KNOWN_FLAGS != 0 || filter == 1 && !numbers {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let texture = ptx::Texture {
        levels,
        address: [mode(x)?, mode(y)?, mode(z)?],
        // What plain memory is read by has no filter.
        linear: filter == 1 && !bounded,
        normalized: sampler.flags & TEXTURE_NORMALIZED != 0,
        integer,
        srgb: sampler.flags & TEXTURE_SRGB != 0 && format == TexelFormat::U8,
        linear_levels: mipmap_filter == 1,
        level_bias: sampler.level_bias,
        level_clamp: sampler.level_clamp,
        border: sampler.border,
        bounded,
    };
    Ok(view_of(ptx::ViewKind::Texture(texture), array.as_ref()))
}

/// Device memory as an image of rows.
fn memory(
    address: u64,
    format: TexelFormat,
    channels: u32,
    [width, height]: [u64; 2],
    pitch: u64,
    space: &Space,
) -> Result<Image> {
    let row = format.bytes().checked_mul(u64::from(channels)).and_then(|element| element.checked_mul(width));
    let bytes = height.checked_sub(1).and_then(|rows| rows.checked_mul(pitch)).zip(row);
    let bytes = bytes.and_then(|(rows, row)| rows.checked_add(row)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let fits = matches!(channels, 1 | 2 | 4)
        && width > 0
        && height > 0
        && address.is_multiple_of(ALIGNMENT)
        && row.is_some_and(|row| row <= pitch)
        && space.place(address, bytes).is_some();
    if !fits || width > u64::from(u32::MAX) || height > u64::from(u32::MAX) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let size = [width as u32, height as u32, 1];
    Ok(Image { address, format, channels: channels as u8, size, pitch, slice: pitch.saturating_mul(height) })
}

/// Levels and layers as a view of the resource shows them.
fn seen(levels: Vec<Image>, view: &ResourceView) -> Result<Vec<Image>> {
    const FORMATS: [TexelFormat; 8] = [
        TexelFormat::U8,
        TexelFormat::I8,
        TexelFormat::U16,
        TexelFormat::I16,
        TexelFormat::U32,
        TexelFormat::I32,
        TexelFormat::F16,
        TexelFormat::F32,
    ];
    let [first, last] = view.levels.map(|level| level as usize);
    let mut levels: Vec<Image> = levels.get(first..=last).ok_or(CUDA_ERROR_INVALID_VALUE)?.to_vec();
    for image in &mut levels {
        if let Some(number) = view.format.checked_sub(1) {
            let element = image.element_bytes();
            image.format = *FORMATS.get(number as usize / 3).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            image.channels = [1, 2, 4][number as usize % 3];
            if image.element_bytes() != element {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        let [first, last] = view.layers;
        if last > 0 || first > 0 {
            if first > last || last >= image.size[2] {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            image.address += u64::from(first) * image.slice;
            image.size[2] = last - first + 1;
        }
    }
    Ok(levels)
}

#[cfg(test)]
mod tests {
    use rekindle_device::{ArrayDescription, ArrayFormat, ArrayLevel};

    use super::*;
    use crate::physical::Budget;

    #[test]
    fn numbers_are_the_lowest_that_are_free() {
        let (views, arrays, budget) = (Views::default(), Arrays::default(), Budget::new(1 << 20, None));
        let description = ArrayDescription {
            width: 4,
            height: 0,
            depth: 0,
            format: ArrayFormat::F32,
            channels: 1,
            flags: ARRAY_SURFACE,
            levels: None,
        };
        let array = arrays.create(&description, &budget).unwrap();
        let view = View::Surface(ArrayLevel { array, level: None });
        let space = Space::default();
        let make = || views.create(&view, &arrays, &space).unwrap();
        assert_eq!([make(), make(), make()], [1, 2, 3]);
        views.destroy(ViewKind::Surface, 2).unwrap();
        assert_eq!(views.destroy(ViewKind::Texture, 1), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!([make(), make()], [2, 4]);
        arrays.destroy(array).unwrap();
        assert!(views.get(1).is_some());
    }
}
