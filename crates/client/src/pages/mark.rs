//! By which this process knows that its memory is mapped from page files: a word that the rewriting of an image changes,
//! so that it is right from the first instruction after a restore on.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// As the linker left it: no start-up code has run.
const UNTOUCHED: u32 = 0;
/// What is here is in effect.
const LIVE: u32 = 1;
const CONVERTED: u32 = 2;
/// Others' functions come before ours, so nothing may be converted.
const PASSED_OVER: u32 = 3;

/// The rewriting looks for these bytes.
#[repr(C, align(64))]
struct Mark {
    magic: [u8; 24],
    word: AtomicU32,
}

static MARK: Mark = Mark { magic: *b"rekindle client mark 1\0\n", word: AtomicU32::new(UNTOUCHED) };

/// Whether memory of this process may be mapped from a page file.
pub fn is_converted() -> bool {
    MARK.word.load(Ordering::Relaxed) == CONVERTED
}

/// Runs when the library is loaded. The write makes the page part of every dump.
extern "C" fn start() {
    let ours = [
        (c"madvise", super::advise::madvise as *const c_void),
        (c"mremap", super::remap::mremap as *const c_void),
        (c"syscall", super::direct::syscall as *const c_void),
    ];
    // As the program finds them: the library is linked so that from in here its own come first.
    // SAFETY: no name is the program itself, which is loaded.
    let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
    let all_ours = ours.iter().all(|(name, own)| {
        // SAFETY: the handle is open, or null, by which all is searched; the name ends with a zero byte.
        std::ptr::eq(unsafe { libc::dlsym(program, name.as_ptr()) }, *own)
    });
    if !program.is_null() {
        // SAFETY: the handle is open and not used any more.
        unsafe { libc::dlclose(program) };
    }
    // Without the bytes before it in use, the compiler could leave them out.
    let whole = std::hint::black_box(&MARK.magic)[0] == b'r';
    MARK.word.store(if all_ours && whole { LIVE } else { PASSED_OVER }, Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
