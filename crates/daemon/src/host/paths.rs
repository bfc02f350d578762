//! Where the daemon keeps what: three places, each settable, all private to the user.
//!
//! | place | holds | default |
//! | --- | --- | --- |
//! | socket | where the command line finds the daemon | `$XDG_RUNTIME_DIR/rekindled.sock`, `/run/rekindled/` for root, `/tmp/rekindle-UID/` |
//! | state | images, records of sandboxes, logs | `$XDG_STATE_HOME/rekindle`, `~/.local/state/rekindle` |
//! | runs | one run directory a sandbox: rings, pinned memory, sockets | `/dev/shm/rekindle-UID` |
//!
//! Several daemons, each with a state of its own, may have one place for runs. What a daemon makes there begins with the
//! [name](Paths::name) of its state, and nothing else there is its to remove.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Uid;
use rekindle_protocol::daemon::Level;

use crate::error::{Error, Result};
use crate::host::HostError;
use crate::host::own_name;

/// Environment variables that set the places; options of the commands win over them.
pub const SOCKET_VARIABLE: &str = "REKINDLE_SOCKET";
pub const STATE_VARIABLE: &str = "REKINDLE_STATE";
pub const RUNS_VARIABLE: &str = "REKINDLE_RUN_ROOT";

/// How much of a log is kept unless something else is asked for.
pub const LOG_MAX: u64 = 64 << 20;
/// How long who comes to a port waits for the program, unless something else is asked for.
pub const PUBLISH_WAIT: Duration = Duration::from_secs(60);
/// How long contexts that programs have shared are kept without any, unless something else is asked for.
pub const CONTEXT_KEEP: Duration = Duration::from_secs(60);

/// The longest path of a Unix socket, its closing zero left out.
const LONGEST_SOCKET: usize = 107;
/// What comes after the runs' place in the path of a sandbox's socket: `/run/ID/worker-NNNN.sock`.
const SOCKET_TAIL: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    pub socket: PathBuf,
    pub state: PathBuf,
    pub runs: PathBuf,
    /// What the names of all begin with that this state's daemons make in `runs`; empty until [`Paths::named`].
    pub name: String,
    /// Whether `state` and `runs` were named, and are not the usual ones.
    pub given: (bool, bool),
    /// The most bytes of a log that are kept; 0: all.
    pub log_max: u64,
    /// How long who comes to a port of a program that is away waits.
    pub publish_wait: Duration,
    /// How long contexts that programs have shared are kept without any.
    pub context_keep: Duration,
}

impl Paths {
    /// The places given, or their defaults.
    pub fn new(socket: Option<PathBuf>, state: Option<PathBuf>, runs: Option<PathBuf>) -> Result<Paths> {
        let given = (state.is_some(), runs.is_some());
        let paths = Paths {
            given,
            log_max: LOG_MAX,
            publish_wait: PUBLISH_WAIT,
            context_keep: CONTEXT_KEEP,
            socket: absolute(socket.unwrap_or_else(default_socket))?,
            state: absolute(state.unwrap_or_else(default_state))?,
            runs: absolute(
                runs.unwrap_or_else(|| PathBuf::from(format!("/dev/shm/rekindle-{}", Uid::current()))),
            )?,
            name: String::new(),
        };
        let too_long = |path: &Path, most| HostError::PathTooLong { path: path.to_path_buf(), most }.into();
        if paths.socket.as_os_str().len() > LONGEST_SOCKET {
            return Err(too_long(&paths.socket, LONGEST_SOCKET));
        }
        if paths.runs.as_os_str().len() > LONGEST_SOCKET - SOCKET_TAIL {
            return Err(too_long(&paths.runs, LONGEST_SOCKET - SOCKET_TAIL));
        }
        Ok(paths)
    }

    /// Makes the directories that are missing.
    pub fn prepare(&self) -> Result<()> {
        if let Some(parent) = self.socket.parent() {
            private_directory(parent, false)?;
        }
        for path in [
            &self.state,
            &self.sandboxes(),
            &self.services(),
            &self.workflows(),
            &self.service_sockets(),
            &self.tenants(),
            &self.logs(),
            &self.unproven(),
            &self.dumps(),
            &self.driver(),
            &self.pages(),
            &self.last_images(),
            &self.runs,
            &self.run_directories(),
        ] {
            private_directory(path, true)?;
        }
        Ok(())
    }

    /// The same with the state's name, for the daemon that has the state to itself.
    pub fn named(self) -> Paths {
        let name = own_name::of(&self.state);
        Paths { name, ..self }
    }

    /// A name that nothing else in `runs` has.
    pub fn new_id(&self) -> Result<String> {
        Ok(format!("{}{}", self.name, own_name::random()?))
    }

    /// Whether something in `runs` was made by a daemon of this state.
    pub fn is_own(&self, name: &str) -> bool {
        !self.name.is_empty() && name.starts_with(&self.name)
    }

