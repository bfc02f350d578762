//! Faults on purpose, so that tests can kill the daemon, or the driver helper, or fail it at any step of its work.
//!
//! `REKINDLE_FAULT=POINT[:ACTION]`, several separated by commas. Actions: `fail` (the default) makes the step fail,
//! `kill` ends the process with SIGKILL, `hang` stops there until the process is killed. Points are the names given to
//! [`point`]; `docs/testing.md` lists them. Without the variable the cost is one look at an empty list.
//!
//! Where `REKINDLE_FAULT_MARKS` names a directory, who hangs writes the file `POINT` there, and goes on once there is
//! `POINT.go`: a test waits for the first and makes the second, and guesses no time.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// The fault that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fault was injected at {point}")]
pub struct Injected {
    pub point: &'static str,
}

pub const VARIABLE: &str = "REKINDLE_FAULT";
pub const MARKS_VARIABLE: &str = "REKINDLE_FAULT_MARKS";
/// So often one that hangs looks whether it may go on.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Fail,
    Kill,
    Hang,
}

fn faults() -> &'static [(String, Action)] {
    static FAULTS: OnceLock<Vec<(String, Action)>> = OnceLock::new();
    FAULTS.get_or_init(|| parse(&std::env::var(VARIABLE).unwrap_or_default()))
}

/// Whether something is to happen at a step: asked where whoever hangs would hold up others.
pub fn is_set(name: &str) -> bool {
    faults().iter().any(|(point, _)| point == name)
}

/// To be passed at each step where a fault is of interest.
pub fn point(name: &'static str) -> Result<(), Injected> {
    match faults().iter().find(|(point, _)| point == name) {
        None => Ok(()),
        Some((_, Action::Fail)) => Err(Injected { point: name }),
        Some((_, Action::Kill)) => {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
            Err(Injected { point: name })
        }
        Some((_, Action::Hang)) => match std::env::var_os(MARKS_VARIABLE) {
            Some(marks) => hang(Path::new(&marks), name).map_err(|_| Injected { point: name }),
            None => loop {
                std::thread::park();
            },
        },
    }
}

fn hang(marks: &Path, name: &str) -> std::io::Result<()> {
    let go = marks.join(format!("{name}.go"));
    while !go.exists() {
        std::fs::write(marks.join(name), "")?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn parse(text: &str) -> Vec<(String, Action)> {
    text.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| match entry.split_once(':') {
            Some((point, "kill")) => (point.to_string(), Action::Kill),
            Some((point, "hang")) => (point.to_string(), Action::Hang),
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
        let faults = parse("frozen:kill, saved ,quiesced:hang");
        let expected = [("frozen", Action::Kill), ("saved", Action::Fail), ("quiesced", Action::Hang)];
        assert_eq!(faults, expected.map(|(point, action)| (point.to_string(), action)));
        assert!(parse("").is_empty());
    }

    #[test]
    fn what_hangs_says_so_and_is_let_go() {
        let marks = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let hangs = scope.spawn(|| hang(marks.path(), "frozen").unwrap());
            while !marks.path().join("frozen").exists() {
                std::thread::yield_now();
            }
            assert!(!hangs.is_finished());
            std::fs::write(marks.path().join("frozen.go"), "").unwrap();
        });
        // It does not hang a second time.
        hang(marks.path(), "frozen").unwrap();
    }
}
