//! What can be set of the link's scheduler: `off`, or `piece=4M,window=16M`.

use crate::gpu::OpenError;

/// The environment variable that says it.
const VARIABLE: &str = "REKINDLE_LINK";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Bytes that are issued at once while several programs copy.
    pub piece: u64,
    /// The most bytes that are under way in a direction.
    pub window: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { piece: 4 << 20, window: 16 << 20 }
    }
}

impl Settings {
    /// As the environment says. None for `off`.
    pub(crate) fn from_env() -> Result<Option<Settings>, OpenError> {
        Settings::parse(&std::env::var(VARIABLE).unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Option<Settings>, OpenError> {
        if text == "off" {
            return Ok(None);
        }
        let refused = |expected| OpenError::Setting { variable: VARIABLE, value: text.to_string(), expected };
        let wrong = || refused("set it to off, or to sizes such as piece=4M,window=16M");
        let mut settings = Settings::default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            let value = size(value).ok_or_else(wrong)?;
            match key {
                "piece" => settings.piece = value,
                "window" => settings.window = value,
                _ => return Err(wrong()),
            }
        }
        match settings.window >= 2 * settings.piece {
            true => Ok(Some(settings)),
            false => Err(refused("a window has room for two pieces at least")),
        }
    }
}

/// Bytes from 64K to 1G.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (64 << 10..=1 << 30).contains(&bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_sets_what_it_names() {
        assert_eq!(Settings::parse("").unwrap(), Some(Settings::default()));
        assert_eq!(Settings::parse("off").unwrap(), None);
        let set = Settings::parse("piece=4M,window=64M").unwrap().unwrap();
        assert_eq!((set.piece, set.window), (4 << 20, 64 << 20));
        assert_eq!(Settings::parse("piece=128K").unwrap().unwrap().piece, 128 << 10);
    }

    #[test]
    fn a_wrong_line_is_refused_with_what_is_wrong() {
        for wrong in ["on", "piece", "piece=x", "piece=1", "colour=2M", "window=2M,piece=2M"] {
            assert!(Settings::parse(wrong).unwrap_err().to_string().contains(wrong), "{wrong}");
        }
    }
}
