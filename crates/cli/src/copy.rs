//! Files and directories into a sandbox and out of it, through a pipe.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::Request;
use rekindle_sandbox::{pack, unpack};
use serde_json::Value;

use crate::connection::ask_passing;
use crate::error::{Error, Result};

/// One end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Here(String),
    Sandbox { name: String, path: String },
}

impl End {
    /// `NAME:PATH` is of a sandbox. What begins with a dot or a slash is here, whatever follows.
    pub fn parse(text: &str) -> std::result::Result<End, String> {
        match text.split_once(':') {
            Some(("", _)) | Some((_, "")) => Err("expected PATH, or SANDBOX:PATH".to_string()),
            Some((name, path)) if !text.starts_with(['.', '/']) => {
                Ok(End::Sandbox { name: name.to_string(), path: path.to_string() })
            }
            _ => Ok(End::Here(text.to_string())),
        }
    }
}

/// Copies; one end is here, the other in a sandbox.
pub fn perform(paths: &Paths, from: End, to: End) -> Result<Value> {
    let (reader, mut writer) = io::pipe().map_err(|source| Error::system("make a pipe", source))?;
    let failed = |source| Error::system("copy", source);
    match (from, to) {
        (End::Sandbox { name, path }, End::Here(place)) => std::thread::scope(|scope| {
            let unpacked = scope.spawn(move || unpack(reader, Path::new(&place)));
            let answer = ask_passing(paths, &Request::CopyOut { name, path }, &[writer.as_fd()], |_| Ok(()));
            drop(writer);
            let unpacked = unpacked.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
            // What was not sent whole is not there whole: the sender knows why, unless nobody read it.
            match (answer, unpacked) {
                (Ok(answer), Ok(())) => Ok(answer),
                (Ok(_), Err(error)) => Err(failed(error)),
                (Err(error), Err(ours)) if error.to_string().contains("Broken pipe") => Err(failed(ours)),
                (Err(error), _) => Err(error),
            }
        }),
        (End::Here(place), End::Sandbox { name, path }) => std::thread::scope(|scope| {
            let packed = scope.spawn(move || pack(Path::new(&place), &mut writer));
            let answer = ask_passing(paths, &Request::CopyIn { name, path }, &[reader.as_fd()], |_| Ok(()));
            drop(reader);
            let packed = packed.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
            match (answer, packed) {
                (Err(error), Ok(())) => Err(error),
                (Err(error), Err(ours)) if ours.to_string().contains("Broken pipe") => Err(error),
                (_, Err(ours)) => Err(failed(ours)),
                (Ok(answer), Ok(())) => Ok(answer),
            }
        }),
        _ => Err(Error::Ends),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_before_a_colon_is_a_sandboxs() {
        let sandbox = |name: &str, path: &str| End::Sandbox { name: name.into(), path: path.into() };
        assert_eq!(End::parse("train:/dev/shm/x"), Ok(sandbox("train", "/dev/shm/x")));
        assert_eq!(End::parse("train:a:b"), Ok(sandbox("train", "a:b")));
        for here in ["file", "./a:b", "/a:b", "../a:b"] {
            assert_eq!(End::parse(here), Ok(End::Here(here.into())));
        }
        assert!(End::parse("train:").is_err() && End::parse(":x").is_err());
    }
}
