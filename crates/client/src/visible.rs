//! Which GPUs the real driver in the program's process sees: those that the program does, in their order.
//!
//! The runtime's start-up check compares what the program is told of its GPUs with what the real driver knows. On a machine
//! with several, that one would know of them all.

use std::ffi::{CStr, CString};

use rekindle_device::DeviceInfo;

const VISIBLE: &CStr = c"CUDA_VISIBLE_DEVICES";
/// Where the kernel's half of the driver shows a directory for each GPU of the machine.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Runs `body`, in which the real driver is initialised, with `devices` as the GPUs that it is to see. The daemon has put the
/// variable into the program's environment, so that here only its value changes and no list of variables moves.
pub fn only<T>(devices: &[CString], body: impl FnOnce() -> T) -> T {
    if devices.is_empty() {
        return body();
    }
    let list = CString::new(devices.iter().map(|uuid| uuid.to_bytes()).collect::<Vec<_>>().join(&b','));
    let Ok(list) = list else { return body() };
    // SAFETY: the name is a string; what is returned is one too, and copied before anything else happens here.
    let before = unsafe {
        let value = libc::getenv(VISIBLE.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
    };
    // SAFETY: both are strings, which are copied.
    unsafe { libc::setenv(VISIBLE.as_ptr(), list.as_ptr(), 1) };
    let result = body();
    // SAFETY: as above.
    unsafe {
        match before {
            Some(before) => libc::setenv(VISIBLE.as_ptr(), before.as_ptr(), 1),
            None => libc::unsetenv(VISIBLE.as_ptr()),
        }
    };
    result
}

/// The names of these GPUs, by which the driver knows them whatever their order; none where the machine has no others.
pub fn names(devices: &[DeviceInfo]) -> Vec<CString> {
    let all = std::fs::read_dir(GPUS).map_or(0, Iterator::count);
    let name = |device: &DeviceInfo| CString::new(device.uuid_text()).ok();
    if all > devices.len() { devices.iter().filter_map(name).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_what_it_was_afterwards() {
        let now = || std::env::var(VISIBLE.to_str().unwrap()).ok();
        let names = [c"GPU-1".to_owned(), c"GPU-2".to_owned()];
        let before = now();
        assert_eq!(only(&[], now), before);
        assert_eq!(only(&names, now).as_deref(), Some("GPU-1,GPU-2"));
        assert_eq!(now(), before);
        // SAFETY: no other test of this process reads or writes it.
        unsafe { std::env::set_var(VISIBLE.to_str().unwrap(), "7") };
        assert_eq!(only(&names[1..], now).as_deref(), Some("GPU-2"));
        assert_eq!(now().as_deref(), Some("7"));
    }
}
