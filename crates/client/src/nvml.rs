//! NVML in the program: whoever calls it has the real driver attached.
//!
//! A driver that is [detached](genuine) holds two locks, and gives them back when it is attached again: one of NVML's that each
//! call takes, for reading or for writing, and one of its own, which `nvmlInit` and `nvmlShutdown` take first, by its table. So
//! these functions of the table are ours, and NVML's references to those of read-write locks are to ours:
//!
//! ```text
//!  program ─ call of NVML's ─ lock ┬ driver attached ─────────────────────▶ the lock ─▶ the call
//!                                  └ detached ─ attached, kept so until ──▶ the lock ─▶ the call
//! ```
//!
//! Who holds such a lock passes, and so does the driver's own thread, which takes NVML's when it detaches and attaches.
//! This was measured on driver 580.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::pthread_rwlock_t;
use plt_rs::{DynamicLibrary, LoadedLibrary, ProgramHeader};

use crate::genuine;
use crate::report::report;

const NAME: &str = "libnvidia-ml.so";
const PAGE: usize = 4096;
/// `PT_GNU_RELRO`: what is read-only once the library is loaded.
const READ_ONLY: u32 = 0x6474_e552;

/// What the names of the driver's threads begin with.
const DRIVERS: &[u8] = b"cuda";

type Function = extern "C" fn(*mut pthread_rwlock_t) -> c_int;
/// `CUDA_ERROR_UNKNOWN`.
const FAILED: c_int = 999;

/// NVML has to use the first of them.
const OURS: [(&str, Function); 5] = [
    ("pthread_rwlock_rdlock", read_lock),
    ("pthread_rwlock_wrlock", write_lock),
    ("pthread_rwlock_tryrdlock", try_read_lock),
    ("pthread_rwlock_trywrlock", try_write_lock),
    ("pthread_rwlock_unlock", unlock),
];
const NEEDED: usize = 1;

thread_local! {
    /// Such locks that this thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

fn is_drivers() -> bool {
    let mut name = [0; 16];
    // SAFETY: the kernel writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(DRIVERS)
}

/// Takes a lock, with the driver attached if the thread holds none yet.
fn take(lock: impl FnOnce() -> c_int) -> c_int {
    let passes = HELD.get() > 0 || is_drivers();
    try_to_take(|| if passes { lock() } else { genuine::when_attached(lock) })
}

fn try_to_take(lock: impl FnOnce() -> c_int) -> c_int {
    let code = lock();
    if code == 0 {
        HELD.set(HELD.get() + 1);
    }
    code
}

fn give_back(unlock: impl FnOnce() -> c_int) -> c_int {
    let code = unlock();
    if code == 0 {
        HELD.set(HELD.get().saturating_sub(1));
    }
    code
}

macro_rules! ours {
    ($($name:ident: $does:ident $theirs:ident;)*) => { $(
        extern "C" fn $name(lock: *mut pthread_rwlock_t) -> c_int {
            // SAFETY: NVML's own lock, as it gave it.
            $does(|| unsafe { libc::$theirs(lock) })
        }
    )* };
}

ours! {
    read_lock: take pthread_rwlock_rdlock;
    write_lock: take pthread_rwlock_wrlock;
    try_read_lock: try_to_take pthread_rwlock_tryrdlock;
    try_write_lock: try_to_take pthread_rwlock_trywrlock;
    unlock: give_back pthread_rwlock_unlock;
}

/// The functions of the driver's table that take its own lock, and give it back.
type OfTable = extern "C" fn(usize, usize, usize) -> c_int;
static TAKE: OnceLock<OfTable> = OnceLock::new();
static GIVE_BACK: OnceLock<OfTable> = OnceLock::new();

/// Entry 24 of the driver's table.
pub extern "C" fn take_drivers(a: usize, b: usize, c: usize) -> c_int {
    TAKE.get().map_or(FAILED, |theirs| take(|| theirs(a, b, c)))
}

/// Entry 25 of the driver's table.
pub extern "C" fn give_back_drivers(a: usize, b: usize, c: usize) -> c_int {
    GIVE_BACK.get().map_or(FAILED, |theirs| give_back(|| theirs(a, b, c)))
}

/// What the driver's own entries 24 and 25 are.
pub fn know_drivers(take: OfTable, give_back: OfTable) {
    TAKE.get_or_init(|| take);
    GIVE_BACK.get_or_init(|| give_back);
}

/// Has the calls of every NVML that is loaded come here first.
pub fn watch() {
    let all = plt_rs::collect_modules();
    let name = |library: &LoadedLibrary<'_>| {
        Path::new(library.name()).file_name().map(|name| name.to_string_lossy().into_owned())
    };
    for library in all.into_iter().filter(|library| name(library).is_some_and(|name| name.starts_with(NAME)))
    {
        let found = library.name().to_owned();
        if let Err(why) = refer_to_ours(library) {
            report(format_args!("calls of {found} may wait for ever after a checkpoint: {why}"));
        }
    }
}

