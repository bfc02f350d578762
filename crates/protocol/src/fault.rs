//! Faults on purpose, so that tests can kill the daemon, or the driver helper, or fail it at any step of its work.
//!
//! `REKINDLE_FAULT=POINT[:ACTION]`, several separated by commas. Actions: `fail` (the default) makes the step fail,
//! `kill` ends the process with SIGKILL, `hang` stops there until the process is killed, `slow` takes a second. Points are
//! the names given to [`point`]; `docs/testing.md` lists them. Without the variable the cost is one look at an empty list.

use std::sync::OnceLock;
use std::time::Duration;

/// The fault that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fault was injected at {point}")]
pub struct Injected {
    pub point: &'static str,
}

pub const VARIABLE: &str = "REKINDLE_FAULT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Fail,
    Kill,
    Hang,
    Slow,
}

/// To be passed at each step where a fault is of interest.
pub fn point(name: &'static str) -> Result<(), Injected> {
    static FAULTS: OnceLock<Vec<(String, Action)>> = OnceLock::new();
    let faults = FAULTS.get_or_init(|| parse(&std::env::var(VARIABLE).unwrap_or_default()));
    match faults.iter().find(|(point, _)| point == name) {
        None => Ok(()),
        Some((_, Action::Fail)) => Err(Injected { point: name }),
        Some((_, Action::Kill)) => {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
            Err(Injected { point: name })
        }
        Some((_, Action::Hang)) => loop {
            std::thread::park();
        },
        Some((_, Action::Slow)) => {
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        }
    }
}

fn parse(text: &str) -> Vec<(String, Action)> {
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| match entry.split_once(':') {
            Some((point, "kill")) => (point.to_string(), Action::Kill),
            Some((point, "hang")) => (point.to_string(), Action::Hang),
            Some((point, "slow")) => (point.to_string(), Action::Slow),
            Some((point, _)) => (point.to_string(), Action::Fail),
            None => (entry.to_string(), Action::Fail),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_actions() {
        let faults = parse("frozen:kill, saved ,quiesced:hang,detached:slow");
        let expected = [
            ("frozen", Action::Kill),
            ("saved", Action::Fail),
            ("quiesced", Action::Hang),
            ("detached", Action::Slow),
        ];
        assert_eq!(faults, expected.map(|(point, action)| (point.to_string(), action)));
        assert!(parse("").is_empty());
    }
}
