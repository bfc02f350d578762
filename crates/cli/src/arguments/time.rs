//! Times, as they are typed.

use jiff::{SignedDuration, Timestamp};

/// How long something may take.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 86_400.0 => Ok(value),
        _ => Err("expected a number of seconds, more than 0 and at most 86400".to_string()),
    }
}

/// A time, or how long ago it was, in microseconds since 1970.
pub fn since(text: &str) -> Result<u64, String> {
    let time = match (text.parse::<Timestamp>(), text.parse::<SignedDuration>()) {
        (Ok(time), _) => Ok(time),
        (_, Ok(ago)) => Timestamp::now().checked_sub(ago.abs()).map_err(|error| error.to_string()),
        _ => Err("expected a time with its zone such as 2030-01-31T12:00:00Z, or how long ago, such as 10m or 1h30m".to_string()),
    };
    time.map(|time| u64::try_from(time.as_microsecond()).unwrap_or(0))
}

/// How long something is left to end by itself.
pub fn grace(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=86_400.0).contains(&value) => Ok(value),
        _ => Err("expected a number of seconds, at most 86400".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_one_or_how_long_ago_it_was() {
        assert_eq!(since("1970-01-01T00:00:01.5Z"), Ok(1_500_000));
        assert_eq!(since("1970-01-01T01:00:00+01:00"), Ok(0));
        let (ago, now) = (since("1h30m").unwrap(), since("0s").unwrap());
        assert!((5_400_000_000..5_520_000_000).contains(&(now - ago)), "{now} {ago}");
        for wrong in ["", "yesterday", "2030-01-31", "10", "m", "-"] {
            assert!(since(wrong).unwrap_err().contains("10m"), "{wrong}");
        }
    }
}
