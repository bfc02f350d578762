//! A restore, as seen from inside the sandbox: a conversation with `criu swrk`.
//!
//! CRIU announces each step and waits for leave to go on. At `post-restore` (the program is complete, not yet running) the
//! daemon is asked; any answer but [`Verdict::Commit`] makes CRIU undo what it did. CRIU outlives a daemon that dies
//! meanwhile.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Pid;
use rekindle_parallel::Urgent;
use rekindle_protocol::mounts::Overlay;
use rekindle_protocol::terminal::WindowSize;

use super::haste::Haste;
use super::mounts::{LOG_PATH, RUN_PATH};
use super::program::{FIRST_PID, open_log, set_last_pid};
use crate::conversation::{ConversationOptions, Failed, Library, Service};
use crate::ending::{AFTER_RESTORE, BEFORE_RESUME};
use crate::log_index::Stream;
use crate::message::{Begin, Reply, Restore, Step, Verdict};
use crate::outputs::{self, Output};
use crate::overlay::Layers;
use crate::rpc::{self, Options};
use crate::severed;
use crate::terminal::Terminal;
use crate::wire::Channel;
use crate::{devshm, input, process, processor, socket_places};

/// CRIU's log, in the run directory.
pub const RESTORE_LOG: &str = "restore.log";

/// A program that CRIU has brought back.
pub struct Restored {
    pub program: Pid,
    /// Our ends of what it writes to outside of its tree.
    pub outputs: Vec<Output>,
    pub layers: Layers,
    /// The one that it was started with first.
    pub terminals: Vec<Terminal>,
    /// It has done its work and is ending, which nobody need wait for before CRIU is wanted again.
    pub criu: Service,
    /// What it does not have as it had it: a sentence each.
    pub warnings: Vec<String>,
}

/// Has CRIU bring a program back. Its process is started at once, and told of the image when that is ready.
pub fn restore(
    restore: &Restore,
    overlays: &[Overlay],
    mut sockets: Vec<OwnedFd>,
    channel: &Channel,
) -> Result<Restored, Failed> {
    let input = restore.input.as_ref().and_then(|key| Some((key, sockets.pop()?)));
    if sockets.len() != restore.sockets.len() {
        return Err(Failed::Criu("the sockets did not come with the command".into()));
    }
    let log = open_log().map_err(|error| Failed::Criu(format!("opening {LOG_PATH}: {error}")))?;
    // The images may be read-only, and in use by another restore.
    let work =
        fs::File::open(RUN_PATH).map_err(|error| Failed::Criu(format!("opening {RUN_PATH}: {error}")))?;
    let keys = restore.sockets.iter().map(|inode| format!("socket:[{inode}]"));
    let mut inherit: Vec<_> = keys.zip(sockets.iter().map(AsRawFd::as_raw_fd)).collect();
    inherit.extend(input.iter().map(|(key, pipe)| (key.to_string(), pipe.as_raw_fd())));
    // CRIU names a regular file by its path without the leading slash.
    inherit.push((LOG_PATH.trim_start_matches('/').to_owned(), log.as_raw_fd()));
    let mut files = Vec::new();
    for file in &restore.files {
        let named = |error| Failed::Criu(format!("opening {}: {error}", file.path.display()));
        let opened = file.open().map_err(named)?;
        inherit.push((file.key(), opened.as_raw_fd()));
        files.push(opened);
    }
    let Replaced { outputs, terminals, theirs } = replace(restore, &mut inherit)?;
    let passed: Vec<_> = inherit.iter().map(|(_, fd)| *fd).collect();
    // Pids that the program had elsewhere may be any.
    set_last_pid(restore.highest_pid.max(1))
        .map_err(|error| Failed::Criu(format!("choosing CRIU's pid: {error}")))?;
    // CRIU comes of this thread. It gives each thread of the program the priority that it had.
    let _urgent = Urgent::begin();
    let given = restore.uses.are_any().then(processor::Given::new).transpose();
    let mut given =
        given.map_err(|error| Failed::Criu(format!("making room for {}: {error}", processor::NAME)))?;
    let library = given.as_ref().map(|given| given as &dyn Library);
    let mut criu = Service::spawn(&restore.criu, &passed, None, library)?;
    // CRIU has them.
    drop(theirs);
    let (Begin { steps_told }, images) = begin(channel)?;
    let dir = PathBuf::from(format!("/proc/self/fd/{}", images.as_raw_fd()));
    if let Some((key, pipe)) = &input {
        input::refill(&dir, key, pipe)
            .map_err(|error| Failed::Criu(format!("putting back what was in the standard input: {error}")))?;
    }
    let shared = dir.join(devshm::NAME);
    if shared.exists() {
        devshm::unpack(&shared, Path::new("/dev/shm"))
            .map_err(|error| Failed::Criu(format!("putting back the files in /dev/shm: {error}")))?;
    }
    if let Some(given) = &mut given {
        given.fill(&dir).map_err(|error| Failed::Criu(format!("reading {}: {error}", processor::NAME)))?;
    }
    let layers = Layers::mount(overlays, Some(&dir)).map_err(Failed::Criu)?;
    socket_places::make(&dir).map_err(Failed::Criu)?;
    let options = Options {
        images_dir: images.as_raw_fd(),
        work_dir: Some(work.as_raw_fd()),
        tcp_established: true,
        shell_job: restore.session_outside,
        log_file: RESTORE_LOG,
        log_level: if steps_told { rpc::LOG_STEPS } else { rpc::LOG_TROUBLE },
        external: restore.sockets.iter().map(|inode| format!("unix[{inode}]")).collect(),
        inherit,
        ..Options::default()
    };
    // New children of the program get pids above the restored ones, as far from CRIU's as those.
    let raise_pids = || {
        let last = process::all().into_iter().max().unwrap_or(FIRST_PID).max(FIRST_PID);
        set_last_pid(last).map_err(|error| format!("choosing the next pid: {error}"))
    };
    let whole = Duration::from_millis(restore.timeout_millis);
    let course = ConversationOptions {
        whole: Some(whole),
        log: Path::new(RUN_PATH).join(RESTORE_LOG),
        restores: Some(dir.clone()),
    };
    let mut warnings = Vec::new();
    let mut haste = Haste::begin(&dir, criu.pid(), &restore.attributes);
    let restored = criu.converse(&rpc::restore_request(&options), &course, &mut |step, steps| match step {
        AFTER_RESTORE => {
            haste.complete();
            given.iter().try_for_each(processor::Given::check)?;
            raise_pids().and_then(|()| severed::reset(&dir)).and_then(|()| ask(channel, whole, steps))
        }
        // All its threads stand still for the last time.
        BEFORE_RESUME => {
            warnings.extend(haste.end());
            Ok(())
        }
        _ => Ok(()),
    });
    criu.step("end");
    // A CRIU that does not announce that.
    warnings.extend(haste.end());
    restored?
        .map(|program| Restored {
            program: Pid::from_raw(program),
            outputs,
            terminals,
            layers,
            criu,
            warnings,
        })
        .ok_or_else(|| Failed::Criu("CRIU restored a program without telling its pid".into()))
}

