//! Values as C has them: made of ours, and ours made of those.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_void};

use rekindle_function::abi::{self, Kind};
use rekindle_function::{Array, Error, Reference, Value};

use crate::context::Context;

/// How deep values may be nested.
const DEPTH: usize = 64;

/// What the values of one call point to, beside its message.
#[derive(Default)]
pub struct Arena {
    items: Vec<Vec<abi::Value>>,
    texts: Vec<CString>,
    shapes: Vec<Vec<u64>>,
}

impl Arena {
    /// `value` for as long as the arena and what it borrows. Bytes and arrays stay where they are; text is copied, so that it
    /// ends with a zero.
    pub fn value(&mut self, value: &Value<'_>) -> Result<abi::Value, Error> {
        let kind = |kind: Kind| abi::Value { kind: kind as i32, ..abi::Value::NONE };
        Ok(match value {
            Value::None => abi::Value::NONE,
            Value::Boolean(value) => abi::Value { integer: (*value).into(), ..kind(Kind::Boolean) },
            Value::Integer(value) => {
                let integer = i64::try_from(*value).map_err(|_| {
                    Error::new("OverflowError", format!("{value} has more than 64 bits; send less"))
                })?;
                abi::Value { integer, ..kind(Kind::Integer) }
            }
            Value::Real(real) => abi::Value { real: *real, ..kind(Kind::Real) },
            Value::Complex(real, imaginary) => {
                abi::Value { real: *real, imaginary: *imaginary, ..kind(Kind::Complex) }
            }
            Value::Text(text) => self.text(Kind::Text, text),
            Value::Date(date) => self.text(Kind::Date, date),
            Value::Bytes(bytes) => {
                abi::Value { data: bytes.as_ptr().cast(), size: bytes.len(), ..kind(Kind::Bytes) }
            }
            Value::List(items) => self.sequence(Kind::List, items)?,
            Value::Tuple(items) => self.sequence(Kind::Tuple, items)?,
            Value::Set(items) => self.sequence(Kind::Set, items)?,
            Value::FrozenSet(items) => self.sequence(Kind::FrozenSet, items)?,
            Value::Dictionary(pairs) => {
                let items = self.pairs(pairs)?;
                self.of_items(Kind::Dictionary, items, pairs.len())
            }
            Value::Array(array) => self.array(Kind::Array, array),
            Value::Scalar(array) => self.array(Kind::Scalar, array),
            Value::Reference(reference) => self.reference(reference),
        })
    }

