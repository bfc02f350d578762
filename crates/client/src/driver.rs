//! The driver itself: start, version, error texts, and the addresses of its functions.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::LazyLock;

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, RENAMED, RESULTS};

use crate::abi::{Out, Result, Text};
use crate::connect;
use crate::export::exports;
use crate::exports::{ROWS, Row};
use crate::session;

/// What a program outside of a session is told: the version of the API that this library has.
const API_VERSION: i32 = 13000;

fn version() -> i32 {
    session::get().map_or(API_VERSION, |session| session.welcome.driver_version)
}

struct Texts {
    name: CString,
    description: CString,
}

static TEXTS: LazyLock<HashMap<i32, Texts>> = LazyLock::new(|| {
    let c = |text: &str| CString::new(text).unwrap_or_default();
    RESULTS
        .iter()
        .map(|(code, name)| {
            (code.0, Texts { name: c(name), description: c(code.description().unwrap_or(name)) })
        })
        .collect()
});

fn text(code: i32, out: Out<*const c_char>, which: impl Fn(&Texts) -> &CString) -> Result<()> {
    out.check()?;
    match TEXTS.get(&code) {
        Some(texts) => out.put(which(texts).as_ptr()),
        None => {
            out.put(std::ptr::null())?;
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

/// `CUdriverProcAddressQueryResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Status {
    Found = 0,
    NotFound = 1,
    TooOld = 2,
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_DEFAULT: u64 = 2;

/// The symbol that programs of CUDA `version` mean by a base name: the newest that is not newer than they are.
fn look_up(base: &str, version: i32, flags: u64) -> (Status, *const ()) {
    static BASES: LazyLock<HashMap<&str, Vec<&'static Row>>> = LazyLock::new(|| {
        let mut bases: HashMap<&str, Vec<&'static Row>> = HashMap::new();
        for row in ROWS.iter().filter(|row| row.since != 0) {
            bases.entry(row.base).or_default().push(row);
        }
        bases
    });
    let renamed = RENAMED.iter().find(|(name, since, _)| *name == base && version >= *since);
    let rows = match renamed {
        Some((_, _, symbol)) => ROWS.iter().find(|row| row.symbol == *symbol).into_iter().collect(),
        None => BASES.get(base).cloned().unwrap_or_default(),
    };
    if rows.is_empty() {
        return (Status::NotFound, std::ptr::null());
    }
    match rows.iter().filter(|row| row.since <= version).max_by_key(|row| row.since) {
        None => (Status::TooOld, std::ptr::null()),
        Some(row) => match row.variant {
            Some(variant) if flags & PER_THREAD_DEFAULT != 0 => (Status::Found, variant.0),
            _ => (Status::Found, row.address.0),
        },
    }
}

fn address(base: Text, out: Out<*const ()>, asked: i32, flags: u64) -> Result<Status> {
    out.check()?;
    let base = base.get()?;
    if flags > PER_THREAD_DEFAULT || asked > version().max(API_VERSION) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (status, address) = look_up(base, asked, flags);
    out.put(address)?;
    Ok(status)
}

exports! {
    free fn cuInit(flags: u32) { connect::initialise(flags) }
    free fn cuDriverGetVersion(out: Out<i32>) { out.put(version()) }
    free fn cuGetErrorName(code: i32, out: Out<*const c_char>) { text(code, out, |texts| &texts.name) }
    free fn cuGetErrorString(code: i32, out: Out<*const c_char>) { text(code, out, |texts| &texts.description) }
    free fn cuGetProcAddress(base: Text, out: Out<*const ()>, version: i32, flags: u64) {
        match address(base, out, version, flags)? {
            Status::Found => Ok(()),
            _ => Err(CUDA_ERROR_NOT_FOUND),
        }
    }
    free fn cuGetProcAddress_v2(base: Text, out: Out<*const ()>, version: i32, flags: u64, status: Out<i32>) {
        let found = address(base, out, version, flags)?;
        if status.is_null() && found != Status::Found {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        status.offer(found as i32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol_at(address: *const ()) -> Option<&'static str> {
        ROWS.iter().find(|row| row.address.0 == address).map(|row| row.symbol)
    }

    fn asked(base: &str, version: i32) -> (Status, Option<&'static str>) {
        let (status, address) = look_up(base, version, 0);
        (status, symbol_at(address))
    }

    #[test]
    fn a_program_gets_the_symbol_of_its_version() {
        assert_eq!(asked("cuMemAlloc", 13000), (Status::Found, Some("cuMemAlloc_v2")));
        assert_eq!(asked("cuMemAlloc", 3020), (Status::Found, Some("cuMemAlloc_v2")));
        assert_eq!(
            asked("cuStreamGetCaptureInfo", 12000),
            (Status::Found, Some("cuStreamGetCaptureInfo_v2"))
        );
        assert_eq!(asked("cuGraphInstantiate", 13000), (Status::Found, Some("cuGraphInstantiateWithFlags")));
        assert_eq!(asked("cuGraphInstantiate", 11000), (Status::Found, Some("cuGraphInstantiate_v2")));
        assert_eq!(asked("cuGraphAddNode", 12000).0, Status::TooOld);
        assert_eq!(asked("cuNothing", 13000).0, Status::NotFound);
        assert_eq!(asked("cuMemAlloc_v2", 13000).0, Status::NotFound);
    }

    #[test]
    fn per_thread_variants_are_given_where_there_are_some() {
        let legacy = look_up("cuStreamQuery", 13000, 1);
        let threads = look_up("cuStreamQuery", 13000, PER_THREAD_DEFAULT);
        assert_ne!(legacy.1, threads.1);
        assert_eq!(look_up("cuMemAlloc", 13000, PER_THREAD_DEFAULT).0, Status::Found);
    }
}
