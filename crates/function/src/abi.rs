//! What a library of functions and the runner see of each other, as `rekindle.h` has it for C.
//!
//! ```text
//!  library: rekindle_library ─▶ Library ─▶ [Function: setup, enter, call, leave, teardown]
//!  runner:  *mut Call ─▶ Api: stream, arguments, give, put, get, … ; what lies behind it is the runner's own
//! ```
//!
//! A library links nothing of Rekindle's: it is handed the table of what it may call. Fields are only ever added at the
//! end of [`Api`], whose `size` says how far it goes; anything else is another [`VERSION`].

use std::ffi::{c_char, c_int, c_void};

pub const VERSION: u32 = 1;

/// The symbol that a library has, of the type [`Library`].
pub const SYMBOL: &str = "rekindle_library";

/// What a hook returns.
pub const DONE: c_int = 0;
pub const FAILED: c_int = -1;
/// It failed, and what is the instance's own is of no further use.
pub const BROKEN: c_int = -2;

#[repr(C)]
pub struct Library {
    pub version: u32,
    pub count: u32,
    pub functions: *const Function,
}

// SAFETY: tables of constants, which nobody writes to.
unsafe impl Sync for Library {}

pub type Setup = unsafe extern "C" fn(*mut Call, *mut *mut c_void) -> c_int;
pub type Enter = unsafe extern "C" fn(*mut Call, *mut c_void, *mut *mut c_void) -> c_int;
pub type Carry = unsafe extern "C" fn(*mut Call, *mut c_void, *mut c_void) -> c_int;
pub type Leave = unsafe extern "C" fn(*mut Call, *mut c_void, *mut c_void);
pub type Teardown = unsafe extern "C" fn(*mut Call, *mut c_void);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Function {
    pub name: *const c_char,
    pub setup: Option<Setup>,
    pub enter: Option<Enter>,
    pub call: Option<Carry>,
    pub leave: Option<Leave>,
    pub teardown: Option<Teardown>,
}

// SAFETY: as of `Library`.
unsafe impl Sync for Function {}

/// One of the runner's threads in the hands of a library. The runner's own fields follow.
#[repr(C)]
pub struct Call {
    pub api: *const Api,
}

#[repr(C)]
pub struct Api {
    pub size: usize,
    pub stream: unsafe extern "C" fn(*mut Call) -> *mut c_void,
    pub log: unsafe extern "C" fn(*mut Call, *const c_char),
    pub fail: unsafe extern "C" fn(*mut Call, *const c_char, *const c_char) -> c_int,
    pub message: unsafe extern "C" fn(*mut Call, *mut usize) -> *const u8,
    pub reply: unsafe extern "C" fn(*mut Call, *const u8, usize) -> c_int,
    pub arguments: unsafe extern "C" fn(*mut Call, *mut usize) -> *const Value,
    pub keyword: unsafe extern "C" fn(*mut Call, *const c_char) -> *const Value,
    pub give: unsafe extern "C" fn(*mut Call, *const Value) -> c_int,
    pub put: unsafe extern "C" fn(*mut Call, *const Value, f64) -> *const Value,
    pub get: unsafe extern "C" fn(*mut Call, *const Value, *mut u64) -> c_int,
    pub drop: unsafe extern "C" fn(*mut Call, *const Value) -> c_int,
    pub data: unsafe extern "C" fn(*mut Call, *const c_char, c_int) -> *const Value,
    pub problem: unsafe extern "C" fn(*mut Call, *mut *const c_char) -> *const c_char,
    pub message_in: unsafe extern "C" fn(*mut Call, u32, *mut usize) -> *const u8,
    pub span_begin: unsafe extern "C" fn(*mut Call) -> u64,
    pub span_end: unsafe extern "C" fn(*mut Call, *const c_char, u64),
}

// SAFETY: functions and a number.
unsafe impl Sync for Api {}

/// What a [`Value`] is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    None = 0,
    Boolean = 1,
    Integer = 2,
    Real = 3,
    Complex = 4,
    Text = 5,
    Bytes = 6,
    Date = 7,
    List = 8,
    Tuple = 9,
    Set = 10,
    FrozenSet = 11,
    Dictionary = 12,
    Array = 13,
    Scalar = 14,
    Reference = 15,
    Device = 16,
}

/// A value, and all that is in it. Which fields mean something is the kind's; the others are 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Value {
    /// A [`Kind`]; whatever number a library wrote here can be read.
    pub kind: c_int,
    /// Booleans, integers; of a reference whether it was given; the address of what lies on the GPU.
    pub integer: i64,
    pub real: f64,
    pub imaginary: f64,
    /// Text, bytes, dates; an array's contents; a reference's name.
    pub data: *const c_void,
    pub size: usize,
    /// Elements; of a dictionary key, value, key, value.
    pub items: *const Value,
    pub count: usize,
    /// Of arrays and references.
    pub dtype: *const c_char,
    pub dimensions: usize,
    pub shape: *const u64,
}

impl Value {
    pub const NONE: Value = Value {
        kind: Kind::None as c_int,
        integer: 0,
        real: 0.0,
        imaginary: 0.0,
        data: std::ptr::null(),
        size: 0,
        items: std::ptr::null(),
        count: 0,
        dtype: std::ptr::null(),
        dimensions: 0,
        shape: std::ptr::null(),
    };
}
