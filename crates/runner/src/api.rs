//! What a library may call; `rekindle.h` says what each does.

use std::ffi::{CStr, c_char, c_int, c_void};

use rekindle_function::abi::{self, Api, Call, Kind};
use rekindle_function::driver::driver;
use rekindle_function::{Error, Reference, dtype, message};

use crate::context::{Context, HookResult};
use crate::{trace, tree};

pub static API: Api = Api {
    size: size_of::<Api>(),
    stream,
    log,
    fail,
    message: message_of,
    reply,
    arguments,
    keyword,
    give,
    put,
    get,
    drop: drop_reference,
    data,
    problem,
    message_in,
    span_begin,
    span_end,
};

/// # Safety
///
/// The text ends with a zero, or is null.
unsafe fn words<'t>(text: *const c_char) -> std::borrow::Cow<'t, str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: as is promised.
    let text: &'t CStr = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy()
}

unsafe extern "C" fn stream(call: *mut Call) -> *mut c_void {
    // SAFETY: a library has the pointer of the runner, in the thread that it was given it.
    unsafe { Context::of(call) }.stream.0
}

unsafe extern "C" fn log(call: *mut Call, text: *const c_char) {
    // SAFETY: as above.
    unsafe { Context::of(call).log(&words(text)) }
}

unsafe extern "C" fn fail(call: *mut Call, kind: *const c_char, text: *const c_char) -> c_int {
    // SAFETY: as above.
    let (context, kind, text) = unsafe { (Context::of(call), words(kind), words(text)) };
    context.fail(Error::new(kind.into_owned(), text))
}

/// For libraries that were built before they could say what they read.
unsafe extern "C" fn message_of(call: *mut Call, size: *mut usize) -> *const u8 {
    // SAFETY: as of [`message_in`].
    unsafe { message_in(call, 1, size) }
}

unsafe extern "C" fn message_in(call: *mut Call, version: u32, size: *mut usize) -> *const u8 {
    // SAFETY: as above; the place can be written to.
    unsafe {
        let message = Context::of(call).message_in(version);
        *size = message.len();
        message.as_ptr()
    }
}

unsafe extern "C" fn reply(call: *mut Call, data: *const u8, size: usize) -> c_int {
    // SAFETY: as above; so many bytes can be read.
    let (context, message) = unsafe { (Context::of(call), std::slice::from_raw_parts(data, size)) };
    context.said = HookResult::Reply(message.to_vec());
    abi::DONE
}

unsafe extern "C" fn span_begin(call: *mut Call) -> u64 {
    // SAFETY: as above.
    if unsafe { Context::of(call) }.spans.is_some() { trace::now() } else { 0 }
}

unsafe extern "C" fn span_end(call: *mut Call, name: *const c_char, begin: u64) {
    // SAFETY: as above.
    let (context, name) = unsafe { (Context::of(call), words(name)) };
    context.note(&name, begin);
}

unsafe extern "C" fn arguments(call: *mut Call, count: *mut usize) -> *const abi::Value {
    // SAFETY: as above; the place can be written to.
    let (context, count) = unsafe { (Context::of(call), &mut *count) };
    *count = 0;
    match context.parsed() {
        Ok((arguments, _)) => {
            *count = arguments.len();
            arguments.as_ptr()
        }
        Err(error) => {
            context.fail(error);
            std::ptr::null()
        }
    }
}

unsafe extern "C" fn keyword(call: *mut Call, name: *const c_char) -> *const abi::Value {
    // SAFETY: as above.
    let (context, name) = unsafe { (Context::of(call), words(name)) };
    let found = match context.parsed() {
        Ok((_, keywords)) => keywords.chunks_exact(2).find(|pair| {
            // SAFETY: a key that is text ends with a zero.
            pair[0].kind == Kind::Text as c_int && unsafe { words(pair[0].data.cast()) } == name
        }),
        Err(error) => {
            context.fail(error);
            return std::ptr::null();
        }
    };
    found.map_or(std::ptr::null(), |pair| &pair[1])
}

unsafe extern "C" fn give(call: *mut Call, value: *const abi::Value) -> c_int {
    // SAFETY: as above; the value is whole.
    let (context, value) = unsafe { (Context::of(call), value.as_ref()) };
    let value = value.ok_or_else(|| Error::message("no value was given"));
    // SAFETY: as above.
    match value.and_then(|value| unsafe { tree::read(value) }).and_then(|value| message::encode(&value)) {
        Ok(message) => {
            context.said = HookResult::Reply(message);
            abi::DONE
        }
        Err(error) => context.fail(error),
    }
}

