//! The real driver beside us, where there is one: the CUDA runtime's start-up check gets the driver's own tables.
//!
//! The real library is opened and initialised; it never makes a context here. Its tables are passed on as they are,
//! but for [entries](tables) that are about objects of ours. A checkpoint detaches this half of the
//! process; it is brought back when a new copy of the runtime asks for tables, or [NVML](nvml) is called.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rekindle_cuda::{CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_NOT_FOUND, CuResult};
use rekindle_device::DeviceInfo;
use rekindle_protocol::client::ToWorker;

use crate::abi::{Handle, In, Out, Result};
use crate::export::{exports, is_traced};
use crate::report::report;
use crate::{connect, control, fork, found_first, nvml, quiesce, session, tables, visible};

/// The id of a table.
pub type TableId = [u8; 16];
/// The runtime's own table: its third entry gives a primary context's handle without making the context.
const RUNTIME: TableId =
    [0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9];
const PRIMARY_CONTEXT: usize = 2;

type GetExportTable = extern "C" fn(*mut *const *const c_void, *const TableId) -> i32;
type GetPrimary = extern "C" fn(*mut Handle, i32) -> i32;

#[derive(Clone)]
enum Driver {
    Absent,
    Opening,
    Open(GetExportTable),
    Failed(String),
}

static DRIVER: Mutex<Driver> = Mutex::new(Driver::Absent);
static OPENED: Condvar = Condvar::new();
static ATTACHED: AtomicBool = AtomicBool::new(false);

fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the real driver, which takes as long as everything else that a program's first call does.
pub fn open_in_background(path: Option<&str>, devices: &[DeviceInfo]) {
    let Some(path) = path.map(str::to_owned) else { return };
    let visible = visible::names(devices);
    *driver() = Driver::Opening;
    let open_it = move || {
        let opened = open(&path, &visible);
        ATTACHED.store(matches!(opened, Driver::Open(_)), Ordering::Release);
        *driver() = opened;
        OPENED.notify_all();
    };
    let started = control::without_signals(|| {
        std::thread::Builder::new().name("rekindle-open".to_owned()).spawn(open_it)
    });
    if let Err(error) = started {
        *driver() = Driver::Failed(format!("no thread to open the real driver with: {error}"));
    }
}

fn open(path: &str, visible: &[CString]) -> Driver {
    let Ok(name) = CString::new(path) else { return Driver::Failed(format!("{path:?} is no file name")) };
    if let Err(error) = found_first::map() {
        report(format_args!(
            "a profiler would find the real driver and attach itself to it, after which no checkpoint is possible: {error}"
        ));
    }
    // SAFETY: the worker named the real driver's library; opening it runs its own initialisers only.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Driver::Failed(format!("the real driver {path} cannot be opened in this process"));
    }
    // SAFETY: the library is open and stays so.
    let (init, table) = unsafe {
        (libc::dlsym(library, c"cuInit".as_ptr()), libc::dlsym(library, c"cuGetExportTable".as_ptr()))
    };
    if init.is_null() || table.is_null() {
        return Driver::Failed(format!("{path} is not a CUDA driver"));
    }
    // SAFETY: these are the driver's functions of those names, which have these types.
    let (init, table) = unsafe {
        (
            std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> i32>(init),
            std::mem::transmute::<*mut c_void, GetExportTable>(table),
        )
    };
    match CuResult(visible::only(visible, || init(0))) {
        code if code.is_success() => Driver::Open(table),
        code => Driver::Failed(format!("the real driver's cuInit returned {code}")),
    }
}

/// Waits until the real driver is open, or known not to be.
fn opened() -> Driver {
    let mut held = driver();
    while matches!(*held, Driver::Opening) {
        held = OPENED.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
    held.clone()
}

/// Whether the real driver is not being opened right now.
pub fn settled() -> bool {
    !matches!(*driver(), Driver::Opening)
}

/// Whether the real driver is open here and not detached.
pub fn is_attached() -> bool {
    ATTACHED.load(Ordering::Acquire) && matches!(*driver(), Driver::Open(_))
}

pub fn set_attached(attached: bool) {
    ATTACHED.store(attached, Ordering::Release);
    *left() = None;
    LEFT_NO_LONGER.notify_all();
}

/// Held by whoever uses the real driver, which is attached for as long.
static USED: RwLock<()> = RwLock::new(());

/// Has the real driver attached, and in use.
fn used() -> Result<RwLockReadGuard<'static, ()>> {
    let used = USED.read().unwrap_or_else(PoisonError::into_inner);
    attach()?;
    Ok(used)
}

/// Until when the driver is left to a checkpoint that was told of, and has not come.
static LEFT: Mutex<Option<Instant>> = Mutex::new(None);
static LEFT_NO_LONGER: Condvar = Condvar::new();
const LEFT_AT_MOST: Duration = Duration::from_secs(10);

