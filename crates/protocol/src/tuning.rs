//! Switches of which few daemons need one, in a variable for all of them: `REKINDLE_TUNING=NAME=WORD,...`. Names are those of
//! `rekindled.toml`.

pub const VARIABLE: &str = "REKINDLE_TUNING";

pub const SHADOW: &str = "gpu.shadow";
pub const BEHIND: &str = "gpu.behind";
pub const GUARD: &str = "gpu.guard";
pub const UNUSED: &str = "gpu.unused";
pub const MOMENT: &str = "gpu.moment";
pub const CODE: &str = "gpu.code";
pub const SHARE: &str = "cache.share";
pub const PRECOPY: &str = "cpu.precopy";
pub const ASSIST: &str = "cpu.assist";
pub const INCREMENT: &str = "cpu.increment";
pub const MAP_PAGES: &str = "restore.map-pages";
pub const LOAD_ORDER: &str = "restore.order";
pub const HUGE_PAGES: &str = "driver.huge-pages";
pub const PEERS: &str = "driver.peers";
pub const STEP_LIMIT: &str = "driver.step-ms";

const NAMES: [&str; 15] = [
    SHADOW, BEHIND, GUARD, UNUSED, MOMENT, CODE, SHARE, PRECOPY, ASSIST, INCREMENT, MAP_PAGES, LOAD_ORDER,
    HUGE_PAGES, PEERS, STEP_LIMIT,
];

/// What the environment says of a switch.
pub fn word(name: &str) -> Option<String> {
    word_in(&std::env::var(VARIABLE).unwrap_or_default(), name).map(str::to_string)
}

/// Whether the environment says this of a switch.
pub fn is(name: &str, wanted: &str) -> bool {
    word(name).is_some_and(|word| word == wanted)
}

/// What a variable's text says of a switch; the last word counts.
pub fn word_in<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut words = text.split(',').rev().filter_map(|entry| entry.trim().split_once('='));
    words.find(|(known, _)| *known == name).map(|(_, word)| word)
}

/// Fails, in a sentence, where the environment names a switch that there is not.
pub fn check() -> Result<(), String> {
    check_text(&std::env::var(VARIABLE).unwrap_or_default())
}

fn check_text(text: &str) -> Result<(), String> {
    let mut entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    match entries.find(|entry| !entry.split_once('=').is_some_and(|(name, _)| NAMES.contains(&name))) {
        None => Ok(()),
        Some(entry) => {
            Err(format!("{VARIABLE} has {entry:?}, expected NAME=WORD with one of {}", NAMES.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_a_switch_counts() {
        let text = "gpu.shadow=off, driver.huge-pages=/a=b,gpu.shadow=on";
        assert_eq!(word_in(text, SHADOW), Some("on"));
        assert_eq!(word_in(text, HUGE_PAGES), Some("/a=b"));
        assert_eq!(word_in(text, CODE), None);
        assert_eq!(check_text(text), Ok(()));
    }

    #[test]
    fn a_switch_that_there_is_not_is_named() {
        for wrong in ["gpu.shadw=off", "gpu.shadow", "off"] {
            assert!(check_text(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
