//! Functions in Rust, and what a library shows the runner of them.

use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi;
use crate::error::{Error, Result};
use crate::message;
use crate::scope::{Call, Scope};
use crate::value::{Pairs, Value};

/// A function: what all instances have in common, which is made before the image, and what each has for itself.
pub trait Function: Sized + Send + Sync + 'static {
    /// An instance's own. It lives in that one's thread.
    type Instance: 'static;

    /// Once in a runner, before its image is taken: kernels, weights, tables.
    fn setup(scope: &Scope<'_>) -> Result<Self>;

    /// In each instance, before its first call.
    fn enter(&self, scope: &Scope<'_>) -> Result<Self::Instance>;

    /// The result. Work on the instance's stream is to have ended when it is returned.
    fn call<'m>(&self, instance: &mut Self::Instance, call: &Call<'m>) -> Result<Value<'m>>;
}

/// A function's row in its library's table; see [`functions`](crate::functions).
pub const fn row<F: Function>(name: &'static CStr) -> abi::Function {
    abi::Function {
        name: name.as_ptr(),
        setup: Some(setup::<F>),
        enter: Some(enter::<F>),
        call: Some(carry::<F>),
        leave: Some(leave::<F>),
        teardown: Some(teardown::<F>),
    }
}

/// Declares all functions of a library, once: `functions! { c"saxpy" => Saxpy, c"sum" => Sum }`.
#[macro_export]
macro_rules! functions {
    ($($name:expr => $function:ty),+ $(,)?) => {
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static rekindle_library: $crate::abi::Library = {
            static ROWS: &[$crate::abi::Function] = &[$($crate::row::<$function>($name)),+];
            $crate::abi::Library {
                version: $crate::abi::VERSION,
                count: ROWS.len() as u32,
                functions: ROWS.as_ptr(),
            }
        };
    };
}

unsafe extern "C" fn setup<F: Function>(call: *mut abi::Call, shared: *mut *mut c_void) -> c_int {
    // SAFETY: the runner's call lives as long as the hook.
    let scope = unsafe { Scope::new(call) };
    guarded(&scope, || {
        let made = Box::into_raw(Box::new(F::setup(&scope)?));
        // SAFETY: the runner keeps a place for it.
        unsafe { *shared = made.cast() };
        Ok(abi::DONE)
    })
}

unsafe extern "C" fn enter<F: Function>(
    call: *mut abi::Call,
    shared: *mut c_void,
    own: *mut *mut c_void,
) -> c_int {
    // SAFETY: as in `setup`; the runner gives what that has made.
    let (scope, shared) = unsafe { (Scope::new(call), &*shared.cast::<F>()) };
    guarded(&scope, || {
        let made = Box::into_raw(Box::new(shared.enter(&scope)?));
        // SAFETY: the runner keeps a place for it.
        unsafe { *own = made.cast() };
        Ok(abi::DONE)
    })
}

unsafe extern "C" fn carry<F: Function>(
    call: *mut abi::Call,
    shared: *mut c_void,
    own: *mut c_void,
) -> c_int {
    // SAFETY: as in `setup`; the runner gives what `setup` and `enter` have made, to one thread.
    let (scope, shared, own) =
        unsafe { (Scope::new(call), &*shared.cast::<F>(), &mut *own.cast::<F::Instance>()) };
    guarded(&scope, || {
        let (arguments, keywords) = split(message::decode(scope.message())?)?;
        // SAFETY: as above.
        let call = Call { scope: unsafe { Scope::new(call) }, arguments, keywords };
        let value = shared.call(own, &call)?;
        Ok(scope.reply(&message::encode(&value)?))
    })
}

unsafe extern "C" fn leave<F: Function>(call: *mut abi::Call, _: *mut c_void, own: *mut c_void) {
    // SAFETY: as in `carry`; it is not given again.
    let (scope, own) = unsafe { (Scope::new(call), own.cast::<F::Instance>()) };
    // SAFETY: `enter` has made the box.
    let own = unsafe { Box::from_raw(own) };
    guarded(&scope, || {
        drop(own);
        Ok(abi::DONE)
    });
}

unsafe extern "C" fn teardown<F: Function>(call: *mut abi::Call, shared: *mut c_void) {
    // SAFETY: as in `leave`.
    let scope = unsafe { Scope::new(call) };
    // SAFETY: `setup` has made the box.
    let shared = unsafe { Box::from_raw(shared.cast::<F>()) };
    guarded(&scope, || {
        drop(shared);
        Ok(abi::DONE)
    });
}

/// Arguments and keywords. What stands behind them is the runner's.
pub fn split(message: Value<'_>) -> Result<(Vec<Value<'_>>, Pairs<'_>)> {
    if let Value::List(parts) = message {
        let mut parts = parts.into_iter();
        if let (Some(Value::List(arguments)), Some(Value::Dictionary(keywords))) =
            (parts.next(), parts.next())
        {
            return Ok((arguments, keywords));
        }
    }
    Err(Error::message(
        "a call's message has no [[arguments], {keywords}]; send one, as the package rekindle does",
    ))
}

/// No panic goes beyond the library.
fn guarded(scope: &Scope<'_>, work: impl FnOnce() -> Result<c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => scope.fail(&error),
        Err(panic) => {
            scope.fail(&Error::new("Panic", words(&*panic)));
            // It may have ended anywhere.
            abi::BROKEN
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a text".to_string())
}