fn left() -> MutexGuard<'static, Option<Instant>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for that checkpoint: it would have to detach a driver that is attached before it while the program stands still.
fn wait_for_checkpoint() {
    let mut left = left();
    while let Some(wait) =
        left.map(|until| until.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    {
        left = LEFT_NO_LONGER.wait_timeout(left, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Does what needs the real driver attached when it begins, whenever that can be had.
pub fn when_attached<T>(what: impl FnOnce() -> T) -> T {
    const AGAIN: Duration = Duration::from_secs(1);
    let mut is_told = false;
    loop {
        if fork::is_child() || matches!(*driver(), Driver::Absent) {
            return what();
        }
        if !quiesce::is_inside() {
            wait_for_checkpoint();
        }
        let inside = quiesce::enter();
        match used() {
            Ok(_used) => return what(),
            Err(code) if !is_told => {
                report(format_args!(
                    "a call of NVML waits, since the driver could not be attached again: {code}"
                ));
                is_told = true;
            }
            Err(_) => {}
        }
        drop(inside);
        std::thread::sleep(AGAIN);
    }
}

/// Gives the real driver up beside the running program: whoever needs it from then on [attaches](attach) it. `tell` hears
/// whether that is so, before anybody can: not while it is in use.
pub fn release(tell: impl FnOnce(bool)) {
    let unused = USED.try_write().ok().filter(|_| is_attached());
    if unused.is_some() {
        set_attached(false);
        *left() = Some(Instant::now() + LEFT_AT_MOST);
    }
    tell(unused.is_some());
}

static ANSWER: Mutex<Option<String>> = Mutex::new(None);
static ANSWERED: Condvar = Condvar::new();

/// The worker's answer to `Attach`.
pub fn attached(problem: String) {
    *ANSWER.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
    ANSWERED.notify_all();
}

/// Brings the real driver back after a restore that left it detached.
fn attach() -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    const LIMIT: Duration = Duration::from_secs(30);
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if is_attached() {
        return Ok(());
    }
    let mut answer = ANSWER.lock().unwrap_or_else(PoisonError::into_inner);
    *answer = None;
    session::get()?.send(&ToWorker::Attach)?;
    let deadline = Instant::now() + LIMIT;
    while answer.is_none() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        answer = ANSWERED.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    match answer.take().filter(|problem| !problem.is_empty()) {
        None => {
            set_attached(true);
            Ok(())
        }
        Some(problem) => {
            report(format_args!("the driver half of this process cannot be attached again: {problem}"));
            Err(CUDA_ERROR_DEVICE_UNAVAILABLE)
        }
    }
}

fn table(get: GetExportTable, id: &TableId) -> Result<*const *const c_void> {
    let mut table = std::ptr::null();
    CuResult(get(&mut table, id)).ok()?;
    Ok(table)
}

/// The handle that the real driver gives the device's primary context; `None` without a real driver.
pub fn primary_context(device: i32) -> Result<Option<Handle>> {
    let Driver::Open(get) = opened() else { return Ok(None) };
    let _used = used()?;
    let Ok(table) = table(get, &RUNTIME) else { return Ok(None) };
    // SAFETY: the table is the driver's own and has more entries than this; this one has that type.
    let get_primary =
        unsafe { std::mem::transmute::<*const c_void, GetPrimary>(table.add(PRIMARY_CONTEXT).read()) };
    let mut handle = Handle::NULL;
    CuResult(get_primary(&mut handle, device)).ok()?;
    Ok((!handle.is_null()).then_some(handle))
}

/// Says once what a profiler can see.
fn without_profiler() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        report(format_args!(
            "a profiler asked to see the GPU's work, which is not done in this process; it sees what the CPU does alone"
        ));
    }
}

/// Says once why there are no tables, to the runtime; NVRTC and others do without.
fn without_tables(id: &TableId, why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if *id == RUNTIME && !SAID.swap(true, Ordering::Relaxed) {
        report(format_args!("the CUDA runtime needs a real NVIDIA driver, and {why}"));
    }
}

exports! {
    free fn cuGetExportTable(out: Out<*const *const c_void>, id: In<TableId>) {
        out.put(std::ptr::null())?;
        let id = id.get()?;
        if is_traced() {
            report(format_args!("the driver's private table {:032x} was asked for", u128::from_be_bytes(id)));
        }
        connect::initialise(0)?;
        let _inside = quiesce::enter()?;
        match opened() {
            Driver::Open(_) if tables::is_profilers(&id) => {
                without_profiler();
                Err(CUDA_ERROR_NOT_FOUND)
            }
            Driver::Open(get) => {
                let _used = used()?;
                let table = table(get, &id)?;
                if tables::is_nvmls(&id) {
                    nvml::watch();
                }
                out.put(tables::with_ours(&id, table))
            }
            Driver::Failed(why) => {
                without_tables(&id, &why);
                Err(CUDA_ERROR_NOT_FOUND)
            }
            Driver::Absent | Driver::Opening => {
                without_tables(&id, "this GPU is emulated; programs that use the driver API alone run");
                Err(CUDA_ERROR_NOT_FOUND)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_nvml_waits_for_the_checkpoint_that_was_told_of() {
        *left() = Some(Instant::now() + Duration::from_secs(600));
        let waits = std::thread::spawn(wait_for_checkpoint);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        // The program goes on.
        set_attached(false);
        waits.join().unwrap();
        *left() = Some(Instant::now() + Duration::from_millis(50));
        // None comes.
        wait_for_checkpoint();
        assert!(left().take().is_some_and(|until| until <= Instant::now()));
    }
}
