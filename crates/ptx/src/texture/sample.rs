//! From coordinates to texels, and from texels to what is read.

use super::texel::{from_srgb, read};
use super::{AddressMode, At, Detail, Geometry, Image, Point, Texture, Unreadable, cube};

/// Of a weight.
const STEPS: f32 = 256.0;

/// Places along one dimension, with their weights; none is outside of the image, where the border is.
type Taps = [(Option<u32>, f32); 2];

impl Texture {
    /// The four channels, as bits of 32.
    pub(crate) fn fetch(&self, point: &Point) -> Result<[u32; 4], Unreadable> {
        let At::Float(_) = point.at else {
            let level = match point.detail {
                Detail::Level(level) => level as usize,
                _ => 0,
            };
            return self.level(level.min(self.levels.len() - 1), point);
        };
        let detail = self.detail(point);
        let last = self.levels.len() - 1;
        if !self.linear_levels || last == 0 {
            return self.level(((detail + 0.5).floor() as usize).min(last), point);
        }
        let lower = (detail.floor() as usize).min(last);
        let weight = ((detail - detail.floor()) * STEPS).round() / STEPS;
        if weight == 0.0 || lower == last || !self.reads_numbers() {
            return self.level(lower, point);
        }
        let (near, far) = (self.level(lower, point)?, self.level(lower + 1, point)?);
        let mix = |near: u32, far: u32| {
            (f32::from_bits(near) * (1.0 - weight) + f32::from_bits(far) * weight).to_bits()
        };
        Ok(std::array::from_fn(|channel| mix(near[channel], far[channel])))
    }

    /// One channel of the four texels that a linear filter would look at: from the lower left, against the clock.
    pub(crate) fn gather(&self, point: &Point, channel: usize) -> Result<[u32; 4], Unreadable> {
        let (layer, at) = self.place(point, 0);
        let image = &self.levels[0];
        let pair = |axis: usize| self.taps(image, axis, at[axis], point.offset[axis], true).map(|(at, _)| at);
        let ([left, right], [upper, lower]) = (pair(0), pair(1));
        let mut found = [0; 4];
        for (value, (x, y)) in
            found.iter_mut().zip([(left, lower), (right, lower), (right, upper), (left, upper)])
        {
            *value = self.texel(image, [x, y, Some(layer)])?[channel];
        }
        Ok(found)
    }

    /// Whether what is read are floating-point numbers.
    fn reads_numbers(&self) -> bool {
        let format = self.levels[0].format;
        format.is_float() || format.is_fraction() && !self.integer
    }

    /// The level between levels that is read.
    fn detail(&self, point: &Point) -> f32 {
        let detail = match point.detail {
            Detail::Base => return 0.0,
            Detail::Level(level) => level,
            Detail::Gradient(dx, dy) => {
                let size = self.levels[0].size;
                let length = |gradient: [f32; 3]| {
                    let of = |axis: usize| {
                        let scale = if self.normalized { size[axis] as f32 } else { 1.0 };
                        if axis < point.geometry.dimensions() { gradient[axis] * scale } else { 0.0 }
                    };
                    (0..3).map(|axis| of(axis) * of(axis)).sum::<f32>().sqrt()
                };
                length(dx).max(length(dy)).log2()
            }
        };
        let [least, most] = self.level_clamp;
        let detail = (detail + self.level_bias).max(least).min(most);
        // Also what is no number.
        if detail > 0.0 { detail.min(self.levels.len() as f32 - 1.0) } else { 0.0 }
    }

    /// The layer or face, and coordinates in elements of a level.
    fn place(&self, point: &Point, level: usize) -> (u32, [f32; 3]) {
        let size = self.levels[level].size;
        let At::Float(at) = point.at else { return (0, [0.0; 3]) };
        let scaled = |at: [f32; 3]| {
            std::array::from_fn(|axis| match (self.normalized, self.address[axis]) {
                (false, _) => at[axis],
                (true, AddressMode::Wrap) => (at[axis] - at[axis].floor()) * size[axis] as f32,
                (true, _) => at[axis] * size[axis] as f32,
            })
        };
        let layers = size[2];
        match point.geometry {
            Geometry::D1 | Geometry::D2 => (0, scaled(at)),
            Geometry::D3 => (0, scaled(at)),
            Geometry::A1 | Geometry::A2 => (point.layer.min(layers - 1), scaled(at)),
            Geometry::Cube | Geometry::CubeLayers => {
                let (face, [s, t]) = cube::face(at);
                let first =
                    if point.geometry == Geometry::Cube { 0 } else { point.layer.min(layers / 6 - 1) * 6 };
                ((first + face).min(layers - 1), [s * size[0] as f32, t * size[1] as f32, 0.0])
            }
        }
    }

