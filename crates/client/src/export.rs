//! How an exported function is written.
//!
//! Each is declared once, in one of three kinds:
//!
//! - `free`: works at any time, also before `cuInit`;
//! - `ready`: needs `cuInit`; looks at the client's own state only;
//! - `call`: needs `cuInit` and may talk to the worker; held back while a checkpoint is under way.
//!
//! `fn NAME | NAME_ptsz [stream]` also exports the variant in which a null `stream` means the thread's own default
//! stream. `fn NAME | NAME_ptds {stream}` is for functions without a stream argument: the body finds the default stream
//! that is meant under that name.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use rekindle_cuda::{CUDA_ERROR_NOT_READY, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CuResult};

use crate::abi::{Handle, Result};
use crate::report::report;
use crate::{quiesce, session};

/// `CU_STREAM_LEGACY`.
pub const LEGACY: Handle = Handle(1);
/// `CU_STREAM_PER_THREAD`.
pub const PER_THREAD: Handle = Handle(2);

/// What a null stream means in the variants with a default stream per thread.
pub fn per_thread(stream: Handle) -> Handle {
    if stream.is_null() { PER_THREAD } else { stream }
}

/// Environment variable: any value has every call that fails named on standard error, and every private table that is
/// asked for.
const TRACE: &str = "REKINDLE_TRACE";

pub fn is_traced() -> bool {
    static TRACED: LazyLock<bool> = LazyLock::new(|| std::env::var_os(TRACE).is_some());
    *TRACED
}

#[cold]
fn failed(name: &str, code: CuResult) -> i32 {
    if is_traced() && code != CUDA_ERROR_NOT_READY {
        report(format_args!("{name} returned {code}"));
    }
    code.0
}

/// Runs a body; neither errors nor panics cross into C.
pub fn free(name: &str, body: impl FnOnce() -> Result<()>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUDA_SUCCESS.0,
        Ok(Err(code)) => failed(name, code),
        Err(_) => {
            report(format_args!("the client failed inside {name}; returned CUDA_ERROR_UNKNOWN"));
            CUDA_ERROR_UNKNOWN.0
        }
    }
}

pub fn ready(name: &str, body: impl FnOnce() -> Result<()>) -> i32 {
    free(name, || {
        session::get()?;
        body()
    })
}

pub fn call(name: &str, body: impl FnOnce() -> Result<()>) -> i32 {
    free(name, || {
        session::get()?;
        let _inside = quiesce::enter()?;
        body()
    })
}

macro_rules! exports {
    () => {};
    ($(#[$meta:meta])* $kind:ident fn $name:ident ($($arg:ident : $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::export::$kind(stringify!($name), move || $body)
        }
        $crate::export::exports!($($rest)*);
    };
    ($(#[$meta:meta])* $kind:ident fn $name:ident | $variant:ident [$stream:ident] ($($arg:ident : $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::export::$kind(stringify!($name), move || $body)
        }
        #[unsafe(no_mangle)]
        pub extern "C" fn $variant($($arg: $type),*) -> i32 {
            let $stream = $crate::export::per_thread($stream);
            $name($($arg),*)
        }
        $crate::export::exports!($($rest)*);
    };
    ($(#[$meta:meta])* $kind:ident fn $name:ident | $variant:ident {$stream:ident} ($($arg:ident : $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> i32 {
            let $stream = $crate::export::LEGACY;
            $crate::export::$kind(stringify!($name), move || $body)
        }
        #[unsafe(no_mangle)]
        pub extern "C" fn $variant($($arg: $type),*) -> i32 {
            let $stream = $crate::export::PER_THREAD;
            $crate::export::$kind(stringify!($name), move || $body)
        }
        $crate::export::exports!($($rest)*);
    };
}
pub(crate) use exports;
