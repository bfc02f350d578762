//! Which GPUs a sandbox runs on, as the user says it: `emulated[:SETTINGS]`, `nvidia`, `nvidia:INDEX,...`.

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
        ("nvidia", Some(indices)) => indices.split(',').all(|index| index.parse::<u8>().is_ok()),
        _ => false,
    };
    if let Some(number) = rest.filter(|_| fits).and_then(named_twice) {
        return Err(HostError::SameGpu { given: given.to_string(), number: number.to_string() }.into());
    }
    match (fits, kind, rest) {
        (false, ..) => Err(HostError::BadGpu { given: given.to_string() }.into()),
        (true, "nvidia", None) => Ok("nvidia:0".to_string()),
        _ => Ok(given.to_string()),
    }
}

/// The numbers of GPUs among words with commas between.
fn numbers(words: &str) -> impl Iterator<Item = u8> {
    words.split(',').filter_map(|word| word.trim().parse().ok())
}

/// The first number that is among these words for the second time.
fn named_twice(words: &str) -> Option<u8> {
    let numbers: Vec<u8> = numbers(words).collect();
    let again = |(place, number): &(usize, &u8)| numbers[..*place].contains(number);
    numbers.iter().enumerate().find(again).map(|(_, number)| *number)
}

/// The choice of all of the machine's GPUs: the real ones where there are some, else the emulated ones, as many as the settings
/// make.
pub fn all() -> Result<String> {
    let own = choose(None)?;
    if !own.starts_with("nvidia") {
        return Ok(own);
    }
    let is_device = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u8>().is_ok());
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let count = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_device)).count();
    let indices: Vec<String> = (0..count.max(1)).map(|index| index.to_string()).collect();
    Ok(format!("nvidia:{}", indices.join(",")))
}

/// The choice of some of the GPUs that `all` chooses, by their places there. `settings`: those of emulated GPUs of which the choice
/// says nothing itself.
pub fn some_of(all: &str, places: &[usize], settings: &str) -> String {
    let (kind, words) = all.split_once(':').unwrap_or((all, settings));
    let known: Vec<u8> = numbers(words).collect();
    let number = |place: &usize| match (known.get(*place), known.last()) {
        (Some(number), _) => usize::from(*number),
        (None, Some(last)) => usize::from(*last) + 1 + place - known.len(),
        (None, None) => *place,
    };
    let is_setting = |word: &&str| word.contains('=') && !word.trim().starts_with("devices");
    let chosen = places.iter().map(|place| number(place).to_string());
    let words: Vec<String> = chosen.chain(words.split(',').filter(is_setting).map(str::to_string)).collect();
    format!("{kind}:{}", words.join(","))
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
        assert_eq!(parse("emulated:1,0,sms=4").unwrap(), "emulated:1,0,sms=4");
        for same in ["nvidia:1,1", "emulated:2,0,2", "emulated:3,memory=8G,3"] {
            assert!(parse(same).unwrap_err().to_string().contains("twice"), "{same}");
        }
        for bad in ["", "nvidia:", "nvidia:x", "emulated:", "amd", "nvidia:-1", "nvidia:0,"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn some_of_the_machines_gpus_are_named_with_their_settings() {
        assert_eq!(some_of("nvidia:0,1,2,3", &[1, 3], ""), "nvidia:1,3");
        assert_eq!(some_of("emulated", &[0, 2], "devices=3,memory=8G"), "emulated:0,2,memory=8G");
        assert_eq!(some_of("emulated", &[1, 2], "2,devices=3,sms=4"), "emulated:3,4,sms=4");
        assert_eq!(some_of("emulated", &[1], ""), "emulated:1");
    }
}
