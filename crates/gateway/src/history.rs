//! Which stages instances came through of late, so that whoever looks later sees it too.
//!
//! ```text
//!   web-1  starting ─▶ running ───────▶ falling-asleep ─▶ asleep ┄ now
//!   web-2       waiting ─▶ starting ─▶ running ─▶ ending ─▶ gone
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rekindle_protocol::daemon::Level;
use serde::Serialize;

use crate::policy::Stage;

/// What happened before that is forgotten, but for the stage that an instance was at then.
const SPAN: Duration = Duration::from_secs(15 * 60);
/// How many stages are kept of an instance, and how many instances that have gone.
const STEPS: usize = 200;
const GONE: usize = 100;

/// An instance, from when it was first heard of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lane {
    pub instance: String,
    /// Stages, the first one first, and since when it was at each.
    pub steps: VecDeque<Step>,
    /// When it was not there any more, milliseconds since 1970.
    pub gone_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub stage: Stage,
    /// Where its GPU memory was, if it slept.
    pub level: Option<Level>,
    /// Milliseconds since 1970.
    pub since_ms: u64,
}

/// That of one service.
#[derive(Default)]
pub struct History {
    live: BTreeMap<u32, Lane>,
    gone: VecDeque<Lane>,
}

impl History {
    /// Notes at which stage each instance is now: by its number, with its seat. Nothing is done if nothing has changed.
    pub fn note(
        &mut self,
        instances: impl Iterator<Item = (u32, u32, (Stage, Option<Level>))> + Clone,
        name: impl Fn(u32) -> String,
        now: SystemTime,
    ) {
        let last = |lane: &Lane| lane.steps.back().map(|last| (last.stage, last.level));
        let known = self.live.iter().map(|(number, lane)| (*number, last(lane)));
        if known.eq(instances.clone().map(|(number, _, now)| (number, Some(now)))) {
            return;
        }
        let since_ms = milliseconds(now);
        let mut before = std::mem::take(&mut self.live);
        for (number, slot, (stage, level)) in instances {
            let new = || Lane { instance: name(slot), steps: VecDeque::new(), gone_ms: None };
            let mut lane = before.remove(&number).unwrap_or_else(new);
            if last(&lane) != Some((stage, level)) {
                lane.steps.push_back(Step { stage, level, since_ms });
            }
            self.live.insert(number, lane);
        }
        self.gone.extend(before.into_values().map(|lane| Lane { gone_ms: Some(since_ms), ..lane }));
        self.forget(since_ms);
    }

    /// Those of late, the first to come first.
    pub fn lanes(&mut self, now: SystemTime) -> Vec<Lane> {
        self.forget(milliseconds(now));
        self.gone.iter().chain(self.live.values()).cloned().collect()
    }

    fn forget(&mut self, now_ms: u64) {
        let since = now_ms.saturating_sub(SPAN.as_millis() as u64);
        self.gone.retain(|lane| lane.gone_ms.is_none_or(|gone| gone > since));
        let surplus = self.gone.len().saturating_sub(GONE);
        self.gone.drain(..surplus);
        for Lane { steps, .. } in self.live.values_mut().chain(&mut self.gone) {
            while steps.len() > STEPS || steps.get(1).is_some_and(|second| second.since_ms <= since) {
                steps.pop_front();
            }
        }
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn note(history: &mut History, instances: &[(u32, Stage)], seconds: u64) {
        let instances = instances.iter().map(|(number, stage)| (*number, number + 10, (*stage, None)));
        history.note(instances, |slot| format!("web-{slot}"), at(seconds));
    }

    #[test]
    fn stages_are_kept_with_their_times_and_those_who_went() {
        let mut history = History::default();
        note(&mut history, &[(1, Stage::Starting)], 100);
        note(&mut history, &[(1, Stage::Starting)], 101);
        note(&mut history, &[(1, Stage::Running), (2, Stage::Waiting)], 102);
        note(&mut history, &[(2, Stage::Starting)], 103);
        let lanes = history.lanes(at(104));
        let steps =
            |lane: &Lane| lane.steps.iter().map(|step| (step.stage, step.since_ms)).collect::<Vec<_>>();
        assert_eq!((lanes[0].instance.as_str(), lanes[0].gone_ms), ("web-11", Some(103_000)));
        assert_eq!(steps(&lanes[0]), [(Stage::Starting, 100_000), (Stage::Running, 102_000)]);
        assert_eq!((lanes[1].instance.as_str(), lanes[1].gone_ms), ("web-12", None));
        assert_eq!(steps(&lanes[1]), [(Stage::Waiting, 102_000), (Stage::Starting, 103_000)]);
    }

    #[test]
    fn a_lower_level_is_another_step() {
        let mut history = History::default();
        for (level, seconds) in [(Level::Gpu, 1), (Level::Gpu, 2), (Level::Host, 3)] {
            let asleep = (Stage::Asleep, Some(level));
            history.note(std::iter::once((1, 11, asleep)), |slot| format!("web-{slot}"), at(seconds));
        }
        let lanes = history.lanes(at(4));
        let steps: Vec<_> = lanes[0].steps.iter().map(|step| (step.level, step.since_ms)).collect();
        assert_eq!(steps, [(Some(Level::Gpu), 1000), (Some(Level::Host), 3000)]);
    }

    #[test]
    fn what_is_long_past_is_forgotten_but_for_the_stage_that_lasts() {
        let (mut history, span) = (History::default(), SPAN.as_secs());
        note(&mut history, &[(1, Stage::Starting), (2, Stage::Running)], 1);
        note(&mut history, &[(1, Stage::Running)], 2);
        assert_eq!(history.lanes(at(3)).len(), 2);
        let lanes = history.lanes(at(3 + span));
        assert_eq!(lanes.len(), 1);
        assert_eq!(lanes[0].steps, [Step { stage: Stage::Running, level: None, since_ms: 2000 }]);
    }

    #[test]
    fn a_clock_that_is_set_back_or_on_loses_no_stage_that_lasts() {
        let (mut history, span) = (History::default(), SPAN.as_secs());
        note(&mut history, &[(1, Stage::Starting), (2, Stage::Starting)], 100 * span);
        note(&mut history, &[(1, Stage::Running), (2, Stage::Running)], 50);
        note(&mut history, &[(1, Stage::Asleep)], 60);
        let stages = |lane: &Lane| lane.steps.iter().map(|step| step.stage).collect::<Vec<_>>();
        let lanes = history.lanes(at(0));
        assert_eq!(lanes.len(), 2);
        assert_eq!(stages(&lanes[1]), [Stage::Starting, Stage::Running, Stage::Asleep]);
        let lanes = history.lanes(at(1_000 * span));
        assert_eq!(lanes.len(), 1);
        assert_eq!(stages(&lanes[0]), [Stage::Asleep]);
    }

    #[test]
    fn no_more_is_kept_than_fits() {
        let mut history = History::default();
        for turn in 0..1000 {
            let stage = if turn % 2 == 0 { Stage::Running } else { Stage::Asleep };
            note(&mut history, &[(1, stage), (turn + 2, Stage::Starting)], 1);
        }
        let lanes = history.lanes(at(1));
        assert_eq!(lanes.len(), GONE + 2);
        assert!(lanes.iter().all(|lane| lane.steps.len() <= STEPS));
        assert_eq!(lanes[GONE].steps.back().unwrap().stage, Stage::Asleep);
    }
}
