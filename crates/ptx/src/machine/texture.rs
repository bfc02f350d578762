//! Reading textures, reading and writing surfaces, lane by lane.

use std::sync::Arc;

use super::access;
use super::step::{Exec, Operands, StepError, Stop};
use super::warp::{Path, lanes};
use crate::alu::LANES;
use crate::texture::{AddressMode, At, Detail, Geometry, Image, Point, Unreadable, View, ViewKind};

/// `tex`, `tld4`
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetch {
    pub geometry: Geometry,
    /// Coordinates are whole numbers.
    pub integer: bool,
    pub detail: FetchDetail,
    /// How many offsets there are.
    pub offsets: u8,
    /// The channel that is gathered.
    pub channel: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FetchDetail {
    Base,
    Level,
    Gradient,
}

/// `suld.b`, `sust.b`
#[derive(Debug, Clone, Copy)]
pub(crate) struct SurfaceAccess {
    pub geometry: Geometry,
    /// Bytes of a value, and values.
    pub width: u8,
    pub count: u8,
    pub bounds: Bounds,
    pub store: bool,
}

/// What becomes of an access outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bounds {
    Trap,
    Clamp,
    Zero,
}

/// What is asked of a texture or surface.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Query {
    Size(u8),
    Layers,
    Levels,
    Normalized,
    AddressMode(u8),
    IsTexture,
    IsSampler,
    IsSurface,
}

fn unreadable(Unreadable(address): Unreadable) -> StepError {
    StepError::Address { address, write: false }
}

impl Exec<'_> {
    fn view(&self, number: u64, kind: &str) -> Result<Arc<View>, StepError> {
        let none = || StepError::Illegal(format!("{number:#x} is the number of no {kind} object"));
        self.host.view(number).ok_or_else(none)
    }

    pub(super) fn fetch(
        &mut self,
        path: &Path,
        fetch: &Fetch,
        Operands { results, sources }: Operands<'_>,
        mask: u32,
    ) -> Result<(), Stop> {
        let mut values = [[0u64; LANES]; 4];
        let mut last: Option<(u64, Arc<View>)> = None;
        for lane in lanes(mask) {
            let number = self.row(path, sources[0])[lane];
            let view = match &last {
                Some((known, view)) if *known == number => view.clone(),
                _ => self.view(number, "texture").map_err(|trouble| trouble.at(lane))?,
            };
            let ViewKind::Texture(texture) = &view.kind else {
                let message =
                    format!("{number:#x} is the number of a surface object, not of a texture object");
                return Err(StepError::Illegal(message).at(lane));
            };
            let point = self.point(path, fetch, sources, lane);
            let found = match fetch.channel {
                Some(channel) => texture.gather(&point, usize::from(channel)),
                None => texture.fetch(&point),
            };
            let found = found.map_err(|error| unreadable(error).at(lane))?;
            values.iter_mut().zip(found).for_each(|(row, value)| row[lane] = u64::from(value));
            last = Some((number, view));
        }
        for (result, row) in results.iter().zip(&values) {
            self.set(path, *result, row, mask);
        }
        // All of every texture is there.
        if let Some(resident) = results.get(4) {
            self.set(path, *resident, &[1; LANES], mask);
        }
        Ok(())
    }

    fn point(&self, path: &Path, fetch: &Fetch, sources: &[u32], lane: usize) -> Point {
        let mut rest = sources[1..].iter().map(|source| self.row(path, *source)[lane] as u32);
        let mut next = || rest.next().unwrap_or(0);
        let geometry = fetch.geometry;
        let dimensions = geometry.dimensions();
        let layer = if geometry.has_layer() { next() } else { 0 };
        let at: [u32; 3] = std::array::from_fn(|axis| if axis < dimensions { next() } else { 0 });
        let mut gradient =
            || std::array::from_fn(|axis| if axis < dimensions { f32::from_bits(next()) } else { 0.0 });
        let detail = match fetch.detail {
            FetchDetail::Base => Detail::Base,
            FetchDetail::Gradient => Detail::Gradient(gradient(), gradient()),
            FetchDetail::Level if fetch.integer => Detail::Level(next() as f32),
            FetchDetail::Level => Detail::Level(f32::from_bits(next())),
        };
        let offset =
            std::array::from_fn(|axis| if axis < usize::from(fetch.offsets) { next() as i32 } else { 0 });
        let at = match fetch.integer {
            true => At::Integer(at.map(|bits| bits as i32)),
            false => At::Float(at.map(f32::from_bits)),
        };
        Point { geometry, layer, at, detail, offset }
    }

    pub(super) fn surface(
        &mut self,
        path: &Path,
        surface: &SurfaceAccess,
        Operands { results, sources }: Operands<'_>,
        mask: u32,
    ) -> Result<(), Stop> {
        let coordinates = usize::from(surface.geometry.has_layer()) + surface.geometry.dimensions();
        let count = usize::from(surface.count);
        let mut values = [[0u64; LANES]; 4];
        for lane in lanes(mask) {
            let number = self.row(path, sources[0])[lane];
            let view = self.view(number, "surface").map_err(|trouble| trouble.at(lane))?;
            let ViewKind::Surface(image) = &view.kind else {
                let message =
                    format!("{number:#x} is the number of a texture object, not of a surface object");
                return Err(StepError::Illegal(message).at(lane));
            };
            let mut at = [0; 3];
            for (index, source) in sources[1..1 + coordinates].iter().enumerate() {
                at[index] = self.row(path, *source)[lane] as u32 as i32;
            }
            let place = surface.place(image, at).map_err(|trouble| trouble.at(lane))?;
            let Some(place) = place else { continue };
            for (index, row) in values.iter_mut().take(count).enumerate() {
                let address = place + index as u64 * u64::from(surface.width);
                let failed = |_| StepError::Address { address, write: surface.store }.at(lane);
                if surface.store {
                    let value = self.row(path, sources[1 + coordinates + index])[lane];
                    access::store(address, surface.width, value).map_err(failed)?;
                } else {
                    row[lane] = access::load(address, surface.width).map_err(failed)?;
                }
            }
        }
        for (result, row) in results.iter().zip(&values) {
            self.set(path, *result, row, mask);
        }
        Ok(())
    }

    pub(super) fn query_view(
        &mut self,
        path: &Path,
        query: Query,
        Operands { results, sources }: Operands<'_>,
        mask: u32,
    ) -> Result<(), Stop> {
        let mut values = [0u64; LANES];
        for lane in lanes(mask) {
            let number = self.row(path, sources[0])[lane];
            let level = self.row(path, sources[1])[lane] as u32 as usize;
            if matches!(query, Query::IsTexture | Query::IsSampler | Query::IsSurface) {
                let view = self.host.view(number);
                let is_surface = view.map(|view| matches!(view.kind, ViewKind::Surface(_)));
                values[lane] = u64::from(is_surface == Some(query == Query::IsSurface));
                continue;
            }
            let view = self.view(number, "texture or surface").map_err(|trouble| trouble.at(lane))?;
            values[lane] = u64::from(answer(&view.kind, query, level));
        }
        self.set(path, results[0], &values, mask);
        Ok(())
    }
}

