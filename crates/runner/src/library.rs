//! Libraries of functions, and the functions that they have.

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rekindle_function::{abi, driver};

use crate::Error;

/// Is there in sandboxes alone.
const SANDBOX: &str = "/run/rekindle";
/// A sandbox's own, whose files are in its images.
const KEPT: &str = "/dev/shm/rekindle-functions";

/// A function, and what all of its instances have in common once it is set up.
pub struct Loaded {
    pub name: String,
    /// The file that has it.
    pub library: String,
    pub table: abi::Function,
    pub call: abi::Carry,
    pub shared: *mut c_void,
}

// SAFETY: what a function's instances have in common is for all threads: `rekindle.h` says so, and the trait of Rust's does.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// The functions of all libraries, not set up yet. Libraries stay loaded.
pub fn load(paths: &[PathBuf], own: Option<&'static abi::Library>) -> Result<Vec<Loaded>, Error> {
    let mut functions = Vec::new();
    if let Some(table) = own {
        take(table, "the program", &mut functions)?;
    }
    for (number, path) in paths.iter().enumerate() {
        take(open(path, number)?, &path.display().to_string(), &mut functions)?;
    }
    if functions.is_empty() {
        return Err(Error::Library {
            path: "the runner".to_string(),
            what: "has no functions".to_string(),
            remedy: "name a library that has some",
        });
    }
    Ok(functions)
}

fn open(path: &Path, number: usize) -> Result<&'static abi::Library, Error> {
    let fault = |why: String| Error::Load { path: path.display().to_string(), why };
    let file = settled(path, number).map_err(|error| fault(error.to_string()))?;
    // SAFETY: whoever names a library has its code run here.
    let library = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| fault(driver::why(&error)))?;
    // SAFETY: the symbol's name says what it is.
    let table = unsafe { library.get::<*const abi::Library>(abi::SYMBOL.as_bytes()) }
        .map_err(|_| fault(format!("it has no symbol {}", abi::SYMBOL)))?;
    // SAFETY: the symbol's address is the table's, which stays as the library does.
    let table = unsafe { &*table.into_raw().cast::<abi::Library>() };
    std::mem::forget(library);
    Ok(table)
}

/// In a sandbox a copy is loaded, which images have with them: the file itself may become another one, or go.
fn settled(path: &Path, number: usize) -> std::io::Result<PathBuf> {
    let path = path.canonicalize()?;
    if !Path::new(SANDBOX).is_dir() {
        return Ok(path);
    }
    std::fs::create_dir_all(KEPT)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let copy = Path::new(KEPT).join(format!("{number}-{name}"));
    std::fs::copy(&path, &copy)?;
    Ok(copy)
}

fn take(table: &'static abi::Library, path: &str, functions: &mut Vec<Loaded>) -> Result<(), Error> {
    let fault = |what: String, remedy| Error::Library { path: path.to_string(), what, remedy };
    if table.version != abi::VERSION {
        return Err(fault(
            format!(
                "is made for the version {} of rekindle.h, and this runner has {}",
                table.version,
                abi::VERSION
            ),
            "build it anew",
        ));
    }
    if table.functions.is_null() || table.count == 0 {
        return Err(fault("has an empty table".to_string(), "declare its functions in it"));
    }
    // SAFETY: the table says how many there are.
    for row in unsafe { std::slice::from_raw_parts(table.functions, table.count as usize) } {
        let name = if row.name.is_null() {
            String::new()
        } else {
            // SAFETY: a name ends with a zero.
            unsafe { CStr::from_ptr(row.name) }.to_string_lossy().into_owned()
        };
        let call = row.call.filter(|_| is_name(&name)).ok_or_else(|| {
            let remedy = "each needs `call`, and a name of up to 31 letters, digits and _";
            fault(format!("has a function {name:?} that cannot be served"), remedy)
        })?;
        if let Some(other) = functions.iter().find(|other| other.name == name) {
            let what = format!("has a function {name:?}, as {} has", other.library);
            return Err(fault(what, "give one another name"));
        }
        let shared = std::ptr::null_mut();
        functions.push(Loaded { name, library: path.to_string(), table: *row, call, shared });
    }
    Ok(())
}

/// As those of functions in Python.
fn is_name(name: &str) -> bool {
    let mut letters = name.bytes();
    name.len() <= 31
        && letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
}
