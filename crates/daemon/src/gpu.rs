//! Which GPU a sandbox runs on, as the user says it: `emulated[:SETTINGS]`, `nvidia`, `nvidia:INDEX`.

use std::path::Path;

use crate::error::{Error, Result};

/// Checks what was given; without anything, the real GPU where there is one, else the emulated one.
pub fn choose(given: Option<&str>) -> Result<String> {
    let real = Path::new("/dev/nvidiactl").exists() || Path::new("/dev/dxg").exists();
    let Some(given) = given else {
        return Ok(if real { "nvidia:0" } else { "emulated" }.to_string());
    };
    parse(given).and_then(|gpu| match gpu.starts_with("nvidia") && !real {
        true => Err(Error::NoGpu { gpu }),
        false => Ok(gpu),
    })
}

fn parse(given: &str) -> Result<String> {
    let (kind, rest) = given.split_once(':').map_or((given, None), |(kind, rest)| (kind, Some(rest)));
    let fits = match (kind, rest) {
        ("emulated", Some(settings)) => !settings.is_empty(),
        ("emulated" | "nvidia", None) => true,
        ("nvidia", Some(index)) => index.parse::<u8>().is_ok(),
        _ => false,
    };
    match (fits, kind, rest) {
        (false, ..) => Err(Error::BadGpu { given: given.to_string() }),
        (true, "nvidia", None) => Ok("nvidia:0".to_string()),
        _ => Ok(given.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_by_name() {
        assert_eq!(parse("nvidia").unwrap(), "nvidia:0");
        assert_eq!(parse("nvidia:3").unwrap(), "nvidia:3");
        assert_eq!(parse("emulated").unwrap(), "emulated");
        assert_eq!(parse("emulated:devices=2").unwrap(), "emulated:devices=2");
        for bad in ["", "nvidia:", "nvidia:x", "emulated:", "amd", "nvidia:-1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