fn answer(kind: &ViewKind, query: Query, level: usize) -> u32 {
    let (image, texture) = match kind {
        ViewKind::Surface(image) => (image, None),
        ViewKind::Texture(texture) => (&texture.levels[level.min(texture.levels.len() - 1)], Some(texture)),
    };
    let mode = |mode| match mode {
        AddressMode::Wrap => 0,
        AddressMode::Clamp => 1,
        AddressMode::Mirror => 2,
        AddressMode::Border => 3,
    };
    match (query, texture) {
        (Query::Size(axis), _) => image.size[usize::from(axis)],
        (Query::Layers, _) => image.size[2],
        (Query::Levels, Some(texture)) => texture.levels.len() as u32,
        (Query::Normalized, Some(texture)) => texture.normalized.into(),
        (Query::AddressMode(axis), Some(texture)) => mode(texture.address[usize::from(axis)]),
        _ => 0,
    }
}

impl SurfaceAccess {
    /// Where the coordinates lead: the first, beside a layer, in bytes. None where nothing is done.
    fn place(&self, image: &Image, at: [i32; 3]) -> Result<Option<u64>, StepError> {
        let bytes = i64::from(self.width) * i64::from(self.count);
        let row = i64::from(image.size[0]) * image.element_bytes() as i64;
        let [x, y, z] = match self.geometry {
            Geometry::A1 => [at[1], 0, at[0]],
            Geometry::A2 => [at[1], at[2], at[0]],
            Geometry::D1 => [at[0], 0, 0],
            Geometry::D2 => [at[0], at[1], 0],
            _ => at,
        }
        .map(i64::from);
        if x % bytes != 0 {
            return Err(StepError::Misaligned { address: x as u64, align: bytes as u32 });
        }
        let most = [row - bytes, i64::from(image.size[1]) - 1, i64::from(image.size[2]) - 1];
        let inside = [x, y, z].iter().zip(most).all(|(at, most)| (0..=most).contains(at));
        let [x, y, z] = match (inside, self.bounds) {
            (true, _) => [x, y, z],
            (_, Bounds::Zero) => return Ok(None),
            (_, Bounds::Trap) => return Err(StepError::Trap),
            (_, Bounds::Clamp) if most[0] < 0 => return Ok(None),
            (_, Bounds::Clamp) => {
                [x.clamp(0, most[0] / bytes * bytes), y.clamp(0, most[1]), z.clamp(0, most[2])]
            }
        };
        Ok(Some(image.address + z as u64 * image.slice + y as u64 * image.pitch + x as u64))
    }
}
