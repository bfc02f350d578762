//! A chunk reference that parses is written the same, and bytes that decode have its hash.
//!
//! An input is a reference, a line end, and what is stored.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rekindle_store::{ChunkRef, ContentHash, Encoding, decode_chunk};

/// Longer contents find nothing that shorter ones do not.
const LONGEST: u64 = 64 << 10;

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (line, stored) = (&data[..end], &data[end + 1..]);
    let Ok(chunk) = String::from_utf8_lossy(line).parse::<ChunkRef>() else { return };
    assert_eq!(chunk.to_string().parse(), Ok(chunk));
    if chunk.bytes > LONGEST {
        return;
    }
    let mut contents = vec![0xa5; chunk.bytes as usize];
    // As told, and as if the reference's sizes had been right.
    for chunk in [chunk, ChunkRef { stored: stored.len() as u64, ..chunk }] {
        if decode_chunk(&chunk, stored, &mut contents).is_ok() {
            match chunk.encoding {
                Encoding::Zero => assert!(contents.iter().all(|byte| *byte == 0)),
                Encoding::Raw | Encoding::Zstd => assert_eq!(ContentHash::of(&contents), chunk.hash),
            }
        }
    }
});
