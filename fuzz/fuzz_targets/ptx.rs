//! PTX text is a module or an error with a line, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_ptx::Module;

fuzz_target!(|data: &[u8]| {
    if let Ok(source) = std::str::from_utf8(data) {
        match Module::parse(source) {
            Ok(module) => {
                let _ = module.entries();
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
