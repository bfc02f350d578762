//! The thread that does what the interpreter is needed for. It may wait for the interpreter for as long as the program keeps it.
//!
//! There is one, and it stays: a new one in each stop would have a new stack and new room for what it allocates, and CRIU would know
//! the program's memory no more. For the same reason it has room for what its tasks allocate from the beginning.

use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};

use super::{Held, Python};
use crate::control;

/// Something that this thread does. Tasks are done in their order.
pub trait Task: Send {
    /// The interpreter is ours, if there is one.
    fn run(&self, held: Option<&Held<'_>>);
    /// It is not ours any more.
    fn end(&self) {}
}

static TASKS: Mutex<VecDeque<Box<dyn Task>>> = Mutex::new(VecDeque::new());
static PUT: Condvar = Condvar::new();

/// Has the thread do a task, and starts it before the first one.
pub fn put(task: impl Task + 'static) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        start()?;
        *started = true;
    }
    TASKS.lock().unwrap_or_else(PoisonError::into_inner).push_back(Box::new(task));
    PUT.notify_one();
    Ok(())
}

/// It is the C library's thread: an interpreter that ends may end it.
fn start() -> io::Result<()> {
    let mut thread = 0;
    // SAFETY: the two types differ in that a thread may be ended inside of it, which the C library's may.
    let run = unsafe {
        std::mem::transmute::<
            extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void,
            extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        >(run as extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void)
    };
    let made = control::without_signals(|| {
        // SAFETY: `thread` is a valid place, and the function takes nothing.
        unsafe { libc::pthread_create(&mut thread, ptr::null(), run, ptr::null_mut()) }
    });
    if made != 0 {
        return Err(io::Error::from_raw_os_error(made));
    }
    // SAFETY: the thread was made above, and nobody waits for its end.
    unsafe { libc::pthread_detach(thread) };
    Ok(())
}

/// Nothing of this may be in need of being dropped while the interpreter is waited for.
extern "C-unwind" fn run(_nothing: *mut libc::c_void) -> *mut libc::c_void {
    make_room();
    loop {
        let task = Box::into_raw(Box::new(next()));
        // SAFETY: it was made above, and is let go of below.
        let given = unsafe { &*task };
        match Python::find() {
            Some(python) => given.run(Some(&python.hold())),
            None => given.run(None),
        }
        given.end();
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(task) });
    }
}

/// Has the C library's room for this thread (its arena) be as large as tasks need it, and stay so: by a block at its end, it is not
/// made smaller when what lies before is given back. Else it grows and shrinks with each task.
fn make_room() {
    /// What the C library takes from the arena, and not from the kernel.
    const BLOCK: usize = 64 << 10;
    const BLOCKS: usize = 64;
    // SAFETY: they are given back once, but for the last.
    unsafe {
        let blocks: [*mut libc::c_void; BLOCKS] = std::array::from_fn(|_| libc::malloc(BLOCK));
        blocks[..BLOCKS - 1].iter().for_each(|block| libc::free(*block));
    }
}

fn next() -> Box<dyn Task> {
    let mut tasks = TASKS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(task) = tasks.pop_front() {
            return task;
        }
        tasks = PUT.wait(tasks).unwrap_or_else(PoisonError::into_inner);
    }
}