    pub fn store(&self) -> PathBuf {
        self.state.join("store")
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub fn services(&self) -> PathBuf {
        self.state.join("services")
    }

    pub fn workflows(&self) -> PathBuf {
        self.state.join("workflows")
    }

    /// Where programs of this machine come to services that reach no port. Not below `runs`: a sandbox has a `/dev/shm` of its own.
    pub fn service_sockets(&self) -> PathBuf {
        let mut place = self.socket.clone().into_os_string();
        place.push(".services");
        PathBuf::from(place)
    }

    pub fn tenants(&self) -> PathBuf {
        self.state.join("tenants")
    }

    /// Names images that are yet to be proven.
    pub fn unproven(&self) -> PathBuf {
        self.state.join("unproven")
    }

    /// What is known of other nodes, and this one's key.
    pub fn nodes(&self) -> PathBuf {
        self.state.join("nodes")
    }

    pub fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// Where CRIU writes what then goes into an image; on the store's file system, so that nothing is copied.
    pub fn dumps(&self) -> PathBuf {
        self.state.join("dumps")
    }

    /// What the driver is about to do to which processes.
    pub fn driver(&self) -> PathBuf {
        self.state.join("driver")
    }

    /// The page files that restored programs map, a directory for each sandbox: links, so that an image may go while
    /// programs run from it. On the store's file system therefore.
    pub fn pages(&self) -> PathBuf {
        self.state.join("pages")
    }

    /// The page files of the last images of programs that go on, a directory for each. Links too.
    pub fn last_images(&self) -> PathBuf {
        self.state.join("last-images")
    }

    /// The store for GPU halves that sleep at this level. What is left on the GPU has a small rest.
    pub fn asleep(&self, level: Level) -> PathBuf {
        match level {
            Level::Gpu => self.runs.join("asleep-gpu").join(&self.name),
            Level::Host => self.runs.join("asleep").join(&self.name),
            Level::Disk => self.state.join("asleep"),
        }
    }

    /// The store that GPU halves go through from one GPU to another.
    pub fn moving(&self) -> PathBuf {
        self.runs.join("moving").join(&self.name)
    }

    /// The store of GPU halves that other workers would go on from if theirs were lost.
    pub fn mending(&self) -> PathBuf {
        self.runs.join("mending").join(&self.name)
    }

    /// Builds of the client that programs have mapped, by their hashes.
    pub fn clients(&self) -> PathBuf {
        self.runs.join("clients").join(&self.name)
    }

    /// What CRIU has found out about the kernel. In memory: another kernel may be different.
    pub fn criu_cache(&self) -> PathBuf {
        self.runs.join("criu.kdat")
    }

    pub fn run_directories(&self) -> PathBuf {
        self.runs.join("run")
    }

    /// Where workers listen that wait for a sandbox.
    pub fn pool(&self) -> PathBuf {
        self.runs.join(format!("pool-{}", self.name))
    }

    /// Where the memory daemon is found.
    pub fn data_socket(&self) -> PathBuf {
        self.runs.join(format!("data-{}.sock", self.name))
    }

    /// Where the memory daemon asks for what other nodes have.
    pub fn elsewhere_socket(&self) -> PathBuf {
        self.runs.join(format!("elsewhere-{}.sock", self.name))
    }

    /// The pages by which the workers of a GPU share its link. They outlive a daemon, as workers do.
    pub fn links(&self) -> PathBuf {
        self.runs.join("links").join(&self.name)
    }

    /// Where processes listen whose contexts are shared.
    pub fn contexts(&self) -> PathBuf {
        self.runs.join(format!("contexts-{}", self.name))
    }

    pub fn daemon_log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    /// Keeps CRIU's words, which an error speaks of, when the directory that they are in goes: those of the last
    /// checkpoint and of the last restore that failed.
    pub fn keep_words(&self, error: rekindle_sandbox::Error) -> Error {
        Error::Sandbox(match error {
            rekindle_sandbox::Error::Criu { action, cause, log } => {
                let place = self.logs().join(format!("last-{action}.log"));
                let log = log.and_then(|log| std::fs::copy(log, &place).ok()).map(|_| place);
                rekindle_sandbox::Error::Criu { action, cause, log }
            }
            other => other,
        })
    }

    pub fn lock(&self) -> PathBuf {
        self.state.join("lock")
    }
}

fn absolute(path: PathBuf) -> Result<PathBuf> {
    std::path::absolute(&path).map_err(|source| Error::io("find", &path, source))
}

fn default_socket() -> PathBuf {
    let uid = Uid::current();
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        Some(runtime) => PathBuf::from(runtime),
        None if uid.is_root() && Path::new("/run").is_dir() => PathBuf::from("/run/rekindled"),
        None => PathBuf::from(format!("/tmp/rekindle-{uid}")),
    };
    directory.join("rekindled.sock")
}

fn default_state() -> PathBuf {
    match std::env::var_os("XDG_STATE_HOME").filter(|value| !value.is_empty()) {
        Some(state) => PathBuf::from(state).join("rekindle"),
        None => std::env::home_dir().unwrap_or_else(|| PathBuf::from("/root")).join(".local/state/rekindle"),
    }
}

/// Makes a directory that only this user may enter. One that exists must belong to this user, so that nobody else can
/// put things into it; with `strict` its mode is narrowed too.
pub fn private_directory(path: &Path, strict: bool) -> Result<()> {
    let failed = |source: io::Error| Error::io("make directory", path, source);
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let found = fs::metadata(path).map_err(failed)?;
    if found.uid() != Uid::effective().as_raw() {
        if strict {
            return Err(HostError::ForeignDirectory { path: path.to_path_buf(), owner: found.uid() }.into());
        }
    } else if strict && found.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_wins_and_is_made_private() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| Some(root.path().join(name));
        let paths = Paths::new(at("s/d.sock"), at("state"), at("runs")).unwrap();
        paths.prepare().unwrap();
        assert_eq!(paths.socket, root.path().join("s/d.sock"));
        for path in [paths.state.clone(), paths.run_directories(), paths.logs()] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn paths_too_long_for_sockets_are_refused() {
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        assert!(matches!(
            Paths::new(Some(long.clone()), None, None),
            Err(Error::Host(HostError::PathTooLong { .. }))
        ));
        assert!(matches!(
            Paths::new(None, None, Some(long)),
            Err(Error::Host(HostError::PathTooLong { .. }))
        ));
    }
}
