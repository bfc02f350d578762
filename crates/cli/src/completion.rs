//! Completions for shells, names of sandboxes and images among them.
//!
//! ```text
//!  shell ──Tab──▶ rekindle, REKINDLE_COMPLETE=SHELL ──▶ the definition of the command line
//!                                                  └──▶ the daemon, if one runs
//! ```
//!
//! Whatever keeps it from an answer, there are fewer completions then, and no words of it on the user's line.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{Call, Event, Request, Sandbox};
use rekindle_protocol::frame::{self, Limits};
use serde_json::Value;

use crate::arguments::Arguments;
use crate::error::{Error, Result};
use crate::settings::Settings;

/// By which a shell says that it wants completions.
const VARIABLE: &str = "REKINDLE_COMPLETE";
const NAME: &str = "rekindle";
/// How long a shell waits for names.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers a shell and ends, if it is one that asks.
pub fn answer() {
    CompleteEnv::with_factory(Arguments::command).var(VARIABLE).bin(NAME).completer(NAME).complete();
}

/// Prints what a shell is to read to have completions.
pub fn register(shell: clap_complete::Shell) -> Result<()> {
    let failed = |source| Error::system("print completions", source);
    let name = shell.to_string();
    let shells = Shells::builtins();
    let known = shells.completer(&name).ok_or_else(|| failed(io::ErrorKind::Unsupported.into()))?;
    let mut script = Vec::new();
    known.write_registration(VARIABLE, NAME, NAME, NAME, &mut script).map_err(failed)?;
    if shell == clap_complete::Shell::Zsh {
        // zsh reads it from a file at the first completion, and takes it for the function that is to give that.
        let first =
            "if [ \"$funcstack[1]\" = \"_rekindle\" ]; then _clap_dynamic_completer_rekindle \"$@\"; fi\n";
        script.extend_from_slice(first.as_bytes());
    }
    io::stdout().write_all(&script).map_err(failed)
}

/// Names of sandboxes that run.
pub fn running() -> Vec<CompletionCandidate> {
    candidates(sandboxes().into_iter().filter(|sandbox| sandbox.state.is_live()).map(|sandbox| sandbox.name))
}

/// Names of all sandboxes that are known.
pub fn known() -> Vec<CompletionCandidate> {
    candidates(sandboxes().into_iter().map(|sandbox| sandbox.name))
}

/// Names of what can be removed: ended sandboxes, and images.
pub fn removable() -> Vec<CompletionCandidate> {
    let ended = sandboxes().into_iter().filter(|sandbox| !sandbox.state.is_live());
    candidates(ended.map(|sandbox| sandbox.name).chain(image_names()))
}

pub fn images() -> Vec<CompletionCandidate> {
    candidates(image_names().into_iter())
}

/// Names of other nodes.
pub fn nodes() -> Vec<CompletionCandidate> {
    let answer = ask(Request::Nodes).unwrap_or_default();
    let all = answer["nodes"].as_array().cloned().unwrap_or_default();
    candidates(all.iter().filter_map(|node| node["name"].as_str().map(str::to_string)))
}

/// Names of services and workflows, of the tenant that the line has.
pub fn services() -> Vec<CompletionCandidate> {
    let words: Vec<_> = std::env::args_os().collect();
    let tenant = named(&words, "--tenant").and_then(|tenant| tenant.to_str().map(str::to_string));
    let answer = ask(Request::Services { tenant }).unwrap_or_default();
    let all = ["services", "workflows"].into_iter().filter_map(|kind| answer[kind].as_array()).flatten();
    candidates(all.filter_map(|service| service["name"].as_str().map(str::to_string)))
}

/// Names of tenants.
pub fn tenants() -> Vec<CompletionCandidate> {
    let answer = ask(Request::Tenants).unwrap_or_default();
    let all = answer["tenants"].as_array().cloned().unwrap_or_default();
    candidates(all.iter().filter_map(|tenant| tenant["name"].as_str().map(str::to_string)))
}

fn candidates(names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let mut names: Vec<_> = names.filter(|name| is_word(name)).collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Whether every shell takes it for what it is. Others are for the user to quote.
fn is_word(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+,/@%".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain)
}

fn sandboxes() -> Vec<Sandbox> {
    let answer = ask(Request::List).unwrap_or_default();
    serde_json::from_value(answer["sandboxes"].clone()).unwrap_or_default()
}

fn image_names() -> Vec<String> {
    let answer = ask(Request::Images).unwrap_or_default();
    let all = answer["images"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|image| image["name"].as_str().map(str::to_string)).collect()
}

/// Asks the daemon that runs; starts none.
fn ask(request: Request) -> Option<Value> {
    let settings = Settings::load(None).ok()?;
    let words: Vec<_> = std::env::args_os().collect();
    let given =
        |option, variable| named(&words, option).or_else(|| std::env::var_os(variable).map(Into::into));
    let paths = Paths::new(
        settings.place(given("--socket", rekindle_daemon::SOCKET_VARIABLE), rekindle_daemon::SOCKET_VARIABLE),
        settings.place(given("--state", rekindle_daemon::STATE_VARIABLE), rekindle_daemon::STATE_VARIABLE),
        settings.place(given("--run-dir", rekindle_daemon::RUNS_VARIABLE), rekindle_daemon::RUNS_VARIABLE),
    )
    .ok()?;
    let stream = UnixStream::connect(&paths.socket).ok()?;
    frame::send(&stream, &Call { wanted_state: None, wanted_runs: None, request }, &[]).ok()?;
    let limits = Limits { descriptors: 0, time: Some(PATIENCE), ..Limits::default() };
    loop {
        match frame::receive_within::<Event>(&stream, &limits).ok()?.0 {
            Event::Done { value } => return Some(value),
            Event::Failed { .. } => return None,
            _ => {}
        }
    }
}

/// The value that an option has among the words of a command line that is being written.
fn named(words: &[OsString], option: &str) -> Option<PathBuf> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(word) = word.to_str() else { continue };
        match word.strip_prefix(option) {
            Some("") => return words.next().map(PathBuf::from),
            Some(rest) if rest.starts_with('=') => return Some(PathBuf::from(&rest[1..])),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_words_are_offered() {
        for word in ["train.py-1", "a", "A_b+c", "team/model@2"] {
            assert!(is_word(word), "{word}");
        }
        for other in ["", "-d", "a b", "a\nb", "$(reboot)", "a;b", "é", "a'b", "a:b", "~a"] {
            assert!(!is_word(other), "{other}");
        }
    }

    #[test]
    fn places_are_those_of_the_line() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let socket = |line: &str| named(&words(line), "--socket");
        assert_eq!(socket("rekindle --socket /a kill"), Some("/a".into()));
        assert_eq!(socket("rekindle kill --socket=/b"), Some("/b".into()));
        assert_eq!(socket("rekindle kill --sockets /c"), None);
        assert_eq!(socket("rekindle kill --socket"), None);
    }
}
