//! The Python interpreter that the program may have in this process: scripts run in it while all of its threads wait for us.
//!
//! Its functions are looked up by name, so a program without Python has nothing of this. All of them are of the stable ABI
//! (PEP 384) and found from Python 3.2 on.

mod thread;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

pub use thread::{Task, put};

type Object = *mut c_void;

/// `Py_file_input`.
const FILE: c_int = 257;

/// Functions of CPython's. An interpreter that ends takes threads with it that wait for it (`pthread_exit`), hence the ABI.
pub struct Python {
    is_initialized: unsafe extern "C-unwind" fn() -> c_int,
    ensure: unsafe extern "C-unwind" fn() -> c_int,
    release: unsafe extern "C-unwind" fn(c_int),
    new_dictionary: unsafe extern "C-unwind" fn() -> Object,
    get: unsafe extern "C-unwind" fn(Object, *const c_char) -> Object,
    set: unsafe extern "C-unwind" fn(Object, *const c_char, Object) -> c_int,
    builtins: unsafe extern "C-unwind" fn() -> Object,
    compile: unsafe extern "C-unwind" fn(*const c_char, *const c_char, c_int) -> Object,
    evaluate: unsafe extern "C-unwind" fn(Object, Object, Object) -> Object,
    bytes: unsafe extern "C-unwind" fn(Object, *mut *mut c_char, *mut isize) -> c_int,
    forget: unsafe extern "C-unwind" fn(Object),
    clear: unsafe extern "C-unwind" fn(),
}

/// The interpreter is ours: no other thread runs Python code.
pub struct Held<'p> {
    python: &'p Python,
    state: c_int,
}

impl Python {
    /// None if there is no interpreter in this process, or not any more.
    pub fn find() -> Option<Python> {
        // SAFETY: functions of these names are CPython's, and have the types of their fields.
        let python = unsafe { Python::look_up() }?;
        // SAFETY: it may be called at any time.
        (unsafe { (python.is_initialized)() } != 0).then_some(python)
    }

    /// # Safety
    /// Functions of these names have the types of their fields.
    unsafe fn look_up() -> Option<Python> {
        // SAFETY: the caller's promise.
        unsafe {
            Some(Python {
                is_initialized: function(c"Py_IsInitialized")?,
                ensure: function(c"PyGILState_Ensure")?,
                release: function(c"PyGILState_Release")?,
                new_dictionary: function(c"PyDict_New")?,
                get: function(c"PyDict_GetItemString")?,
                set: function(c"PyDict_SetItemString")?,
                builtins: function(c"PyEval_GetBuiltins")?,
                compile: function(c"Py_CompileString")?,
                evaluate: function(c"PyEval_EvalCode")?,
                bytes: function(c"PyBytes_AsStringAndSize")?,
                forget: function(c"Py_DecRef")?,
                clear: function(c"PyErr_Clear")?,
            })
        }
    }

    /// Waits until no other thread runs Python code. A thread that waits here when the interpreter ends is ended with it.
    pub fn hold(&self) -> Held<'_> {
        // SAFETY: the interpreter is there; any thread may call this.
        Held { python: self, state: unsafe { (self.ensure)() } }
    }
}

impl Held<'_> {
    /// Runs a script, and takes the bytes that it has named `found`; none if it failed, or has not.
    pub fn run(&self, script: &CStr) -> Option<Vec<u8>> {
        let python = self.python;
        // SAFETY: the interpreter is ours. What is new is forgotten below; what is borrowed lives as long as its dictionary.
        unsafe {
            let names = (python.new_dictionary)();
            if names.is_null() {
                (python.clear)();
                return None;
            }
            (python.set)(names, c"__builtins__".as_ptr(), (python.builtins)());
            let code = (python.compile)(script.as_ptr(), c"rekindle".as_ptr(), FILE);
            let result = if code.is_null() { code } else { (python.evaluate)(code, names, names) };
            let found = if result.is_null() {
                None
            } else {
                let found = (python.get)(names, c"found".as_ptr());
                if found.is_null() { None } else { self.bytes_of(found) }
            };
            [code, result, names]
                .into_iter()
                .filter(|object| !object.is_null())
                .for_each(|object| (python.forget)(object));
            (python.clear)();
            found
        }
    }

    /// # Safety
    /// `object` is an object of the interpreter's.
    unsafe fn bytes_of(&self, object: Object) -> Option<Vec<u8>> {
        let (mut start, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the caller's promise; both places are valid.
        if unsafe { (self.python.bytes)(object, &mut start, &mut length) } != 0 {
            return None;
        }
        // SAFETY: CPython says that so many bytes lie there, for as long as the object lives.
        Some(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length as usize) }.to_vec())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: the state is that of `hold`, of this thread.
        unsafe { (self.python.release)(self.state) };
    }
}

/// # Safety
/// What has this name is a function of type `F`.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the name is a string; looking it up changes nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller's promise; both are one pointer.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}
