//! Breakpoints of the processor's at hand for CRIU, which sets one in each thread that it brings back.
//!
//! The kernel counts a breakpoint as a performance event of a task. With the first such event on a machine it switches
//! on what it does for them at every change of tasks, and waits until every processor has gone through a quiet state
//! (a grace period of RCU): 4 ms on an idle machine, tens on a busy one, with the program standing still. A second
//! after the last event has gone it switches that off again. So one event that counts nothing is held for as long as
//! the daemon runs.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `perf_event_attr` as of its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    period: u64,
    sample: u64,
    read: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
const DISABLED: u64 = 1 << 0;
/// Without the kernel's own, an event of one's own process needs no privilege unless all are refused.
const WITHOUT_KERNEL: u64 = 1 << 5;
const WITHOUT_HYPERVISOR: u64 = 1 << 6;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
const ANY_PROCESSOR: libc::c_int = -1;
const NO_GROUP: libc::c_int = -1;

/// An event of this process, for as long as it is kept.
#[derive(Debug)]
pub struct BreakpointEvent(#[expect(dead_code, reason = "what matters is that it is open")] OwnedFd);

impl BreakpointEvent {
    /// None where the kernel or a filter refuses it; restores are slower then, and no worse.
    pub fn keep() -> Option<BreakpointEvent> {
        match open() {
            Ok(event) => Some(BreakpointEvent(event)),
            Err(error) => {
                log::debug!("no performance event is held, so breakpoints may be slow to set: {error}");
                None
            }
        }
    }
}

/// An event of the main thread, which ends last, that counts nothing.
fn open() -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: SOFTWARE,
        bytes: size_of::<Attributes>() as u32,
        config: DUMMY,
        flags: DISABLED | WITHOUT_KERNEL | WITHOUT_HYPERVISOR,
        ..Attributes::default()
    };
    let (main, attributes) = (std::process::id(), &raw const attributes);
    // SAFETY: the attributes are as long as they say, and the kernel only reads them.
    let event = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attributes, main, ANY_PROCESSOR, NO_GROUP, CLOSE_ON_EXEC)
    };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(event as i32) })
}
