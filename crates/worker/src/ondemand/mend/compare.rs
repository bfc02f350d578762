//! What the program was told, beside what comes out when its requests are done once more.

use rekindle_protocol::mending::MendMode;
use rekindle_protocol::operation::{Asynchronous, Copy, Download};

use super::told::{MOST_HASHED, hash};
use crate::ondemand::OnDemandError;
use crate::ondemand::journal::Entry;

/// What the program was told, and where it comes to now.
pub(super) struct Comparison {
    pub at: u64,
    pub bytes: u64,
    pub expected: u64,
    pub what: &'static str,
}

/// How many bytes of a copy to the host are compared.
pub(super) fn told_bytes(entry: &Entry<'_>) -> Option<u64> {
    let bytes = match entry.opcode {
        Copy::OPCODE => postcard::from_bytes::<Copy>(entry.body).ok()?.bytes,
        Download::OPCODE => postcard::from_bytes::<Download>(entry.body).ok()?.bytes,
        _ => return None,
    };
    Some(bytes.min(MOST_HASHED))
}

/// Whether the program was told what comes out now.
pub(super) fn check(compared: &[Comparison], how: MendMode) -> Result<(), OnDemandError> {
    let differs = |one: &&Comparison| {
        // SAFETY: lies in the scratch memory, to which nothing is copied any more.
        let bytes = unsafe { std::slice::from_raw_parts(one.at as *const u8, one.bytes as usize) };
        hash(bytes) != one.expected
    };
    let others: Vec<&Comparison> = compared.iter().filter(differs).collect();
    let Some(first) = others.first() else { return Ok(()) };
    let found = format!(
        "{} of {} answers that the program was given came out otherwise when its requests were done once more (the first one {} of \
         {} bytes)",
        others.len(),
        compared.len(),
        first.what,
        first.bytes
    );
    match how {
        MendMode::Strict => Err(OnDemandError::Differs { found }),
        MendMode::Loose => {
            log::warn!("{found}; it goes on all the same");
            Ok(())
        }
    }
}