/// Our ends of what a restored program writes to, and what CRIU gives it.
struct Replaced {
    outputs: Vec<Output>,
    terminals: Vec<Terminal>,
    theirs: Vec<OwnedFd>,
}

/// Makes what a program wrote to anew. CRIU sets terminals as they were.
fn replace(restore: &Restore, inherit: &mut Vec<(String, RawFd)>) -> Result<Replaced, Failed> {
    let (mut outputs, mut terminals, mut theirs) = (Vec::new(), Vec::<Terminal>::new(), Vec::new());
    let failed = |key: &str| {
        let key = key.to_owned();
        move |error| Failed::Criu(format!("replacing {key}: {error}"))
    };
    for key in &restore.outputs {
        let end = if outputs::is_terminal(key) {
            // What stands for a terminal comes behind it.
            let stands = outputs::is_current(key) && !terminals.is_empty();
            if !stands {
                terminals.push(Terminal::make(WindowSize::default()).map_err(failed(key))?);
            }
            let meant = if stands { terminals.first() } else { terminals.last() };
            // CRIU closes each that it is given.
            meant.map(|terminal| terminal.slave().try_clone()).transpose().map_err(failed(key))?
        } else {
            let stream = if restore.errors.contains(key) { Stream::Stderr } else { Stream::Stdout };
            let (ours, end) = Output::make(stream).map_err(failed(key))?;
            outputs.push(ours);
            Some(end)
        };
        inherit.extend(end.iter().map(|end| (key.clone(), end.as_raw_fd())));
        theirs.extend(end);
    }
    Ok(Replaced { outputs, terminals, theirs })
}

/// Waits for the image, for as long as the daemon lives.
fn begin(channel: &Channel) -> Result<(Begin, OwnedFd), Failed> {
    match channel.recv::<Begin>() {
        Ok(Some((begin, images))) => images
            .into_iter()
            .next()
            .map(|images| (begin, images))
            .ok_or_else(|| Failed::Criu("the images directory did not come with the command".into())),
        Ok(None) => Err(Failed::Aborted("the daemon is gone".into())),
        Err(error) => Err(Failed::Criu(format!("hearing of the image: {error}"))),
    }
}

/// Tells the daemon that the program stands still and waits for its word.
fn ask(channel: &Channel, within: Duration, steps: &mut Vec<Step>) -> Result<(), String> {
    let gone = |error: io::Error| format!("the daemon cannot be asked: {error}");
    channel.send(&Reply::Frozen { steps: std::mem::take(steps) }, &[]).map_err(gone)?;
    if !process::readable(channel.as_fd(), Some(within)).map_err(gone)? {
        return Err(format!("the daemon gave no word within {within:?}"));
    }
    match channel.recv::<Verdict>().map_err(gone)? {
        Some((Verdict::Commit, _)) => Ok(()),
        Some((Verdict::Abort(cause), _)) => Err(cause),
        Some((Verdict::Hold, _)) => Err("only a program that is dumped can be held".into()),
        None => Err("the daemon is gone".into()),
    }
}
