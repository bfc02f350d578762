//! Arguments and results.

use std::borrow::Cow;

use crate::dtype::{self, Element};
use crate::error::{Error, Result};

/// What the Python package sends and takes. Text, bytes and arrays may lie in the message that they came in.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'m> {
    None,
    Boolean(bool),
    Integer(i128),
    Real(f64),
    Complex(f64, f64),
    Text(Cow<'m, str>),
    Bytes(Cow<'m, [u8]>),
    /// In ISO 8601.
    Date(Cow<'m, str>),
    List(Vec<Value<'m>>),
    Tuple(Vec<Value<'m>>),
    Set(Vec<Value<'m>>),
    FrozenSet(Vec<Value<'m>>),
    Dictionary(Pairs<'m>),
    Array(Array<'m>),
    /// A number of NumPy's: an array without dimensions.
    Scalar(Array<'m>),
    Reference(Reference),
}

/// Keys and values.
pub type Pairs<'m> = Vec<(Value<'m>, Value<'m>)>;

/// An array in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array<'m> {
    /// `float32` and so on; what has no such name is as NumPy describes it.
    pub dtype: Cow<'m, str>,
    pub shape: Vec<u64>,
    pub data: Cow<'m, [u8]>,
}

/// An array on a GPU that was put: small, and sent as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub id: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    /// A workflow's: it is used up when the call that it was given to has a result.
    pub given: bool,
}

impl Array<'static> {
    /// A copy of these elements.
    pub fn of<T: Element>(elements: &[T], shape: &[u64]) -> Array<'static> {
        Array { dtype: T::NAME.into(), shape: shape.to_vec(), data: Cow::Owned(bytes_of(elements).to_vec()) }
    }
}

impl Array<'_> {
    /// Its elements, copied if they do not lie as the type wants it.
    pub fn elements<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        if self.dtype != T::NAME {
            return Err(Error::argument(format!("the array is of {}; give one of {}", self.dtype, T::NAME)));
        }
        let count = self.data.len() / size_of::<T>();
        if self.data.as_ptr().cast::<T>().is_aligned() {
            // SAFETY: so many elements lie there, aligned, for as long as the data is borrowed; all bytes are elements.
            let elements = unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast::<T>(), count) };
            return Ok(Cow::Borrowed(elements));
        }
        let mut elements = Vec::with_capacity(count);
        // SAFETY: the room is for `count` elements, which are all written, and all bytes are elements.
        unsafe {
            let room: *mut T = elements.as_mut_ptr();
            std::ptr::copy_nonoverlapping(self.data.as_ptr(), room.cast::<u8>(), count * size_of::<T>());
            elements.set_len(count);
        }
        Ok(Cow::Owned(elements))
    }

    /// Says what is wrong if its bytes are not those of its type and shape.
    pub fn check(&self) -> Result<()> {
        let expected = dtype::bytes(&self.dtype, &self.shape);
        if dtype::size(&self.dtype).is_some() && expected != Some(self.data.len() as u64) {
            return Err(Error::message(format!(
                "an array of {} and the shape {:?} has {} bytes, which are not as many as that needs",
                self.dtype,
                self.shape,
                self.data.len()
            )));
        }
        Ok(())
    }
}

impl Reference {
    pub fn bytes(&self) -> Result<u64> {
        dtype::bytes(&self.dtype, &self.shape).ok_or_else(|| {
            Error::message(format!(
                "a reference of {} and the shape {:?} has no size",
                self.dtype, self.shape
            ))
        })
    }
}

fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an element has no bytes that are none of its value, and all of them are borrowed.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

impl Value<'_> {
    /// What it is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Boolean(_) => "a boolean",
            Value::Integer(_) => "an integer",
            Value::Real(_) => "a number",
            Value::Complex(..) => "a complex number",
            Value::Text(_) => "text",
            Value::Bytes(_) => "bytes",
            Value::Date(_) => "a date",
            Value::List(_) => "a list",
            Value::Tuple(_) => "a tuple",
            Value::Set(_) | Value::FrozenSet(_) => "a set",
            Value::Dictionary(_) => "a dictionary",
            Value::Array(_) => "an array",
            Value::Scalar(_) => "a scalar",
            Value::Reference(_) => "a reference",
        }
    }
}

impl From<()> for Value<'_> {
    fn from((): ()) -> Self {
        Value::None
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Value::Boolean(value)
    }
}

macro_rules! integers {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Value<'_> {
            fn from(value: $kind) -> Self {
                Value::Integer(value.into())
            }
        })*
    };
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

impl From<f64> for Value<'_> {
    fn from(value: f64) -> Self {
        Value::Real(value)
    }
}

impl From<String> for Value<'_> {
    fn from(value: String) -> Self {
        Value::Text(value.into())
    }
}

impl<'m> From<&'m str> for Value<'m> {
    fn from(value: &'m str) -> Self {
        Value::Text(value.into())
    }
}

impl<'m> From<Array<'m>> for Value<'m> {
    fn from(value: Array<'m>) -> Self {
        Value::Array(value)
    }
}

impl From<Reference> for Value<'_> {
    fn from(value: Reference) -> Self {
        Value::Reference(value)
    }
}

impl<'m> From<Vec<Value<'m>>> for Value<'m> {
    fn from(value: Vec<Value<'m>>) -> Self {
        Value::List(value)
    }
}
