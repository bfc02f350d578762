//! Allocators of frameworks, which keep GPU memory that their program has freed. They are asked what of it is
//! [unused](unused) when an image is taken, and while the program rests to [give it back](give_back).

mod give_back;
mod unused;

use std::ffi::CStr;
use std::ptr;

pub use give_back::give_back;
pub use unused::{Unused, tell};

/// An allocator that lies in a library with this in its path.
struct Allocator(&'static [u8]);

const TORCH: Allocator = Allocator(b"/libc10_cuda.so");
const CUPY: Allocator = Allocator(b"/cupy/cuda/memory.");

impl Allocator {
    /// That is not asked of the dynamic loader, which may be busy for as long as some thread loads a library.
    fn is_loaded(&self) -> bool {
        let this = ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the function is called with descriptions of libraries, and `this`, until it returns something else than zero.
        unsafe { libc::dl_iterate_phdr(Some(is_here), this) != 0 }
    }
}

extern "C" fn is_here(
    library: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    allocator: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the loader gives a description, which is there for as long as this runs, and what it was given.
    let (name, allocator) = unsafe { ((*library).dlpi_name, &*allocator.cast::<Allocator>()) };
    if name.is_null() {
        return 0;
    }
    // SAFETY: as above; names are strings.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    name.windows(allocator.0.len()).any(|part| part == allocator.0).into()
}
