//! Random identifiers, and the time as a manifest gives it.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// 128 random bits in hexadecimal.
pub(crate) fn random() -> Result<String> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; 16];
    File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| Error::io("read", Path::new(SOURCE), 0, error))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// A time in RFC 3339, in UTC, to the second.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The Gregorian date so many days after 1 January 1970.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + leap(year) as u64 {
        days -= 365 + leap(year) as u64;
        year += 1;
    }
    let lengths = [31, 28 + leap(year) as u64, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn known_times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn identifiers_differ() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }
}