    fn level(&self, level: usize, point: &Point) -> Result<[u32; 4], Unreadable> {
        let image = &self.levels[level];
        let dimensions = match point.geometry {
            Geometry::Cube | Geometry::CubeLayers => 2,
            other => other.dimensions(),
        };
        if let At::Integer(at) = point.at {
            return self.element(image, point, at, dimensions);
        }
        let (layer, at) = self.place(point, level);
        let linear = self.linear && self.reads_numbers();
        let taps: [Taps; 3] = std::array::from_fn(|axis| match (axis < dimensions, axis) {
            (true, _) => self.taps(image, axis, at[axis], point.offset[axis], linear),
            (false, 2) => [(Some(layer), 1.0), (Some(layer), 0.0)],
            (false, _) => [(Some(0), 1.0), (Some(0), 0.0)],
        });
        if !linear {
            return self.texel(image, taps.map(|[(at, _), _]| at));
        }
        let mut sum = [0.0f32; 4];
        for (z, wz) in taps[2] {
            for (y, wy) in taps[1] {
                for (x, wx) in taps[0] {
                    let weight = wx * wy * wz;
                    if weight != 0.0 {
                        let texel = self.texel(image, [x, y, z])?;
                        sum.iter_mut()
                            .zip(texel)
                            .for_each(|(sum, bits)| *sum += weight * f32::from_bits(bits));
                    }
                }
            }
        }
        Ok(sum.map(f32::to_bits))
    }

    /// What lies at whole coordinates.
    fn element(
        &self,
        image: &Image,
        point: &Point,
        at: [i32; 3],
        dimensions: usize,
    ) -> Result<[u32; 4], Unreadable> {
        let mut place = [Some(0); 3];
        for axis in 0..dimensions {
            let index = i64::from(at[axis]) + i64::from(point.offset[axis]);
            let size = i64::from(image.size[axis]);
            place[axis] = match (self.bounded, self.address[axis]) {
                (true, _) | (_, AddressMode::Border) => (0..size).contains(&index).then_some(index as u32),
                _ => Some(index.clamp(0, size - 1) as u32),
            };
        }
        if point.geometry.has_layer() {
            place[2] = Some(point.layer.min(image.size[2] - 1));
        }
        if self.bounded && place.contains(&None) {
            return Ok([0; 4]);
        }
        self.texel(image, place)
    }

    /// Which elements lie around a coordinate. Without a filter it is the first alone.
    fn taps(&self, image: &Image, axis: usize, at: f32, offset: i32, linear: bool) -> Taps {
        let size = i64::from(image.size[axis]);
        let index = |index: i64| {
            let index = index + i64::from(offset);
            let inside = match self.address[axis] {
                AddressMode::Border if !(0..size).contains(&index) => return None,
                AddressMode::Wrap if self.normalized => index.rem_euclid(size),
                AddressMode::Mirror if self.normalized => {
                    let within = index.rem_euclid(2 * size);
                    if within < size { within } else { 2 * size - 1 - within }
                }
                _ => index.clamp(0, size - 1),
            };
            Some(inside as u32)
        };
        // Far outside is as good as outside, and what is no number is taken for the first element.
        let whole = |value: f32| (value.floor() as i64).clamp(-(1 << 40), 1 << 40);
        if !linear {
            return [(index(whole(at)), 1.0), (None, 0.0)];
        }
        let at = at - 0.5;
        let weight = ((at - at.floor()) * STEPS).round() / STEPS;
        let weight = if weight.is_finite() { weight } else { 0.0 };
        let first = whole(at);
        [(index(first), 1.0 - weight), (index(first + 1), weight)]
    }

    /// An element's channels as bits of 32, or the border's.
    fn texel(&self, image: &Image, place: [Option<u32>; 3]) -> Result<[u32; 4], Unreadable> {
        let numbers = self.reads_numbers();
        let [Some(x), Some(y), Some(z)] = place else {
            return Ok(self.border.map(|value| if numbers { value.to_bits() } else { value as i64 as u32 }));
        };
        let bits = read(image, [x, y, z])?;
        let one = if numbers { 1f32.to_bits() } else { 1 };
        Ok(std::array::from_fn(|channel| match bits[channel] {
            None => {
                if channel == 3 {
                    one
                } else {
                    0
                }
            }
            Some(bits) if !numbers => image.format.integer(bits),
            Some(bits) => {
                let value = image.format.number(bits);
                if self.srgb && channel < 3 { from_srgb(value).to_bits() } else { value.to_bits() }
            }
        }))
    }
}

#[cfg(test)]
mod tests;
