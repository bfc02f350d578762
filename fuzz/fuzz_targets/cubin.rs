//! Machine code is taken apart, left whole for a reason, or an error; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_code::{Preparation, prepare};

const CAPABILITY: u32 = 90;
const ADDRESS: u64 = 0x6000_0000_0000;
/// Each further kernel finds nothing that the first ones do not.
const KERNELS: usize = 4;

fuzz_target!(|data: &[u8]| match prepare(data, CAPABILITY) {
    Ok(Preparation::Prepared(prepared)) => {
        let _ = prepared.globals.initial(ADDRESS);
        for kernel in prepared.kernels.keys().take(KERNELS) {
            let _ = prepared.piece(kernel, ADDRESS);
        }
    }
    Ok(Preparation::Whole(whole)) => assert!(!whole.to_string().is_empty()),
    Err(error) => assert!(!error.to_string().is_empty()),
});
