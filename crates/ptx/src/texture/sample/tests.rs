//! Fetches against plain arithmetic on plain arrays.

use proptest::prelude::*;

use super::*;
use crate::texture::TexelFormat;

fn image(data: &[f32], size: [u32; 3]) -> Image {
    let pitch = u64::from(size[0]) * 4;
    Image {
        address: data.as_ptr() as u64,
        format: TexelFormat::F32,
        channels: 1,
        size,
        pitch,
        slice: pitch * u64::from(size[1]),
    }
}

fn texture(image: Image, mode: AddressMode, linear: bool, normalized: bool) -> Texture {
    Texture {
        levels: vec![image],
        address: [mode; 3],
        linear,
        normalized,
        integer: false,
        srgb: false,
        linear_levels: false,
        level_bias: 0.0,
        level_clamp: [0.0, 100.0],
        border: [-7.0; 4],
        bounded: false,
    }
}

fn point(geometry: Geometry, at: [f32; 3]) -> Point {
    Point { geometry, layer: 0, at: At::Float(at), detail: Detail::Base, offset: [0; 3] }
}

fn first(texture: &Texture, point: &Point) -> f32 {
    f32::from_bits(texture.fetch(point).unwrap()[0])
}

/// Element `index` of `size` by the guide's rules; none for the border.
fn addressed(mode: AddressMode, normalized: bool, index: i64, size: i64) -> Option<i64> {
    match (mode, normalized) {
        (AddressMode::Border, _) => (index >= 0 && index < size).then_some(index),
        (AddressMode::Wrap, true) => Some(((index % size) + size) % size),
        (AddressMode::Mirror, true) => {
            let period = (index.div_euclid(size)) % 2 != 0;
            let within = index.rem_euclid(size);
            Some(if period { size - 1 - within } else { within })
        }
        _ => Some(index.max(0).min(size - 1)),
    }
}

fn modes() -> impl Strategy<Value = AddressMode> {
    prop_oneof![
        Just(AddressMode::Wrap),
        Just(AddressMode::Clamp),
        Just(AddressMode::Mirror),
        Just(AddressMode::Border)
    ]
}

proptest! {
    #[test]
    fn points_and_filters_are_those_of_the_guide(
        mode in modes(),
        normalized: bool,
        linear: bool,
        dimensions in 1usize..4,
        eighths in proptest::array::uniform3(-200i32..400),
        data in proptest::collection::vec(-100i32..100, 4 * 8 * 2),
    ) {
        // Sizes are powers of two and coordinates eighths of elements, so that nothing is rounded.
        let sizes = [4i64, 8, 2];
        let size: [u32; 3] = std::array::from_fn(|axis| if axis < dimensions { sizes[axis] as u32 } else { 1 });
        let data: Vec<f32> = data.into_iter().map(|value| value as f32).collect();
        let texture = texture(image(&data, size), mode, linear, normalized);
        let at: [f64; 3] = std::array::from_fn(|axis| f64::from(eighths[axis]) / 8.0);
        let given = std::array::from_fn(|axis| {
            (if normalized { at[axis] / f64::from(size[axis]) } else { at[axis] }) as f32
        });
        let geometry = [Geometry::D1, Geometry::D2, Geometry::D3][dimensions - 1];
        let element = |index: [i64; 3]| -> f64 {
            let mut flat = 0;
            for axis in (0..dimensions).rev() {
                match addressed(mode, normalized, index[axis], i64::from(size[axis])) {
                    Some(inside) => flat = flat * i64::from(size[axis]) + inside,
                    None => return -7.0,
                }
            }
            f64::from(data[flat as usize])
        };
        let expected = if linear {
            let base: [f64; 3] = std::array::from_fn(|axis| at[axis] - 0.5);
            (0..1 << dimensions).map(|corner: i64| {
                let mut weight = 1.0;
                let mut index = [0; 3];
                for axis in 0..dimensions {
                    let (whole, part) = (base[axis].floor(), base[axis] - base[axis].floor());
                    let far = corner >> axis & 1;
                    index[axis] = whole as i64 + far;
                    weight *= if far == 1 { part } else { 1.0 - part };
                }
                weight * element(index)
            }).sum::<f64>()
        } else {
            element(at.map(|value| value.floor() as i64))
        };
        prop_assert_eq!(f64::from(first(&texture, &point(geometry, given))), expected);
    }

    #[test]
    fn weights_have_eight_bits(part in 0.0f32..1.0) {
        let data = [0.0, 1.0];
        let texture = texture(image(&data, [2, 1, 1]), AddressMode::Clamp, true, false);
        let found = first(&texture, &point(Geometry::D1, [0.5 + part, 0.0, 0.0]));
        prop_assert_eq!(found, (found * 256.0).round() / 256.0);
        prop_assert!((found - part).abs() <= 0.5 / 256.0 + 1e-6);
    }

    #[test]
    fn any_coordinates_lead_somewhere(bits in proptest::array::uniform3(any::<u32>()), mode in modes(), normalized: bool, linear: bool) {
        let data: Vec<f32> = (0..60).map(|value| value as f32).collect();
        let texture = texture(image(&data, [3, 4, 5]), mode, linear, normalized);
        for geometry in [Geometry::D1, Geometry::D2, Geometry::D3, Geometry::A2, Geometry::Cube] {
            first(&texture, &point(geometry, bits.map(f32::from_bits)));
        }
    }
}

