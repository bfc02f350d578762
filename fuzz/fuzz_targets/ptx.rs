//! PTX text is a module or an error with a line, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_ptx::{Module, write_sets};

fuzz_target!(|data: &[u8]| {
    if let Ok(source) = std::str::from_utf8(data) {
        match Module::parse(source) {
            Ok(module) => {
                let told = write_sets(source).expect("it was read as a module");
                assert!(told.len() <= module.entries().len());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
