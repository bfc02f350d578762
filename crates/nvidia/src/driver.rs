//! The driver: a library that was opened, its functions, and the last fault that it reported.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;
use rekindle_cuda::{CUDA_ERROR_NOT_READY, CuResult};
use rekindle_device::Result;

use crate::search::{self, SearchError};
use crate::sys::{Functions, MINIMUM_DRIVER};

/// Why the driver can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(
        "{path} could not be loaded: {reason}; reinstall the NVIDIA driver, or set REKINDLE_LIBCUDA to another"
    )]
    Load { path: PathBuf, reason: String },
    #[error("{path} lacks {function}; Rekindle needs driver {MINIMUM_DRIVER} or newer")]
    TooOld { path: PathBuf, function: &'static str },
    #[error(
        "the NVIDIA driver {path} did not start: {code}{description}; is a GPU visible here (nvidia-smi)?"
    )]
    Start { path: PathBuf, code: CuResult, description: String },
    #[error("the NVIDIA driver {0} sees no GPU; check CUDA_VISIBLE_DEVICES and nvidia-smi")]
    NoGpu(PathBuf),
}

/// An initialised driver. It is never unloaded: its threads outlive any owner.
pub struct Driver {
    pub path: PathBuf,
    pub functions: Functions,
    fault: OnceLock<String>,
}

impl Driver {
    pub fn open() -> std::result::Result<Driver, OpenError> {
        let path = search::find()?;
        let driver = Driver::load(&path)?;
        // SAFETY: takes flags only, of which there are none.
        let code = unsafe { (driver.functions.cuInit)(0) };
        if code.is_success() {
            return Ok(driver);
        }
        let description = driver.functions.describe(code).map(|text| format!(", {text}")).unwrap_or_default();
        Err(OpenError::Start { path, code, description })
    }

    fn load(path: &Path) -> std::result::Result<Driver, OpenError> {
        // SAFETY: opening runs the library's constructors; the file was chosen as the machine's NVIDIA driver.
        let library = unsafe { Library::new(path) }
            .map_err(|error| OpenError::Load { path: path.to_owned(), reason: error.to_string() })?;
        let functions = Functions::find(&library)
            .map_err(|function| OpenError::TooOld { path: path.to_owned(), function })?;
        std::mem::forget(library);
        Ok(Driver { path: path.to_owned(), functions, fault: OnceLock::new() })
    }

    /// A call's result, its fault noted where the context died of it. `call` names the function.
    #[inline(always)]
    pub fn check(&self, call: &str, code: CuResult) -> Result<()> {
        if code.is_success() { Ok(()) } else { self.failed(call, code) }
    }

    #[cold]
    fn failed(&self, call: &str, code: CuResult) -> Result<()> {
        if code == CUDA_ERROR_NOT_READY {
            // The ordinary answer of a query.
        } else if code.is_sticky() {
            self.fault.get_or_init(|| {
                let text = self.functions.describe(code).unwrap_or_else(|| "no description".to_owned());
                let sentence =
                    format!("{call} reported {code}: {text}; the GPU's context can't be used any more");
                log::error!("{sentence}");
                sentence
            });
        } else {
            log::debug!("{call}: {code}");
        }
        Err(code)
    }

    /// The first fault that killed a context.
    pub fn fault(&self) -> Option<String> {
        self.fault.get().cloned()
    }
}

/// Calls a driver function by its name and checks the result; for use inside `unsafe`.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let driver = &*$driver;
        driver.check(stringify!($function), (driver.functions.$function)($($argument),*))
    }};
}
pub(crate) use call;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_no_driver_is_named_with_what_it_lacks() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("libcuda.so.1");
        std::fs::write(&path, b"no library").unwrap();
        let error = Driver::load(&path).err().unwrap();
        assert!(matches!(error, OpenError::Load { .. }), "{error}");
        let error = Driver::load(Path::new("libc.so.6")).err().unwrap();
        assert!(matches!(error, OpenError::TooOld { function: "cuInit", .. }), "{error}");
        assert!(error.to_string().contains("550.54"));
    }
}
