//! The few functions of the driver library that functions and their runner need by themselves: Rekindle's, in a sandbox.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Result};

const LIBRARY: &str = "libcuda.so.1";
/// The longest sentence that is taken.
const ROOM: usize = 4096;
/// How many waits are asked for at once.
const WAITS: usize = 32;
const NON_BLOCKING: c_uint = 1;
/// Errors from which a context does not recover.
const STICKY: [i32; 14] = [700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721, 818, 999];
/// Kinds of what is wrong with references and with data, as the library numbers them; both have one for what is not there.
pub const PROBLEMS_OF_REFERENCES: [(c_int, &str); 6] = [
    (1, "RefNotFoundError"),
    (4, "RefAccessError"),
    (5, "RefUnavailableError"),
    (6, "RefMemoryError"),
    (8, "RefGpuError"),
    (9, "RefNodeError"),
];
pub const PROBLEMS_OF_DATA: [(c_int, &str); 8] = [
    (1, "DataNotFoundError"),
    (2, "DataChangedError"),
    (3, "DataSizeError"),
    (4, "DataAccessError"),
    (5, "DataUnavailableError"),
    (6, "DataMemoryError"),
    (7, "DataNameError"),
    (8, "DataGpuError"),
];

/// What could not be done, and CUDA's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} failed with the CUDA error {code}")]
pub struct Failed {
    pub name: &'static str,
    pub code: i32,
}

impl Failed {
    /// Whether the context is of no further use.
    pub fn is_sticky(&self) -> bool {
        STICKY.contains(&self.code)
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        Error::new("GpuError", failed.to_string())
    }
}

macro_rules! functions {
    ($($name:literal $field:ident($($argument:ident: $kind:ty),*);)*) => {
        /// The functions, as the library has them.
        pub struct Driver {
            $($field: unsafe extern "C" fn($($kind),*) -> c_int,)*
            own: OnceLock<std::result::Result<Own, String>>,
            library: Library,
        }

        impl Driver {
            fn load(library: Library) -> std::result::Result<Driver, libloading::Error> {
                Ok(Driver {
                    // SAFETY: the prototypes are those of cuda.h.
                    $($field: unsafe { *library.get($name)? },)*
                    own: OnceLock::new(),
                    library,
                })
            }
        }
    };
}

functions! {
    b"cuInit" init(flags: c_uint);
    b"cuDeviceGet" device_get(device: *mut c_int, ordinal: c_int);
    b"cuDevicePrimaryCtxRetain" primary_context(context: *mut *mut c_void, device: c_int);
    b"cuCtxSetCurrent" set_current(context: *mut c_void);
    b"cuStreamCreate" stream_create(stream: *mut *mut c_void, flags: c_uint);
    b"cuStreamDestroy_v2" stream_destroy(stream: *mut c_void);
    b"cuStreamSynchronize" stream_synchronize(stream: *mut c_void);
    b"cuStreamQuery" stream_query(stream: *mut c_void);
    b"cuMemAlloc_v2" allocate(address: *mut u64, size: usize);
    b"cuMemFree_v2" free(address: u64);
    b"cuMemcpyHtoD_v2" copy_to_gpu(to: u64, from: *const c_void, size: usize);
}

/// Rekindle's own, which only programs in sandboxes have.
struct Own {
    put: unsafe extern "C" fn(u64, usize, u64, c_uint, *mut c_int, *mut c_char, c_int) -> c_int,
    get: unsafe extern "C" fn(*mut u64, *const c_char, usize, *mut c_int, *mut c_char, c_int) -> c_int,
    drop: unsafe extern "C" fn(*const c_char, c_int, *mut c_int, *mut c_char, c_int) -> c_int,
    load: unsafe extern "C" fn(*mut u64, *const c_char, usize) -> c_int,
    state: unsafe extern "C" fn(u64, c_int, *mut c_int, *mut c_char, c_int) -> c_int,
    waits: unsafe extern "C" fn(*mut [u64; 3], *mut c_int) -> c_int,
}

/// Work on the GPU had to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    pub what: &'static str,
    /// In microseconds, the first since 1970.
    pub begin: u64,
    pub took: u64,
}

/// How it stands with data: a number of what is wrong, and a sentence; `None` if all is there.
pub type Problem = Option<(c_int, String)>;

