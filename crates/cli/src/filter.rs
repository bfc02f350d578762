//! Which sandboxes `ps` shows.

use std::str::FromStr;

use rekindle_protocol::daemon::{Sandbox, State};
use serde_json::{Value, json};

const STATES: [State; 12] = [
    State::Starting,
    State::Running,
    State::Checkpointing,
    State::Restoring,
    State::FallingAsleep,
    State::Asleep,
    State::Waking,
    State::Migrating,
    State::Exited,
    State::Killed,
    State::Stopped,
    State::Failed,
];

/// What a sandbox must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    State(State),
    /// This in its name.
    Name(String),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Filter, String> {
        match text.split_once('=') {
            Some(("name", part)) => Ok(Filter::Name(part.to_string())),
            Some(("state", word)) => {
                let state: Option<State> = serde_json::from_value(json!(word)).ok();
                state.map(Filter::State).ok_or_else(|| {
                    let words: Vec<Value> = STATES.iter().map(|state| json!(state)).collect();
                    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                    format!("expected one of the states {}", words.join(", "))
                })
            }
            _ => Err("expected state=STATE or name=PART".to_string()),
        }
    }
}

/// With `all`, or where an ended state is asked for, those that have ended are shown too.
pub fn is_shown(sandbox: &Sandbox, all: bool, filters: &[Filter]) -> bool {
    let (mut states, mut names) = (Vec::new(), Vec::new());
    for filter in filters {
        match filter {
            Filter::State(state) => states.push(*state),
            Filter::Name(part) => names.push(part),
        }
    }
    let named = names.is_empty() || names.iter().any(|part| sandbox.name.contains(*part));
    let fits = match states.is_empty() {
        true => all || sandbox.state.is_live(),
        false => states.contains(&sandbox.state),
    };
    named && fits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(name: &str, state: State) -> Sandbox {
        let mut value = json!({
            "name": name, "mode": "sandbox", "state": "running", "pid": 1, "command": [], "gpu": "emulated",
            "started": "", "exit_code": null, "image": null, "problem": null, "device_bytes": 0, "pinned_bytes": 0,
        });
        value["state"] = json!(state);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn one_key_means_any_and_several_mean_all() {
        let filters =
            |texts: &[&str]| -> Vec<Filter> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let train = sandbox("train-1", State::Running);
        let ended = sandbox("train-2", State::Killed);
        assert!(is_shown(&train, false, &[]) && !is_shown(&ended, false, &[]) && is_shown(&ended, true, &[]));
        let both = filters(&["state=running", "state=killed"]);
        assert!(is_shown(&train, false, &both) && is_shown(&ended, false, &both));
        let second = filters(&["name=-2", "state=running"]);
        assert!(!is_shown(&train, true, &second) && !is_shown(&ended, true, &second));
        assert!(is_shown(&ended, true, &filters(&["name=other", "name=-2"])));
        assert!(!is_shown(&ended, false, &filters(&["name=-2"])));
    }

    #[test]
    fn every_state_is_known_and_others_are_refused_with_those_that_are() {
        for state in STATES {
            let word = json!(state);
            let parsed = format!("state={}", word.as_str().unwrap()).parse();
            assert_eq!(parsed, Ok(Filter::State(state)));
        }
        let refused = "state=dead".parse::<Filter>().unwrap_err();
        assert!(refused.contains("falling-asleep") && refused.contains("exited"), "{refused}");
        assert!("colour=red".parse::<Filter>().is_err() && "running".parse::<Filter>().is_err());
    }
}
