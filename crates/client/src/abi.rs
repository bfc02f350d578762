//! Arguments as C passes them. The program promises what the driver's interface asks: that a pointer which is not null
//! points to what the function's documentation says. These types hold that promise; everything above them is safe.

use std::ffi::{CStr, c_char};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CuResult};

pub type Result<T> = std::result::Result<T, CuResult>;

/// An opaque handle: a stream, an event, a context, ...
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Handle(pub usize);

impl Handle {
    pub const NULL: Handle = Handle(0);

    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl<T> From<*mut T> for Handle {
    fn from(pointer: *mut T) -> Handle {
        Handle(pointer as usize)
    }
}

/// Where the caller wants a value, or an array.
#[repr(transparent)]
pub struct Out<T>(pub *mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Fails where the caller gave no place: ask before doing what cannot be undone.
    pub fn check(self) -> Result<()> {
        if self.is_null() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    pub fn put(self, value: T) -> Result<()> {
        self.check()?;
        self.offer(value);
        Ok(())
    }

    /// Writes the value if the caller wants it.
    pub fn offer(self, value: T) {
        if !self.is_null() {
            // SAFETY: see the module's documentation.
            unsafe { self.0.write(value) };
        }
    }

    /// Writes the first `count` of the values.
    pub fn fill(self, count: usize, values: impl IntoIterator<Item = T>) {
        for (index, value) in values.into_iter().take(count).enumerate() {
            // SAFETY: the caller says that there is room for `count` values.
            unsafe { self.0.add(index).write(value) };
        }
    }

    /// What is there now, for arguments that go both ways.
    pub fn current(self) -> Result<T>
    where
        T: Copy,
    {
        self.check()?;
        // SAFETY: see the module's documentation.
        Ok(unsafe { self.0.read() })
    }
}

/// A value or an array of the caller's.
#[repr(transparent)]
pub struct In<T>(pub *const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: see the module's documentation; C does not always align.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub fn slice(&self, count: usize) -> Result<&[T]> {
        if count == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller says that there are `count` values.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

/// A NUL-terminated name.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(pub *const c_char);

impl Text {
    pub fn get(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: see the module's documentation.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| CUDA_ERROR_INVALID_VALUE)
    }

    /// The text, or nothing for a null pointer.
    pub fn or_empty(&self) -> &str {
        if self.0.is_null() { "" } else { self.get().unwrap_or("") }
    }
}

/// Copies a string into a caller's buffer of `length` bytes, cut to fit, with a NUL.
pub fn put_text(buffer: Out<u8>, length: i32, text: &str) -> Result<()> {
    buffer.check()?;
    let length = usize::try_from(length).ok().filter(|l| *l > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let bytes = text.bytes().take(length - 1).chain([0]);
    buffer.fill(length, bytes);
    Ok(())
}
