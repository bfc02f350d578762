//! The fatbins inside a library's file.

use rekindle_code::fatbin;

const ALIGNMENT: usize = 8;

/// Every fatbin that ends inside the file; they begin at multiples of eight.
pub fn fatbins(bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + ALIGNMENT <= bytes.len() {
        match fatbin::size(&bytes[at..]) {
            Some(size) => {
                found.push(&bytes[at..at + size]);
                at += size.next_multiple_of(ALIGNMENT);
            }
            None => at += ALIGNMENT,
        }
    }
    found
}
