//! Types of arrays' elements: by name (`float32`), and as NumPy describes them in messages (`'<f4'`).

use std::borrow::Cow;

/// Names, NumPy's descriptions, and bytes. Only references have bfloat16, of which NumPy knows nothing.
const TYPES: [(&str, &str, usize); 14] = [
    ("int8", "|i1", 1),
    ("int16", "<i2", 2),
    ("int32", "<i4", 4),
    ("int64", "<i8", 8),
    ("uint8", "|u1", 1),
    ("uint16", "<u2", 2),
    ("uint32", "<u4", 4),
    ("uint64", "<u8", 8),
    ("float16", "<f2", 2),
    ("float32", "<f4", 4),
    ("float64", "<f8", 8),
    ("complex64", "<c8", 8),
    ("complex128", "<c16", 16),
    ("bool", "|b1", 1),
];

/// The name of what a message describes; what has none keeps its description.
pub fn name(description: &str) -> Cow<'_, str> {
    let plain = description.trim_matches(['\'', '"']);
    match TYPES.iter().find(|(_, numpy, _)| *numpy == plain) {
        Some((name, _, _)) => Cow::Borrowed(*name),
        None => Cow::Borrowed(plain),
    }
}

/// As a message describes it.
pub fn description(name: &str) -> String {
    match TYPES.iter().find(|(known, _, _)| *known == name) {
        Some((_, numpy, _)) => format!("'{numpy}'"),
        None if name.starts_with('[') => name.to_string(),
        None => format!("'{name}'"),
    }
}

/// Bytes of an element, if they are known.
pub fn size(name: &str) -> Option<usize> {
    if name == "bfloat16" {
        return Some(2);
    }
    TYPES.iter().find(|(known, _, _)| *known == name).map(|(_, _, size)| *size)
}

/// Bytes of an array, if they are known and can be counted.
pub fn bytes(name: &str, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(size(name)? as u64, |product, length| product.checked_mul(*length))
}

/// A type of Rust's that arrays have as elements.
///
/// # Safety
///
/// Whatever its bytes are, it is a value of the type, and it has no bytes that are none of its value.
pub unsafe trait Element: Copy + 'static {
    const NAME: &'static str;
}

macro_rules! elements {
    ($($kind:ty = $name:literal),*) => {
        // SAFETY: numbers, of which every pattern of bits is one.
        $(unsafe impl Element for $kind { const NAME: &'static str = $name; })*
    };
}
elements!(i8 = "int8", i16 = "int16", i32 = "int32", i64 = "int64", u8 = "uint8", u16 = "uint16");
elements!(u32 = "uint32", u64 = "uint64", f32 = "float32", f64 = "float64");