/// The library of this process.
pub fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    let found = DRIVER.get_or_init(|| {
        // Libraries that are loaded later find its functions without linking it.
        // SAFETY: a driver's library may be loaded anywhere.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|error| why(&error))?;
        Driver::load(library).map_err(|error| why(&error))
    });
    found.as_ref().map_err(|why| {
        Error::new(
            "GpuError",
            format!("{LIBRARY} cannot be used ({why}); run this in a sandbox, or install a driver"),
        )
    })
}

/// A stream of the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub *mut c_void);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// A context of the driver's.
#[derive(Debug, Clone, Copy)]
pub struct Context(*mut c_void);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

fn check(name: &'static str, code: c_int) -> std::result::Result<(), Failed> {
    if code == 0 { Ok(()) } else { Err(Failed { name, code }) }
}

impl Driver {
    /// The first GPU's primary context, which is this thread's from now on.
    pub fn open(&self) -> std::result::Result<Context, Failed> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: both places can be written to.
        unsafe {
            check("cuInit", (self.init)(0))?;
            check("cuDeviceGet", (self.device_get)(&mut device, 0))?;
            check("cuDevicePrimaryCtxRetain", (self.primary_context)(&mut context, device))?;
        }
        let context = Context(context);
        self.enter(context)?;
        Ok(context)
    }

    /// Has this thread be in a context.
    pub fn enter(&self, context: Context) -> std::result::Result<(), Failed> {
        // SAFETY: the context is retained, and never released.
        check("cuCtxSetCurrent", unsafe { (self.set_current)(context.0) })
    }

    /// A stream that waits for no other.
    pub fn new_stream(&self) -> std::result::Result<Stream, Failed> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the place can be written to.
        check("cuStreamCreate", unsafe { (self.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(Stream(stream))
    }

    pub fn end_stream(&self, stream: Stream) -> std::result::Result<(), Failed> {
        // SAFETY: the driver knows whether it is one.
        check("cuStreamDestroy", unsafe { (self.stream_destroy)(stream.0) })
    }

    /// Waits for all that was enqueued.
    pub fn synchronize(&self, stream: Stream) -> std::result::Result<(), Failed> {
        // SAFETY: as above.
        check("cuStreamSynchronize", unsafe { (self.stream_synchronize)(stream.0) })
    }

    /// The error that the context is of no further use by, if it has one.
    pub fn fault(&self, stream: Stream) -> Option<Failed> {
        // SAFETY: as above.
        let asked = check("cuStreamQuery", unsafe { (self.stream_query)(stream.0) });
        asked.err().filter(Failed::is_sticky)
    }

    /// Frees memory that was allocated, or that an array was mapped at.
    pub fn free(&self, address: u64) -> std::result::Result<(), Failed> {
        // SAFETY: the driver knows whether something lies there.
        check("cuMemFree", unsafe { (self.free)(address) })
    }

    /// The address of a copy on the GPU.
    pub fn copied(&self, data: &[u8]) -> std::result::Result<u64, Failed> {
        let mut address = 0;
        // SAFETY: the place can be written to, and so many bytes can be read.
        unsafe {
            check("cuMemAlloc", (self.allocate)(&mut address, data.len()))?;
            let copied = (self.copy_to_gpu)(address, data.as_ptr().cast(), data.len());
            check("cuMemcpyHtoD", copied).inspect_err(|_| _ = self.free(address))?;
        }
        Ok(address)
    }

    /// Keeps a copy of a range: its name.
    pub fn put(&self, address: u64, size: u64, expiry_ms: u64) -> Result<String> {
        let put = self.own()?.put;
        // SAFETY: the library writes to the places that it is given, and within the room.
        asked("rekindleExchangePut", |problem, text, room| unsafe {
            put(address, size as usize, expiry_ms, 0, problem, text, room)
        })
    }

    /// Where what has this name is mapped, until it is freed.
    pub fn get(&self, name: &str, size: u64) -> Result<u64> {
        let (get, name, mut address) = (self.own()?.get, text_of(name)?, 0);
        // SAFETY: as above; the name ends with a zero.
        asked("rekindleExchangeGet", |problem, text, room| unsafe {
            get(&mut address, name.as_ptr(), size as usize, problem, text, room)
        })?;
        Ok(address)
    }

    /// It is needed no more, or by one less.
    pub fn drop_named(&self, name: &str, use_only: bool) -> Result<()> {
        let (drop, name) = (self.own()?.drop, text_of(name)?);
        // SAFETY: as above.
        let ask = |problem, text, room| unsafe { drop(name.as_ptr(), use_only.into(), problem, text, room) };
        asked("rekindleExchangeDrop", ask).map(|_| ())
    }

    /// The address of a buffer that an object is loaded into; its bytes may still be on their way.
    pub fn load_data(&self, url: &str, size: u64) -> Result<u64> {
        let (load, url, mut address) = (self.own()?.load, text_of(url)?, 0);
        // SAFETY: the place can be written to, and the text ends with a zero.
        check("rekindleDataLoad", unsafe { load(&mut address, url.as_ptr(), size as usize) })?;
        Ok(address)
    }

    pub fn data_state(&self, address: u64, wait: bool) -> Result<Problem> {
        let (state, mut number, mut text) = (self.own()?.state, 0, [0_u8; ROOM]);
        // SAFETY: the places can be written to, and the room is the text's.
        let code =
            unsafe { state(address, wait.into(), &mut number, text.as_mut_ptr().cast(), ROOM as c_int) };
        check("rekindleDataState", code)?;
        // Below 0 some is still to come, which whoever names it waits for.
        Ok((number > 0).then(|| (number, sentence(&text))))
    }

    /// When work of this process has waited for bytes, each time once. The thread has a context.
    pub fn waits(&self) -> Result<Vec<Wait>> {
        let (waits, mut found, mut count) = (self.own()?.waits, [[0; 3]; WAITS], WAITS as c_int);
        // SAFETY: there is room for so many.
        check("rekindleDataWaits", unsafe { waits(found.as_mut_ptr(), &mut count) })?;
        let found = found.iter().take(usize::try_from(count).unwrap_or(0));
        Ok(found
            .map(|[what, begin, took]| {
                let what = match *what {
                    0 => "wait for data",
                    1 => "wait for image",
                    _ => "wait for checkpoint",
                };
                Wait { what, begin: *begin, took: *took }
            })
            .collect())
    }

    fn own(&self) -> Result<&Own> {
        let found = self.own.get_or_init(|| {
            let library = &self.library;
            // SAFETY: the prototypes are those that the library documents.
            let load = || unsafe {
                Ok::<Own, libloading::Error>(Own {
                    put: *library.get(b"rekindleExchangePut")?,
                    get: *library.get(b"rekindleExchangeGet")?,
                    drop: *library.get(b"rekindleExchangeDrop")?,
                    load: *library.get(b"rekindleDataLoad")?,
                    state: *library.get(b"rekindleDataState")?,
                    waits: *library.get(b"rekindleDataWaits")?,
                })
            };
            load().map_err(|error| why(&error))
        });
        found.as_ref().map_err(|why| {
            Error::new(
                "RefUnavailableError",
                format!("arrays are handed on, and data is loaded, by programs in sandboxes alone ({why})"),
            )
        })
    }
}

/// What the loader says is wrong.
pub fn why(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| source.to_string())
}

/// The text that comes of what is asked.
fn asked(name: &'static str, ask: impl FnOnce(*mut c_int, *mut c_char, c_int) -> c_int) -> Result<String> {
    let (mut number, mut text) = (0, [0_u8; ROOM]);
    check(name, ask(&mut number, text.as_mut_ptr().cast(), ROOM as c_int))?;
    match kind_of(&PROBLEMS_OF_REFERENCES, number, "RefError") {
        None => Ok(sentence(&text)),
        Some(kind) => Err(Error::new(kind, sentence(&text))),
    }
}

/// The kind of what is wrong; none of 0.
pub fn kind_of(kinds: &[(c_int, &'static str)], number: c_int, other: &'static str) -> Option<&'static str> {
    let known = kinds.iter().find(|(known, _)| *known == number).map(|(_, kind)| *kind);
    (number != 0).then(|| known.unwrap_or(other))
}

fn sentence(text: &[u8]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

fn text_of(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::argument(format!("{text:?} has a zero in it; give text without")))
}
