//! Messages, as the Python package has them: a tree in msgpack, and behind it the bytes of its arrays.
//!
//! ```text
//!  "RKM1"  size of the tree (u32)  tree ┄ array ┄ array ┄      each ┄ fills up to a multiple of 64 bytes
//!  tree = [value, [bytes of each array]]
//! ```
//!
//! Of messages there are versions. In the first there are no arrays of a caller's GPU ([`ON_GPU`]), nor is there said of a call
//! whether its caller holds the arguments, and whose arrays it has.

use std::borrow::Cow;
use std::cell::Cell;

use rmp::encode;
use rmpv::ValueRef;

use crate::dtype;
use crate::error::{Error, Result};
use crate::value::{Array, Reference, Value};

/// The latest that this crate reads; it writes the first.
pub const VERSION: u32 = 2;

const MAGIC: &[u8; 4] = b"RKM1";
const HEAD: usize = 8;
const ALIGNMENT: usize = 64;
/// How deep values may be nested.
const DEPTH: usize = 64;

/// Extensions of msgpack.
const ARRAY: i8 = 0;
const SCALAR: i8 = 1;
const TUPLE: i8 = 2;
const SET: i8 = 3;
const FROZEN_SET: i8 = 4;
const COMPLEX: i8 = 5;
const INTEGER: i8 = 6;
const DATE: i8 = 7;
const REFERENCE: i8 = 8;
/// An array that lay on the caller's GPU, by its bytes.
const ON_GPU: i8 = 9;

/// The value of a message, which keeps its text, bytes and arrays.
pub fn decode(message: &[u8]) -> Result<Value<'_>> {
    Ok(decode_versioned(message)?.0)
}

/// The value, and the first version that has all that is in it.
pub fn decode_versioned(message: &[u8]) -> Result<(Value<'_>, u32)> {
    let size = match message.get(..HEAD) {
        Some([b'R', b'K', b'M', b'1', size @ ..]) => {
            u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize
        }
        _ => return Err(unknown(message)),
    };
    let Some(tree) = message[HEAD..].get(..size) else { return Err(unknown(message)) };
    let [value, sizes] = pair(read(tree)?)?;
    let ValueRef::Array(sizes) = sizes else { return Err(not_whole("its arrays have no sizes")) };
    let (mut arrays, mut end) = (Vec::new(), HEAD + size);
    for size in sizes {
        let start = end.next_multiple_of(ALIGNMENT);
        let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
        let array = size.and_then(|size| message.get(start..start.checked_add(size)?));
        let Some(array) = array else { return Err(not_whole("it ends within an array")) };
        end = start + array.len();
        arrays.push(array);
    }
    if end != message.len() {
        return Err(not_whole(&format!("it should have {end} bytes")));
    }
    let reader = Reader { arrays, version: Cell::new(1) };
    let value = reader.value(value, DEPTH)?;
    Ok((value, reader.version.get()))
}

/// The message of a value.
pub fn encode(value: &Value<'_>) -> Result<Vec<u8>> {
    let mut arrays = Vec::new();
    let mut tree = vec![0x92];
    write(&mut tree, value, &mut arrays)?;
    length(encode::write_array_len(&mut tree, count(arrays.len())?))?;
    for array in &arrays {
        length(encode::write_uint(&mut tree, array.len() as u64))?;
    }
    let room: usize = arrays.iter().map(|array| array.len() + ALIGNMENT).sum();
    let mut message = Vec::with_capacity(HEAD + tree.len() + room);
    message.extend_from_slice(MAGIC);
    message.extend_from_slice(&count(tree.len())?.to_le_bytes());
    message.append(&mut tree);
    for array in arrays {
        message.resize(message.len().next_multiple_of(ALIGNMENT), 0);
        message.extend_from_slice(array);
    }
    Ok(message)
}

struct Reader<'m> {
    arrays: Vec<&'m [u8]>,
    version: Cell<u32>,
}

