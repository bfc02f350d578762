//! What programs use, as it changes.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{PoolTarget, Request, Spare, Stats};
use rekindle_protocol::exchange::{Count, MoveCounts};
use serde_json::{Value, json};

use crate::commands::Printer;
use crate::connection::simply_ask;
use crate::error::Result;
use crate::foreground::Output;
use crate::show;

const EVERY: Duration = Duration::from_secs(1);
/// Clears a terminal, and begins at its top.
const ANEW: &str = "\x1b[H\x1b[2J";

/// What programs use, and how much of a processor since they were looked at before.
pub struct Used {
    pub stats: Stats,
    pub processor_percent: Option<f64>,
}

/// What one look has found.
struct Look {
    used: Vec<Used>,
    pool: Vec<Spare>,
    targets: Vec<PoolTarget>,
    handed_on: Vec<Count>,
    moves: MoveCounts,
}

/// What is known of each by the time it was looked at.
#[derive(Default)]
struct Before {
    processor_us: HashMap<String, (Instant, u64)>,
}

impl Before {
    fn compare(&mut self, all: Vec<Stats>, now: Instant) -> Vec<Used> {
        let former = std::mem::take(&mut self.processor_us);
        let compare = |stats: Stats| {
            let known = former.get(&stats.name).filter(|_| stats.processes > 0);
            let processor_percent = known.map(|(then, used)| {
                // One that was brought back meanwhile has begun anew.
                let more = stats.processor_us.saturating_sub(*used);
                100.0 * more as f64 / (now - *then).as_micros().max(1) as f64
            });
            self.processor_us.insert(stats.name.clone(), (now, stats.processor_us));
            Used { stats, processor_percent }
        };
        all.into_iter().map(compare).collect()
    }
}

/// Shows it once, or again and again: until this command is ended, or all that were named have.
pub fn perform(paths: &Paths, printer: &Printer, names: &[String], once: bool) -> Result<()> {
    let mut before = Before::default();
    let mut look = || -> Result<Look> {
        let mut answer = simply_ask(paths, &Request::Stats { names: names.to_vec() })?;
        Ok(Look {
            used: before.compare(serde_json::from_value(answer["sandboxes"].take())?, Instant::now()),
            pool: serde_json::from_value(answer["pool"].take())?,
            targets: serde_json::from_value(answer["pool_targets"].take())?,
            handed_on: serde_json::from_value(answer["handed_on"].take())?,
            moves: serde_json::from_value(answer["handed_on_moves"].take())?,
        })
    };
    look()?;
    loop {
        std::thread::sleep(EVERY);
        let found = look()?;
        if !once && !printer.json && std::io::stdout().is_terminal() {
            Output::Stdout.write(ANEW.as_bytes());
        }
        let shown = || {
            let stats = show::stats(&found.used, &found.handed_on, found.moves);
            stats + &show::pool(&found.pool, &found.targets)
        };
        printer.print(&document(&found), shown);
        let have_ended = || found.used.iter().all(|used| !used.stats.state.is_live());
        if once || (!names.is_empty() && have_ended()) {
            return Ok(());
        }
    }
}

fn document(found: &Look) -> Value {
    let each = found.used.iter().map(|used| {
        let mut value = json!(used.stats);
        value["processor_percent"] = json!(used.processor_percent);
        value
    });
    json!({
        "sandboxes": each.collect::<Vec<_>>(),
        "pool": found.pool,
        "pool_targets": found.targets,
        "handed_on": found.handed_on,
        "handed_on_moves": found.moves,
    })
}

#[cfg(test)]
mod tests {
    use rekindle_protocol::daemon::State;

    use super::*;

    fn stats(name: &str, processor_us: u64, processes: u64) -> Stats {
        Stats { name: name.to_string(), state: State::Running, processes, processor_us, ..Stats::default() }
    }

    #[test]
    fn processors_are_counted_between_two_looks() {
        let (mut before, begin) = (Before::default(), Instant::now());
        let percents = |before: &mut Before, all: Vec<Stats>, seconds: u64| -> Vec<Option<f64>> {
            let used = before.compare(all, begin + Duration::from_secs(seconds));
            used.iter().map(|used| used.processor_percent).collect()
        };
        let all = vec![stats("a", 1_000_000, 1), stats("b", 0, 1)];
        assert_eq!(percents(&mut before, all, 0), [None, None]);
        let all = vec![stats("a", 4_000_000, 2), stats("b", 500_000, 1), stats("c", 9, 1)];
        assert_eq!(percents(&mut before, all, 2), [Some(150.0), Some(25.0), None]);
        let all = vec![stats("a", 1, 1), stats("b", 500_000, 0)];
        assert_eq!(percents(&mut before, all, 3), [Some(0.0), None], "one began anew, the other has ended");
    }
}
