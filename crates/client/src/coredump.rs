//! Settings of GPU core dumps: they can be set and read back. No core dump is written, and that is said once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED};

use crate::abi::{In, Out, Result};
use crate::export::exports;
use crate::report::report;
use crate::{context, logs};

/// `CUcoredumpSettings`.
const ON_EXCEPTION: u32 = 1;
const TRIGGER_HOST: u32 = 2;
const LIGHTWEIGHT: u32 = 3;
const USER_TRIGGER: u32 = 4;
const FILE: u32 = 5;
const PIPE: u32 = 6;
const FLAGS: u32 = 7;

/// Of a file name or pipe, with its NUL.
const LONGEST: usize = 1024;

/// By context (0: all of the process) and setting.
static SET: Mutex<BTreeMap<(u64, u32), Vec<u8>>> = Mutex::new(BTreeMap::new());

fn set() -> MutexGuard<'static, BTreeMap<(u64, u32), Vec<u8>>> {
    SET.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes_of(setting: u32) -> Result<usize> {
    match setting {
        ON_EXCEPTION | TRIGGER_HOST | LIGHTWEIGHT | USER_TRIGGER => Ok(1),
        FILE | PIPE => Ok(LONGEST),
        FLAGS => Ok(4),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// What the driver has where nobody has set anything.
fn by_default(setting: u32) -> Vec<u8> {
    let named = |kind: &str| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{kind}.cuda.{}.{}\0", host.trim(), std::process::id()).into_bytes()
    };
    match setting {
        TRIGGER_HOST => vec![1],
        FILE => named("core"),
        PIPE => named("corepipe"),
        FLAGS => vec![0; 4],
        _ => vec![0],
    }
}

fn get(context: u64, setting: u32, value: Out<u8>, size: Out<usize>) -> Result<()> {
    let room = bytes_of(setting)?;
    if value.is_null() {
        return size.put(room);
    }
    let known = {
        let set = set();
        set.get(&(context, setting)).or_else(|| set.get(&(0, setting))).cloned()
    };
    let known = known.unwrap_or_else(|| by_default(setting));
    if size.current()? < known.len() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    size.put(known.len())?;
    value.fill(known.len(), known);
    Ok(())
}

fn put(context: u64, setting: u32, value: In<u8>, size: Out<usize>) -> Result<()> {
    let room = bytes_of(setting)?;
    if value.is_null() {
        return size.put(room);
    }
    if context != 0 && matches!(setting, USER_TRIGGER | PIPE) {
        return Err(CUDA_ERROR_NOT_PERMITTED);
    }
    let bytes = size.current()?;
    let is_text = matches!(setting, FILE | PIPE);
    if bytes == 0 || bytes > room || !is_text && bytes != room {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut known = value.slice(bytes)?.to_vec();
    if is_text {
        known.truncate(known.iter().position(|byte| *byte == 0).unwrap_or(LONGEST - 1));
        known.push(0);
    }
    if matches!(setting, ON_EXCEPTION | USER_TRIGGER) && known != [0] {
        say_that_none_is_written();
    }
    set().insert((context, setting), known);
    Ok(())
}

fn say_that_none_is_written() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let what = "no GPU core dumps are written: the GPU's context is not this process's; a kernel's fault is told in the \
                    sandbox's log";
        report(format_args!("{what}"));
        logs::add(what);
    }
}

exports! {
    ready fn cuCoredumpGetAttribute(setting: u32, value: Out<u8>, size: Out<usize>) { get(context::current()?.id, setting, value, size) }
    ready fn cuCoredumpSetAttribute(setting: u32, value: In<u8>, size: Out<usize>) { put(context::current()?.id, setting, value, size) }
    free fn cuCoredumpGetAttributeGlobal(setting: u32, value: Out<u8>, size: Out<usize>) { get(0, setting, value, size) }
    free fn cuCoredumpSetAttributeGlobal(setting: u32, value: In<u8>, size: Out<usize>) { put(0, setting, value, size) }
}
