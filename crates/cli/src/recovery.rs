//! What `run` is told of images at intervals, and of what comes after a failure.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use jiff::SignedDuration;
use rekindle_protocol::daemon::{RecoveryPlan, StepPlan};

/// The shortest interval.
const SHORTEST: Duration = Duration::from_millis(100);
/// How often a program may fail without coming farther, if the user does not say.
const RESTARTS: u32 = 5;
const KEPT: u32 = 3;

#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("images").args(["every", "every_steps"]).multiple(true))]
pub struct RecoveryArguments {
    /// Take an image so often, such as 30s or 10m, while the program goes on; they are called NAME.1, NAME.2, …
    #[arg(long, value_name = "TIME", value_parser = interval, conflicts_with = "from")]
    every: Option<Duration>,
    /// Take an image after so many steps of the program's, which it tells by `rekindle.step()`, or by --step-file.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "from")]
    every_steps: Option<u64>,
    /// Each change of this file by the program is a step.
    #[arg(long, value_name = "FILE", requires = "every_steps")]
    step_file: Option<PathBuf>,
    /// How many of these images stay.
    #[arg(long, value_name = "COUNT", requires = "images", value_parser = clap::value_parser!(u32).range(1..=1000))]
    keep: Option<u32>,
    /// Bring the program back from its last image, or start it anew without one, if it fails: no, on-failure or
    /// on-failure:N.
    ///
    /// A program fails if it ends with another exit code than 0 or by a signal that you did not send it, loses its GPU
    /// memory, or was running when the machine ended. After N failures without coming farther (5 if you do not say) it
    /// is given up.
    #[arg(long, value_name = "WHEN", value_parser = restarts, default_value = "no", conflicts_with = "from")]
    restart: Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Restart(Option<u32>);

impl RecoveryArguments {
    /// None if nothing is wanted.
    pub fn plan(&self) -> Option<RecoveryPlan> {
        let every_ms = self.every.map(|every| every.as_millis() as u64);
        let steps = self.every_steps.map(|every| StepPlan { every, file: self.step_file.clone() });
        let plan =
            RecoveryPlan { every_ms, steps, keep: self.keep.unwrap_or(KEPT), restarts: self.restart.0 };
        (every_ms.is_some() || plan.steps.is_some() || plan.restarts.is_some()).then_some(plan)
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<SignedDuration>().map(Duration::try_from) {
        Ok(Ok(every)) if every >= SHORTEST => Ok(every),
        Ok(_) => Err("expected at least 100ms".to_string()),
        Err(_) => Err("expected a time with its unit, such as 30s, 10m or 1h".to_string()),
    }
}

fn restarts(text: &str) -> Result<Restart, String> {
    let most = match text.split_once(':') {
        None if text == "no" => Some(None),
        None if text == "on-failure" => Some(Some(RESTARTS)),
        Some(("on-failure", count)) => count.parse().ok().filter(|count| *count > 0).map(Some),
        _ => None,
    };
    most.map(Restart).ok_or_else(|| "expected no, on-failure, or on-failure:N with N at least 1".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_both_kinds_are_understood() {
        assert_eq!(restarts("no"), Ok(Restart(None)));
        assert_eq!(restarts("on-failure"), Ok(Restart(Some(RESTARTS))));
        assert_eq!(restarts("on-failure:7"), Ok(Restart(Some(7))));
        for bad in ["", "yes", "on-failure:", "on-failure:0", "on-failure:-1", "always"] {
            assert!(restarts(bad).is_err(), "{bad}");
        }
        assert_eq!(interval("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(["30", "0s", "1ms", "soon"].iter().all(|bad| interval(bad).is_err()));
    }
}