unsafe extern "C" fn put(call: *mut Call, array: *const abi::Value, expiry: f64) -> *const abi::Value {
    // SAFETY: as above.
    let (context, begin) = (unsafe { Context::of(call) }, trace::now());
    // SAFETY: as above.
    let kept =
        unsafe { array.as_ref() }.ok_or_else(|| Error::argument("no array was given")).and_then(|array| {
            // SAFETY: as above.
            unsafe { kept(array, expiry) }
        });
    context.note("arrays", begin);
    match kept {
        Ok(reference) => {
            let value = context.arena.reference(&reference);
            context.arena.keep(value)
        }
        Err(error) => {
            context.fail(error);
            std::ptr::null()
        }
    }
}

/// # Safety
///
/// The array is whole.
unsafe fn kept(array: &abi::Value, expiry: f64) -> Result<Reference, Error> {
    // SAFETY: as is promised.
    let (kind, shape) = unsafe { (tree::dtype(array)?.into_owned(), tree::shape(array)?) };
    let bytes = dtype::bytes(&kind, &shape).filter(|bytes| *bytes > 0);
    let bytes =
        bytes.ok_or_else(|| Error::message(format!("an array of {kind} and {shape:?} cannot be put")))?;
    if bytes != array.size as u64 {
        return Err(Error::message(format!(
            "an array of {kind} and {shape:?} has {bytes} bytes, not {}",
            array.size
        )));
    }
    let expiry = if expiry.is_finite() && expiry > 0.0 { (expiry * 1000.0) as u64 } else { 0 };
    let id = if array.kind == Kind::Device as c_int {
        driver()?.put(array.integer as u64, bytes, expiry)?
    } else {
        // SAFETY: as is promised.
        let found = unsafe { tree::read(array) }?;
        let rekindle_function::Value::Array(host) = found else {
            return Err(Error::argument("the value is no array; put one, or memory on the GPU"));
        };
        let address = driver()?.copied(&host.data)?;
        let id = driver()?.put(address, bytes, expiry);
        driver()?.free(address)?;
        id?
    };
    Ok(Reference { id, dtype: kind, shape, given: false })
}

unsafe extern "C" fn get(call: *mut Call, reference: *const abi::Value, address: *mut u64) -> c_int {
    // SAFETY: as above.
    let (context, begin) = (unsafe { Context::of(call) }, trace::now());
    // SAFETY: as above.
    let found =
        unsafe { named(reference) }.and_then(|reference| driver()?.get(&reference.id, reference.bytes()?));
    context.note("arrays", begin);
    match found {
        Ok(found) => {
            // SAFETY: the place can be written to.
            unsafe { *address = found };
            abi::DONE
        }
        Err(error) => context.fail(error),
    }
}

unsafe extern "C" fn drop_reference(call: *mut Call, reference: *const abi::Value) -> c_int {
    // SAFETY: as above.
    let context = unsafe { Context::of(call) };
    // SAFETY: as above.
    match unsafe { named(reference) }.and_then(|reference| driver()?.drop_named(&reference.id, false)) {
        Ok(()) => abi::DONE,
        Err(error) => context.fail(error),
    }
}

/// # Safety
///
/// The value is whole, or null.
unsafe fn named(reference: *const abi::Value) -> Result<Reference, Error> {
    // SAFETY: as is promised.
    unsafe { tree::reference(reference.as_ref().ok_or_else(|| Error::argument("no reference was given"))?) }
}

unsafe extern "C" fn data(call: *mut Call, name: *const c_char, wait: c_int) -> *const abi::Value {
    // SAFETY: as above.
    let (context, name) = unsafe { (Context::of(call), words(name)) };
    let Some(declared) = context.data.iter().find(|declared| declared.name == name) else {
        context.fail(Error::new(
            "KeyError",
            format!("no data is declared as {name:?}; declare it where it is deployed"),
        ));
        return std::ptr::null();
    };
    let begin = trace::now();
    let loaded = declared.load(wait != 0);
    if wait != 0 {
        context.note("data", begin);
    }
    match loaded {
        Ok(address) => {
            let value = context.arena.device(address, declared.bytes(), &declared.dtype, &declared.shape);
            context.arena.keep(value)
        }
        Err(error) => {
            context.fail(error);
            std::ptr::null()
        }
    }
}

unsafe extern "C" fn problem(call: *mut Call, kind: *mut *const c_char) -> *const c_char {
    // SAFETY: as above.
    let context = unsafe { Context::of(call) };
    let HookResult::Failed(error) = &context.said else { return std::ptr::null() };
    let [found, text] = [context.arena.name(&error.kind), context.arena.name(&error.text)];
    if !kind.is_null() {
        // SAFETY: the place can be written to.
        unsafe { *kind = found };
    }
    text
}