impl<'m> Reader<'m> {
    fn value(&self, value: ValueRef<'m>, depth: usize) -> Result<Value<'m>> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(not_whole(&format!("its values are nested more than {DEPTH} deep")));
        };
        Ok(match value {
            ValueRef::Nil => Value::None,
            ValueRef::Boolean(value) => Value::Boolean(value),
            ValueRef::Integer(number) => {
                let value = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
                Value::Integer(value.ok_or_else(|| not_whole("it has an integer of no size"))?)
            }
            ValueRef::F32(value) => Value::Real(value.into()),
            ValueRef::F64(value) => Value::Real(value),
            ValueRef::String(text) => {
                Value::Text(text.into_str().ok_or_else(|| not_whole("it has text that is not UTF-8"))?.into())
            }
            ValueRef::Binary(bytes) => Value::Bytes(bytes.into()),
            ValueRef::Array(items) => Value::List(self.values(items, depth)?),
            ValueRef::Map(pairs) => {
                let pairs = pairs
                    .into_iter()
                    .map(|(key, value)| Ok((self.value(key, depth)?, self.value(value, depth)?)));
                Value::Dictionary(pairs.collect::<Result<_>>()?)
            }
            ValueRef::Ext(code, data) => self.extension(code, data, depth)?,
        })
    }

    fn values(&self, items: Vec<ValueRef<'m>>, depth: usize) -> Result<Vec<Value<'m>>> {
        items.into_iter().map(|item| self.value(item, depth)).collect()
    }

    fn extension(&self, code: i8, data: &'m [u8], depth: usize) -> Result<Value<'m>> {
        let sequence = || match read(data)? {
            ValueRef::Array(items) => self.values(items, depth),
            _ => Err(not_whole("a sequence of it is none")),
        };
        Ok(match code {
            TUPLE => Value::Tuple(sequence()?),
            SET => Value::Set(sequence()?),
            FROZEN_SET => Value::FrozenSet(sequence()?),
            COMPLEX => {
                let [real, imaginary] = pair(read(data)?)?;
                let part = |value: ValueRef<'_>| value_as_f64(&value);
                Value::Complex(part(real)?, part(imaginary)?)
            }
            INTEGER => Value::Integer(integer(data)?),
            DATE => Value::Date(text(data)?.into()),
            REFERENCE => {
                let ValueRef::Array(fields) = read(data)? else {
                    return Err(not_whole("a reference of it is none"));
                };
                reference(&fields).map(Value::Reference)?
            }
            ARRAY | SCALAR | ON_GPU => {
                let array = self.array(read(data)?)?;
                if code == ON_GPU {
                    self.version.set(2);
                }
                if code == SCALAR { Value::Scalar(array) } else { Value::Array(array) }
            }
            _ => {
                let later = format!(
                    "it has an extension {code}, which is none up to version {VERSION}; build and deploy what was called again"
                );
                return Err(not_whole(&later));
            }
        })
    }

    fn array(&self, fields: ValueRef<'m>) -> Result<Array<'m>> {
        let found = match fields {
            ValueRef::Array(fields) => fields,
            _ => Vec::new(),
        };
        let [ValueRef::Integer(index), ValueRef::String(description), ValueRef::Array(shape)] = &found[..]
        else {
            return Err(not_whole("an array of it is none"));
        };
        let data = index.as_u64().and_then(|index| self.arrays.get(usize::try_from(index).ok()?));
        let data = data.ok_or_else(|| not_whole("it lacks an array"))?;
        let description = description.as_str().ok_or_else(|| not_whole("an array's type is no text"))?;
        let array = Array {
            dtype: Cow::Owned(dtype::name(description).into_owned()),
            shape: lengths(shape)?,
            data: Cow::Borrowed(data),
        };
        array.check()?;
        Ok(array)
    }
}

fn reference(fields: &[ValueRef<'_>]) -> Result<Reference> {
    let [ValueRef::String(id), ValueRef::String(dtype), ValueRef::Array(shape), ValueRef::Boolean(given)] =
        fields
    else {
        return Err(not_whole("a reference of it is none"));
    };
    let word = |text: &rmpv::Utf8StringRef<'_>| {
        text.as_str().map(str::to_string).ok_or_else(|| not_whole("a reference's name is no text"))
    };
    Ok(Reference { id: word(id)?, dtype: word(dtype)?, shape: lengths(shape)?, given: *given })
}

fn lengths(shape: &[ValueRef<'_>]) -> Result<Vec<u64>> {
    let length = |length: &ValueRef<'_>| length.as_u64().ok_or_else(|| not_whole("a shape of it is none"));
    shape.iter().map(length).collect()
}

fn value_as_f64(value: &ValueRef<'_>) -> Result<f64> {
    match value {
        ValueRef::F64(value) => Ok(*value),
        _ => Err(not_whole("a complex number of it is none")),
    }
}

/// Little-endian, in two's complement.
fn integer(data: &[u8]) -> Result<i128> {
    if data.is_empty() || data.len() > 16 {
        return Err(Error::message(format!(
            "an integer has {} bytes, and functions without Python take those of 16 at most",
            data.len()
        )));
    }
    let negative = data[data.len() - 1] & 0x80 != 0;
    let mut bytes = [if negative { 0xff } else { 0 }; 16];
    bytes[..data.len()].copy_from_slice(data);
    Ok(i128::from_le_bytes(bytes))
}

fn text(data: &[u8]) -> Result<&str> {
    std::str::from_utf8(data).map_err(|_| not_whole("it has a date that is no text"))
}

fn read(tree: &[u8]) -> Result<ValueRef<'_>> {
    let mut rest = tree;
    // Each value of ours is some of msgpack's; how deep ours are is counted where they are made.
    let value = rmpv::decode::read_value_ref_with_max_depth(&mut rest, 4 * DEPTH)
        .map_err(|error| not_whole(&error.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(not_whole("something stands behind a value")) }
}

fn pair(value: ValueRef<'_>) -> Result<[ValueRef<'_>; 2]> {
    match value {
        ValueRef::Array(items) => items.try_into().map_err(|_| not_whole("it is no pair")),
        _ => Err(not_whole("it is no pair")),
    }
}

fn unknown(message: &[u8]) -> Error {
    let begin = String::from_utf8_lossy(&message[..message.len().min(HEAD)]).into_owned();
    Error::message(format!(
        "{} bytes that begin with {begin:?} are no whole message of Rekindle's functions; send one, as the package rekindle does",
        message.len()
    ))
}

fn not_whole(why: &str) -> Error {
    Error::message(format!("a message cannot be understood: {why}"))
}

fn write<'v>(tree: &mut Vec<u8>, value: &'v Value<'_>, arrays: &mut Vec<&'v [u8]>) -> Result<()> {
    match value {
        Value::None => tree.push(0xc0),
        Value::Boolean(value) => tree.push(0xc2 + u8::from(*value)),
        Value::Integer(value) => write_integer(tree, *value)?,
        Value::Real(value) => length(encode::write_f64(tree, *value))?,
        Value::Complex(real, imaginary) => {
            let mut data = vec![0x92];
            length(encode::write_f64(&mut data, *real))?;
            length(encode::write_f64(&mut data, *imaginary))?;
            extension(tree, COMPLEX, &data)?;
        }
        Value::Text(text) => {
            count(text.len())?;
            length(encode::write_str(tree, text))?;
        }
        Value::Bytes(bytes) => {
            count(bytes.len())?;
            length(encode::write_bin(tree, bytes))?;
        }
        Value::Date(date) => extension(tree, DATE, date.as_bytes())?,
        Value::List(items) => write_items(tree, items, arrays)?,
        Value::Tuple(items) => write_sequence(tree, TUPLE, items, arrays)?,
        Value::Set(items) => write_sequence(tree, SET, items, arrays)?,
        Value::FrozenSet(items) => write_sequence(tree, FROZEN_SET, items, arrays)?,
        Value::Dictionary(pairs) => {
            length(encode::write_map_len(tree, count(pairs.len())?))?;
            for (key, value) in pairs {
                write(tree, key, arrays)?;
                write(tree, value, arrays)?;
            }
        }
        Value::Array(array) => write_array(tree, ARRAY, array, arrays)?,
        Value::Scalar(array) => write_array(tree, SCALAR, array, arrays)?,
        Value::Reference(reference) => {
            let mut data = vec![0x94];
            length(encode::write_str(&mut data, &reference.id))?;
            length(encode::write_str(&mut data, &reference.dtype))?;
            write_shape(&mut data, &reference.shape)?;
            data.push(0xc2 + u8::from(reference.given));
            extension(tree, REFERENCE, &data)?;
        }
    }
    Ok(())
}

fn write_items<'v>(tree: &mut Vec<u8>, items: &'v [Value<'_>], arrays: &mut Vec<&'v [u8]>) -> Result<()> {
    length(encode::write_array_len(tree, count(items.len())?))?;
    items.iter().try_for_each(|item| write(tree, item, arrays))
}

fn write_sequence<'v>(
    tree: &mut Vec<u8>,
    code: i8,
    items: &'v [Value<'_>],
    arrays: &mut Vec<&'v [u8]>,
) -> Result<()> {
    let mut data = Vec::new();
    write_items(&mut data, items, arrays)?;
    extension(tree, code, &data)
}