    pub fn values(&mut self, items: &[Value<'_>]) -> Result<Vec<abi::Value>, Error> {
        items.iter().map(|item| self.value(item)).collect()
    }

    /// Key, value, key, value.
    pub fn pairs(&mut self, pairs: &[(Value<'_>, Value<'_>)]) -> Result<Vec<abi::Value>, Error> {
        let mut items = Vec::with_capacity(2 * pairs.len());
        for (key, value) in pairs {
            items.push(self.value(key)?);
            items.push(self.value(value)?);
        }
        Ok(items)
    }

    pub fn reference(&mut self, reference: &Reference) -> abi::Value {
        let text = self.text(Kind::Reference, &reference.id);
        let array = self.typed(Kind::Reference, &reference.dtype, &reference.shape);
        abi::Value { data: text.data, size: text.size, integer: reference.given.into(), ..array }
    }

    /// What lies on the GPU.
    pub fn device(&mut self, address: u64, bytes: u64, dtype: &str, shape: &[u64]) -> abi::Value {
        let array = self.typed(Kind::Device, dtype, shape);
        abi::Value { integer: address as i64, size: bytes as usize, ..array }
    }

    /// A place for a value that a library is given a pointer to.
    pub fn keep(&mut self, value: abi::Value) -> *const abi::Value {
        self.of_items(Kind::List, vec![value], 1).items
    }

    /// Text that ends with a zero.
    pub fn name(&mut self, text: &str) -> *const c_char {
        self.text(Kind::Text, text).data.cast()
    }

    fn sequence(&mut self, kind: Kind, items: &[Value<'_>]) -> Result<abi::Value, Error> {
        let items = self.values(items)?;
        let count = items.len();
        Ok(self.of_items(kind, items, count))
    }

    /// The room of a vector stays where it is when the vector moves.
    fn of_items(&mut self, kind: Kind, items: Vec<abi::Value>, count: usize) -> abi::Value {
        let value = abi::Value { kind: kind as i32, items: items.as_ptr(), count, ..abi::Value::NONE };
        self.items.push(items);
        value
    }

    fn array(&mut self, kind: Kind, array: &Array<'_>) -> abi::Value {
        let typed = self.typed(kind, &array.dtype, &array.shape);
        abi::Value { data: array.data.as_ptr().cast(), size: array.data.len(), ..typed }
    }

    fn typed(&mut self, kind: Kind, dtype: &str, shape: &[u64]) -> abi::Value {
        let (dtype, shape) = (Context::named(dtype), shape.to_vec());
        let value = abi::Value {
            kind: kind as i32,
            dtype: dtype.as_ptr(),
            dimensions: shape.len(),
            shape: shape.as_ptr(),
            ..abi::Value::NONE
        };
        self.texts.push(dtype);
        self.shapes.push(shape);
        value
    }

    fn text(&mut self, kind: Kind, text: &str) -> abi::Value {
        // A zero within it ends it for C.
        let copy = CString::new(text).or_else(|error| CString::new(&text[..error.nul_position()]));
        let copy = copy.unwrap_or_default();
        let size = copy.as_bytes().len();
        let value = abi::Value { kind: kind as i32, data: copy.as_ptr().cast(), size, ..abi::Value::NONE };
        self.texts.push(copy);
        value
    }
}

/// Ours, of what a library made.
///
/// # Safety
///
/// Pointers of the value lead to as much as it says, for `'v`.
pub unsafe fn read<'v>(value: &abi::Value) -> Result<Value<'v>, Error> {
    // SAFETY: as is promised.
    unsafe { read_within(value, DEPTH) }
}

/// # Safety
///
/// As of [`read`].
unsafe fn read_within<'v>(value: &abi::Value, depth: usize) -> Result<Value<'v>, Error> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(Error::message(format!("a value is nested more than {DEPTH} deep")));
    };
    // SAFETY: as is promised, for each of these.
    let bytes = || unsafe { part(value.data, value.size) };
    let text = || {
        let text =
            std::str::from_utf8(bytes()?).map_err(|_| Error::message("text is not UTF-8; send it as bytes"));
        text.map(Cow::Borrowed)
    };
    // SAFETY: as is promised.
    let items = |count: usize| unsafe {
        let items: &[abi::Value] = part(value.items.cast(), count)?;
        items.iter().map(|item| read_within(item, depth)).collect::<Result<Vec<_>, _>>()
    };
    // SAFETY: as is promised.
    let array = || unsafe {
        let array = Array {
            dtype: dtype(value)?,
            shape: shape(value)?,
            data: Cow::Borrowed(part(value.data, value.size)?),
        };
        array.check().map(|()| array)
    };
    let is = |kind: Kind| value.kind == kind as i32;
    Ok(match () {
        () if is(Kind::None) => Value::None,
        () if is(Kind::Boolean) => Value::Boolean(value.integer != 0),
        () if is(Kind::Integer) => Value::Integer(value.integer.into()),
        () if is(Kind::Real) => Value::Real(value.real),
        () if is(Kind::Complex) => Value::Complex(value.real, value.imaginary),
        () if is(Kind::Text) => Value::Text(text()?),
        () if is(Kind::Bytes) => Value::Bytes(Cow::Borrowed(bytes()?)),
        () if is(Kind::Date) => Value::Date(text()?),
        () if is(Kind::List) => Value::List(items(value.count)?),
        () if is(Kind::Tuple) => Value::Tuple(items(value.count)?),
        () if is(Kind::Set) => Value::Set(items(value.count)?),
        () if is(Kind::FrozenSet) => Value::FrozenSet(items(value.count)?),
        () if is(Kind::Dictionary) => {
            let mut both = items(value.count.saturating_mul(2))?.into_iter();
            let pairs = std::iter::from_fn(|| Some((both.next()?, both.next()?)));
            Value::Dictionary(pairs.collect())
        }
        () if is(Kind::Array) => Value::Array(array()?),
        () if is(Kind::Scalar) => Value::Scalar(array()?),
        // SAFETY: as is promised.
        () if is(Kind::Reference) => Value::Reference(unsafe { reference(value) }?),
        () if is(Kind::Device) => {
            return Err(Error::message(
                "memory on the GPU cannot be sent; copy it to the host, or put it (rekindle_put)",
            ));
        }
        () => {
            return Err(Error::message(format!(
                "a value has the kind {}; rekindle.h has those that there are",
                value.kind
            )));
        }
    })
}

/// # Safety
///
/// As of [`read`].
pub unsafe fn reference(value: &abi::Value) -> Result<Reference, Error> {
    if value.kind != Kind::Reference as i32 {
        return Err(Error::argument("the value is no reference; give one that was put"));
    }
    // SAFETY: as is promised.
    unsafe {
        let id = String::from_utf8_lossy(part(value.data, value.size)?).into_owned();
        let dtype = dtype(value)?.into_owned();
        Ok(Reference { id, dtype, shape: shape(value)?, given: value.integer != 0 })
    }
}

/// # Safety
///
/// As of [`read`].
pub unsafe fn dtype<'v>(value: &abi::Value) -> Result<Cow<'v, str>, Error> {
    if value.dtype.is_null() {
        return Err(Error::message("an array has no dtype; give one such as \"float32\""));
    }
    // SAFETY: as is promised; a dtype ends with a zero.
    let dtype: &'v CStr = unsafe { CStr::from_ptr(value.dtype) };
    Ok(dtype.to_string_lossy())
}

/// # Safety
///
/// As of [`read`].
pub unsafe fn shape(value: &abi::Value) -> Result<Vec<u64>, Error> {
    // SAFETY: as is promised.
    Ok(unsafe { part::<u64>(value.shape.cast(), value.dimensions) }?.to_vec())
}

/// # Safety
///
/// So many elements lie there for `'v`, if the pointer is not null.
unsafe fn part<'v, T>(data: *const c_void, count: usize) -> Result<&'v [T], Error> {
    let data = data.cast::<T>();
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() || !data.is_aligned() {
        return Err(Error::message(format!(
            "a value has {count} bytes or elements, and says nowhere where they lie"
        )));
    }
    // SAFETY: as is promised, and checked as far as it can be.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}