#[test]
fn integers_are_read_as_fractions_or_as_they_are() {
    let data: [i16; 3] = [-32768, -32767, 32767];
    let image = Image {
        address: data.as_ptr() as u64,
        format: TexelFormat::I16,
        channels: 1,
        size: [3, 1, 1],
        pitch: 6,
        slice: 6,
    };
    let fractions = texture(image, AddressMode::Clamp, false, false);
    let read = |texture: &Texture| {
        [0, 1, 2].map(|x| texture.fetch(&point(Geometry::D1, [x as f32, 0.0, 0.0])).unwrap())
    };
    assert_eq!(read(&fractions).map(|channels| f32::from_bits(channels[0])), [-1.0, -1.0, 1.0]);
    let integers = Texture { integer: true, ..fractions };
    assert_eq!(read(&integers).map(|channels| channels[0] as i32), [-32768, -32767, 32767]);
    assert_eq!(read(&integers)[0][1..], [0, 0, 1]);
}

#[test]
fn what_lies_outside_of_plain_memory_is_zero() {
    let data = [5.0, 6.0];
    let linear =
        Texture { bounded: true, ..texture(image(&data, [2, 1, 1]), AddressMode::Clamp, false, false) };
    let read = |x| {
        let at = At::Integer([x, 0, 0]);
        let point = Point { at, ..point(Geometry::D1, [0.0; 3]) };
        first(&linear, &point)
    };
    assert_eq!([-1, 0, 1, 2].map(read), [0.0, 5.0, 6.0, 0.0]);
}

#[test]
fn layers_do_not_mix() {
    let data: Vec<f32> = (0..12).map(|value| value as f32).collect();
    let layered = texture(image(&data, [2, 2, 3]), AddressMode::Clamp, true, false);
    let read = |layer| first(&layered, &Point { layer, ..point(Geometry::A2, [1.0, 1.0, 0.0]) });
    assert_eq!([0, 1, 2, 9].map(read), [1.5, 5.5, 9.5, 9.5]);
}

#[test]
fn levels_are_chosen_and_mixed() {
    let (large, small) = ([1.0f32; 16], [3.0f32; 4]);
    let mut mipmapped = texture(image(&large, [4, 4, 1]), AddressMode::Clamp, true, true);
    mipmapped.levels.push(image(&small, [2, 2, 1]));
    let read =
        |texture: &Texture, detail| first(texture, &Point { detail, ..point(Geometry::D2, [0.5, 0.5, 0.0]) });
    let level = |texture: &Texture, level| read(texture, Detail::Level(level));
    assert_eq!([-1.0, 0.4, 0.6, 9.0].map(|at| level(&mipmapped, at)), [1.0, 1.0, 3.0, 3.0]);
    mipmapped.linear_levels = true;
    assert_eq!([0.0, 0.25, 1.0, 9.0].map(|at| level(&mipmapped, at)), [1.0, 1.5, 3.0, 3.0]);
    // Half an element of the smaller one a step: one level up.
    assert_eq!(read(&mipmapped, Detail::Gradient([0.5, 0.0, 0.0], [0.0, 0.25, 0.0])), 3.0);
    mipmapped.level_clamp = [0.0, 0.5];
    assert_eq!(level(&mipmapped, 9.0), 2.0);
}

#[test]
fn gathers_go_against_the_clock_from_the_lower_left() {
    let data: Vec<f32> = (0..16).map(|value| value as f32).collect();
    let plain = texture(image(&data, [4, 4, 1]), AddressMode::Clamp, false, false);
    let found = plain.gather(&point(Geometry::D2, [2.0, 2.0, 0.0]), 0).unwrap();
    assert_eq!(found.map(f32::from_bits), [9.0, 10.0, 6.0, 5.0]);
}