fn write_array<'v>(
    tree: &mut Vec<u8>,
    code: i8,
    array: &'v Array<'_>,
    arrays: &mut Vec<&'v [u8]>,
) -> Result<()> {
    array.check()?;
    let mut data = vec![0x93];
    length(encode::write_uint(&mut data, arrays.len() as u64))?;
    length(encode::write_str(&mut data, &dtype::description(&array.dtype)))?;
    write_shape(&mut data, &array.shape)?;
    arrays.push(&array.data);
    extension(tree, code, &data)
}

fn write_shape(data: &mut Vec<u8>, shape: &[u64]) -> Result<()> {
    length(encode::write_array_len(data, count(shape.len())?))?;
    shape.iter().try_for_each(|size| length(encode::write_uint(data, *size)))
}

fn write_integer(tree: &mut Vec<u8>, value: i128) -> Result<()> {
    if let Ok(value) = i64::try_from(value) {
        length(encode::write_sint(tree, value))
    } else if let Ok(value) = u64::try_from(value) {
        length(encode::write_uint(tree, value))
    } else {
        extension(tree, INTEGER, &value.to_le_bytes())
    }
}

fn extension(tree: &mut Vec<u8>, code: i8, data: &[u8]) -> Result<()> {
    length(encode::write_ext_meta(tree, count(data.len())?, code))?;
    tree.extend_from_slice(data);
    Ok(())
}

/// Memory takes whatever is written to it.
fn length<T, E: std::fmt::Display>(written: std::result::Result<T, E>) -> Result<()> {
    written.map(|_| ()).map_err(|error| Error::message(format!("a value cannot be sent: {error}")))
}

fn count(length: usize) -> Result<u32> {
    u32::try_from(length).map_err(|_| {
        Error::message(format!("a value of {length} bytes or elements cannot be sent; send it as an array"))
    })
}

#[cfg(test)]
mod tests;
