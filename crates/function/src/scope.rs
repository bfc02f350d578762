//! What a function in Rust has in its hands: the instance's stream, data, arrays that are handed on, and a call's arguments.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::time::Duration;

use crate::abi;
use crate::driver::{Stream, driver};
use crate::error::{Error, Result};
use crate::message;
use crate::value::{Array, Pairs, Reference, Value};

/// How long an array that was put is kept after its last use.
pub const EXPIRY: Duration = Duration::from_secs(300);

/// One of the runner's threads, for as long as a hook has it.
pub struct Scope<'s> {
    call: *mut abi::Call,
    hook: PhantomData<&'s ()>,
}

/// Memory on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub address: u64,
    pub bytes: u64,
}

/// An array that was gotten, mapped for as long as this is kept. It is only to be read.
#[derive(Debug)]
pub struct Mapped {
    pub range: Range,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Without a driver nothing is mapped.
        if let Ok(driver) = driver() {
            let _ = driver.free(self.range.address);
        }
    }
}

impl<'s> Scope<'s> {
    /// # Safety
    ///
    /// The call is the runner's, and lives for `'s`.
    pub(crate) unsafe fn new(call: *mut abi::Call) -> Scope<'s> {
        Scope { call, hook: PhantomData }
    }

    fn api(&self) -> &'s abi::Api {
        // SAFETY: the runner's table lives for as long as the runner.
        unsafe { &*(*self.call).api }
    }

    /// The instance's own stream, which waits for no other. In setup and teardown it is the runner's.
    pub fn stream(&self) -> Stream {
        // SAFETY: the call is the runner's.
        Stream(unsafe { (self.api().stream)(self.call) })
    }

    /// Waits for the work of the stream.
    pub fn synchronize(&self) -> Result<()> {
        Ok(driver()?.synchronize(self.stream())?)
    }

    /// A line of the instance's log.
    pub fn log(&self, line: &str) {
        let line = CString::new(line.replace('\0', "\\0")).unwrap_or_default();
        // SAFETY: as above; the text ends with a zero.
        unsafe { (self.api().log)(self.call, line.as_ptr()) }
    }

    /// What this takes is a span of the request's trace, if that is followed. Names have up to 64 letters, digits, blanks and
    /// `.:/_-`.
    pub fn span<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        // SAFETY: the call is the runner's.
        let api = unsafe { (*self.call).api };
        // SAFETY: the table says how far it goes: that of an earlier runner ends before spans.
        let begin = unsafe {
            if (*api).size > offset_of!(abi::Api, span_end) { ((*api).span_begin)(self.call) } else { 0 }
        };
        let done = work();
        if begin != 0 {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: as above; the text ends with a zero.
            unsafe { ((*api).span_end)(self.call, name.as_ptr(), begin) }
        }
        done
    }

    /// Declared data, at once: its bytes may still be on their way, which kernels wait for. With `wait` they are there.
    pub fn data(&self, name: &str, wait: bool) -> Result<Range> {
        let named = CString::new(name).map_err(|_| Error::argument("a name of data has no zeros"))?;
        // SAFETY: as above. What is returned lives as long as the call.
        match unsafe { (self.api().data)(self.call, named.as_ptr(), wait.into()).as_ref() } {
            Some(found) => Ok(Range { address: found.integer as u64, bytes: found.size as u64 }),
            None => Err(self.problem()),
        }
    }

    /// Keeps a copy of an array on the GPU for other functions. It waits for the GPU's work.
    pub fn put(&self, address: u64, dtype: &str, shape: &[u64], expiry: Duration) -> Result<Reference> {
        let reference =
            Reference { id: String::new(), dtype: dtype.to_string(), shape: shape.to_vec(), given: false };
        let bytes = reference.bytes()?;
        let id = self.span("arrays", || driver()?.put(address, bytes, expiry.as_millis() as u64))?;
        Ok(Reference { id, ..reference })
    }

    /// Maps an array that was put.
    pub fn get(&self, reference: &Reference) -> Result<Mapped> {
        let bytes = reference.bytes()?;
        let address = self.span("arrays", || driver()?.get(&reference.id, bytes))?;
        Ok(Mapped { range: Range { address, bytes } })
    }

    /// Nobody gets it from now on.
    pub fn drop(&self, reference: &Reference) -> Result<()> {
        driver()?.drop_named(&reference.id, false)
    }

    /// What the runner is to be told of a failure.
    pub(crate) fn fail(&self, error: &Error) -> i32 {
        let words = |text: &str| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
        let (kind, text) = (words(&error.kind), words(&error.text));
        // SAFETY: the call is the runner's, and both texts end with a zero.
        unsafe { (self.api().fail)(self.call, kind.as_ptr(), text.as_ptr()) }
    }

    /// What the runner has noted.
    fn problem(&self) -> Error {
        let mut kind = std::ptr::null();
        // SAFETY: as above; what is given ends with a zero, and lives as long as the call.
        unsafe {
            let text = (self.api().problem)(self.call, &mut kind);
            if text.is_null() || kind.is_null() {
                return Error::from("it failed, and nobody said why");
            }
            let words = |text| CStr::from_ptr(text).to_string_lossy().into_owned();
            Error::new(words(kind), words(text))
        }
    }

    pub(crate) fn message(&self) -> &'s [u8] {
        let mut size = 0;
        // SAFETY: the call is the runner's, whose table says how far it goes: that of an earlier one ends before `message_in`. The
        // message lies there for as long as the call has it.
        unsafe {
            let api = (*self.call).api;
            let data = if (*api).size > offset_of!(abi::Api, message_in) {
                ((*api).message_in)(self.call, message::VERSION, &mut size)
            } else {
                ((*api).message)(self.call, &mut size)
            };
            if data.is_null() { &[] } else { std::slice::from_raw_parts(data, size) }
        }
    }

    pub(crate) fn reply(&self, message: &[u8]) -> i32 {
        // SAFETY: so many bytes can be read.
        unsafe { (self.api().reply)(self.call, message.as_ptr(), message.len()) }
    }

    /// As the driver has the instance's stream, for other libraries.
    pub fn raw_stream(&self) -> *mut c_void {
        self.stream().0
    }
}

