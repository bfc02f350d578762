//! Which GPU a sandbox runs on, as the user says it: `emulated[:SETTINGS]`, `nvidia`, `nvidia:INDEX,...`.

use std::collections::HashSet;
use std::path::Path;

use crate::error::Result;
use crate::host::HostError;

/// By which the driver is told which GPUs a program sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Checks what was given; without anything, the real GPU where there is one, else the emulated one.
pub fn choose(given: Option<&str>) -> Result<String> {
    let real = Path::new("/dev/nvidiactl").exists() || Path::new("/dev/dxg").exists();
    let Some(given) = given else {
        return Ok(if real { "nvidia:0" } else { "emulated" }.to_string());
    };
    parse(given).and_then(|gpu| match gpu.starts_with("nvidia") && !real {
        true => Err(HostError::NoGpu { gpu }.into()),
        false => Ok(gpu),
    })
}

/// A program in a sandbox finds in its environment which GPUs it has, as one would that uses the driver itself.
pub fn tell(gpu: &str, environment: &mut Vec<(String, String)>) {
    if let Some(indices) = gpu.strip_prefix("nvidia:") {
        environment.retain(|(name, _)| name != VISIBLE);
        environment.push((VISIBLE.to_string(), indices.to_string()));
    }
}

/// The first of several, on which all is counted.
pub fn first(gpu: &str) -> &str {
    match gpu.starts_with("nvidia:") {
        true => gpu.split_once(',').map_or(gpu, |(first, _)| first),
        false => gpu,
    }
}

/// Whether two choices name a GPU both.
pub fn have_in_common(one: &str, other: &str) -> bool {
    match (one.strip_prefix("nvidia:"), other.strip_prefix("nvidia:")) {
        (Some(one), Some(other)) => one.split(',').any(|index| other.split(',').any(|known| known == index)),
        _ => one == other,
    }
}

/// For a program that uses the driver itself: what it may see, by its environment.
pub fn expose(given: Option<&str>, environment: &mut Vec<(String, String)>) -> Result<String> {
    let Some(given) = given else { return Ok("driver".to_string()) };
    let gpu = parse(given)?;
    if !gpu.starts_with("nvidia:") {
        return Err(HostError::EmulatedDriver { gpu }.into());
    }
    tell(&gpu, environment);
    Ok(gpu)
}

fn parse(given: &str) -> Result<String> {
    let (kind, rest) = given.split_once(':').map_or((given, None), |(kind, rest)| (kind, Some(rest)));
    let fits = match (kind, rest) {
        ("emulated", Some(settings)) => !settings.is_empty(),
        ("emulated" | "nvidia", None) => true,
        ("nvidia", Some(indices)) => are_different(indices),
        _ => false,
    };
    match (fits, kind, rest) {
        (false, ..) => Err(HostError::BadGpu { given: given.to_string() }.into()),
        (true, "nvidia", None) => Ok("nvidia:0".to_string()),
        _ => Ok(given.to_string()),
    }
}

/// Whether these are numbers of GPUs, with commas between, and none twice.
fn are_different(indices: &str) -> bool {
    let numbers: Option<Vec<u8>> = indices.split(',').map(|index| index.parse().ok()).collect();
    numbers.is_some_and(|numbers| numbers.iter().collect::<HashSet<_>>().len() == numbers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_the_gpu_that_was_chosen() {
        let mut environment = vec![(VISIBLE.to_string(), "0,1".to_string())];
        assert_eq!(expose(None, &mut environment).unwrap(), "driver");
        assert_eq!(environment[0].1, "0,1");
        assert_eq!(expose(Some("nvidia:1"), &mut environment).unwrap(), "nvidia:1");
        assert_eq!(environment, [(VISIBLE.to_string(), "1".to_string())]);
        assert!(
            expose(Some("emulated"), &mut environment).unwrap_err().to_string().contains("--mode sandbox")
        );
    }

    #[test]
    fn gpus_by_name() {
        assert_eq!(parse("nvidia").unwrap(), "nvidia:0");
        assert_eq!(parse("nvidia:3").unwrap(), "nvidia:3");
        assert_eq!(parse("nvidia:1,0").unwrap(), "nvidia:1,0");
        assert_eq!(
            [first("nvidia:1,0"), first("nvidia:2"), first("emulated:devices=2,sms=4")],
            ["nvidia:1", "nvidia:2", "emulated:devices=2,sms=4"]
        );
        for (one, other, common) in [
            ("nvidia:1,0", "nvidia:0", true),
            ("nvidia:1", "nvidia:10,11", false),
            ("emulated", "emulated", true),
            ("emulated", "emulated:1", false),
        ] {
            assert_eq!(have_in_common(one, other), common, "{one} {other}");
        }
        assert_eq!(parse("emulated").unwrap(), "emulated");
        assert_eq!(parse("emulated:devices=2").unwrap(), "emulated:devices=2");
        for bad in ["", "nvidia:", "nvidia:x", "emulated:", "amd", "nvidia:-1", "nvidia:0,", "nvidia:1,1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
