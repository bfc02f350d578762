//! Names of sandboxes. They are kept inside records and never become file names, so that anything printable will do.

use std::path::Path;

use crate::error::Result;
use crate::sandboxes::SandboxError;

/// The longest name, bytes.
const LONGEST: usize = 1024;

pub fn check(name: &str) -> Result<()> {
    let reason = match name {
        "" => "a name has at least one character",
        long if long.len() > LONGEST => "a name has at most 1,024 bytes",
        odd if odd.chars().any(char::is_control) => "a name has no control characters",
        _ => return Ok(()),
    };
    Err(SandboxError::BadName { shown: name.chars().take(40).collect(), reason }.into())
}

/// A name made from `stem` that is not taken: `train.py-1`, `train.py-2` and so on.
pub fn unused(stem: &str, taken: impl Fn(&str) -> bool) -> String {
    (1u64..).map(|number| format!("{stem}-{number}")).find(|name| !taken(name)).unwrap_or_default()
}

/// What to call a sandbox that runs this command: its script if there is one, else its program.
pub fn stem(command: &[String]) -> String {
    let script = command.iter().skip(1).find(|argument| {
        !argument.starts_with('-') && Path::new(argument).extension().is_some_and(|ending| ending == "py")
    });
    let path = script.or(command.first()).map_or("", String::as_str);
    let stem: String = Path::new(path)
        .file_name()
        .map(|name| name.to_string_lossy())
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .take(60)
        .collect();
    if stem.is_empty() { "sandbox".to_string() } else { stem }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn hostile_names_are_fine_and_broken_ones_are_not() {
        for name in ["../../etc/passwd", "$(reboot)", "a b;c|d", "-rf", "ünïcode ☃", "'", "\\"] {
            check(name).unwrap();
        }
        for name in ["", "a\nb", "\u{1b}[31m", "\0"] {
            assert!(check(name).is_err(), "{name:?}");
        }
        assert!(check(&"x".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn names_are_made_from_the_command() {
        let of = |words: &[&str]| stem(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        assert_eq!(of(&["/usr/bin/python3", "-u", "examples/train.py", "--lr", "1"]), "train.py");
        assert_eq!(of(&["/bin/sleep", "1"]), "sleep");
        assert_eq!(of(&["/"]), "sandbox");
        let mut taken = HashSet::new();
        for _ in 0..1_000 {
            let name = unused("a", |name| taken.contains(name));
            assert!(taken.insert(name));
        }
    }
}