/// A call: what it was given, and all that a [`Scope`] has.
pub struct Call<'m> {
    pub scope: Scope<'m>,
    pub arguments: Vec<Value<'m>>,
    pub keywords: Pairs<'m>,
}

impl<'m> std::ops::Deref for Call<'m> {
    type Target = Scope<'m>;

    fn deref(&self) -> &Scope<'m> {
        &self.scope
    }
}

impl<'m> Call<'m> {
    pub fn keyword(&self, name: &str) -> Option<&Value<'m>> {
        let is_it = |key: &Value<'m>| matches!(key, Value::Text(text) if text == name);
        self.keywords.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
    }

    pub fn argument(&self, index: usize) -> Result<&Value<'m>> {
        self.arguments.get(index).ok_or_else(|| {
            Error::argument(format!(
                "{} arguments were given, and {} are needed",
                self.arguments.len(),
                index + 1
            ))
        })
    }

    pub fn real(&self, index: usize) -> Result<f64> {
        match self.argument(index)? {
            Value::Real(value) => Ok(*value),
            Value::Integer(value) => Ok(*value as f64),
            other => Err(wrong(index, other, "a number")),
        }
    }

    pub fn integer(&self, index: usize) -> Result<i64> {
        match self.argument(index)? {
            Value::Integer(value) => i64::try_from(*value).map_err(|_| {
                Error::new("OverflowError", format!("argument {index} is {value}, more than 64 bits hold"))
            }),
            other => Err(wrong(index, other, "an integer")),
        }
    }

    pub fn text(&self, index: usize) -> Result<&str> {
        match self.argument(index)? {
            Value::Text(text) => Ok(text),
            other => Err(wrong(index, other, "text")),
        }
    }

    pub fn array(&self, index: usize) -> Result<&Array<'m>> {
        match self.argument(index)? {
            Value::Array(array) => Ok(array),
            other => Err(wrong(index, other, "an array")),
        }
    }

    pub fn reference(&self, index: usize) -> Result<&Reference> {
        match self.argument(index)? {
            Value::Reference(reference) => Ok(reference),
            other => Err(wrong(index, other, "a reference")),
        }
    }
}

fn wrong(index: usize, found: &Value<'_>, expected: &str) -> Error {
    Error::argument(format!("argument {index} is {}; give {expected}", found.kind()))
}