fn refer_to_ours(library: LoadedLibrary<'_>) -> Result<(), String> {
    let read_only = |header: ProgramHeader<'_>| {
        let begin = library.addr() + header.virtual_addr();
        (header.header_type() == READ_ONLY).then(|| begin..begin + header.memory_size())
    };
    let read_only: Vec<_> = library.program_headers().filter_map(read_only).collect();
    let library = DynamicLibrary::initialize(library).map_err(|error| error.to_string())?;
    for (index, (name, ours)) in OURS.into_iter().enumerate() {
        let Some(reference) = library.try_find_function(name) else {
            if index < NEEDED {
                return Err(format!("it does not use {name}"));
            }
            continue;
        };
        let place = library.library().addr() + reference.r_offset as usize;
        let is_read_only = read_only.iter().any(|range| range.contains(&place));
        refer(place, ours, is_read_only)
            .map_err(|error| format!("its reference to {name} cannot be changed: {error}"))?;
    }
    Ok(())
}

/// Changes a reference that the loader has made.
fn refer(place: usize, ours: Function, is_read_only: bool) -> std::io::Result<()> {
    let page = std::ptr::with_exposed_provenance_mut::<c_void>(place & !(PAGE - 1));
    let protect = |protection| {
        // SAFETY: a page of the library's references alone, which stay readable.
        match unsafe { libc::mprotect(page, PAGE, protection) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    if is_read_only {
        protect(libc::PROT_READ | libc::PROT_WRITE)?;
    }
    let reference = std::ptr::with_exposed_provenance_mut::<Function>(place);
    // SAFETY: the loader's own reference to a function of this type, a word in the library's memory, which can be written.
    unsafe { AtomicPtr::from_ptr(reference.cast::<*mut c_void>()) }
        .store(ours as *mut c_void, Ordering::Release);
    if is_read_only { protect(libc::PROT_READ) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    const LIBRARY: &str = r#"
        #include <pthread.h>
        static pthread_rwlock_t all = PTHREAD_RWLOCK_INITIALIZER, inner = PTHREAD_RWLOCK_INITIALIZER;
        int call(int (*inside)(void)) {
            pthread_rwlock_rdlock(&all);
            int found = inside();
            pthread_rwlock_unlock(&all);
            return found;
        }
        int start(int (*inside)(void)) {
            if (pthread_rwlock_trywrlock(&all)) return -1;
            pthread_rwlock_wrlock(&inner);
            int found = inside();
            pthread_rwlock_unlock(&inner);
            pthread_rwlock_unlock(&all);
            return found;
        }
        int is_free(void) { return pthread_rwlock_tryrdlock(&all) == 0 && pthread_rwlock_unlock(&all) == 0; }
    "#;

    type Inside = extern "C" fn() -> c_int;
    type Call = extern "C" fn(Inside) -> c_int;

    extern "C" fn locks() -> c_int {
        HELD.get() as c_int
    }

    /// As NVML is built, whose references are bound when they are first used; and as libraries are built that bind all at once.
    #[test]
    fn a_library_takes_its_locks_by_ours() {
        for binding in ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro"] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("libnvidia-ml.so.1");
            let source = directory.path().join("library.c");
            std::fs::write(&source, LIBRARY).unwrap();
            let mut compiler = Command::new("cc");
            compiler.args(["-Wall", "-Werror", "-shared", "-fPIC", binding, "-o"]).arg(&path).arg(&source);
            assert!(compiler.status().unwrap().success());
            let name = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: the library is the one above, and its functions have the types that they are given here.
            let (call, start, free) = unsafe {
                let library = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY);
                let symbol = |name: &std::ffi::CStr| libc::dlsym(library, name.as_ptr());
                (
                    std::mem::transmute::<*mut c_void, Call>(symbol(c"call")),
                    std::mem::transmute::<*mut c_void, Call>(symbol(c"start")),
                    std::mem::transmute::<*mut c_void, Inside>(symbol(c"is_free")),
                )
            };
            assert_eq!(call(locks), 0, "{binding}: before");
            watch();
            watch();
            assert_eq!((call(locks), start(locks)), (1, 2), "{binding}");
            assert_eq!((free(), HELD.get()), (1, 0), "{binding}");
        }
    }

    extern "C" fn of_table(code: usize, _: usize, _: usize) -> c_int {
        code as c_int
    }

    #[test]
    fn the_driver_s_own_lock_counts() {
        know_drivers(of_table, of_table);
        assert_eq!((take_drivers(0, 0, 0), locks()), (0, 1));
        assert_eq!((give_back_drivers(0, 0, 0), locks()), (0, 0));
        assert_eq!((take_drivers(3, 0, 0), locks()), (3, 0), "it was not had");
    }
}
