//! A dump, as seen from inside the sandbox: a conversation with `criu swrk`.
//!
//! CRIU announces each step and waits for leave to go on. At its first it has looked at nothing of the program, and waits
//! there if it was started [ahead](Prepared). At `post-dump` (the images are written, the program still stands) the
//! daemon is asked; any answer but [`crate::message::Verdict::Commit`] makes CRIU undo what it did, unless the program is
//! [held](super::hold). CRIU outlives a daemon that dies meanwhile.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Pid;

use super::hold::Daemon;
use crate::conversation::{Course, Failed, Service};
use crate::lost_names::{self, LostNames};
use crate::message::{Dump, DumpStats};
use crate::overlay::Layers;
use crate::rpc::{self, Options};
use crate::severed::{self, Taking};
use crate::tracer::Place;
use crate::waiting::Waiting;
use crate::{devshm, outputs, process};

/// CRIU's log, among the images.
pub const DUMP_LOG: &str = "dump.log";

/// A CRIU that was asked for a dump, and waits for leave to begin. Dropped, it ends.
pub struct Prepared {
    waiting: Waiting,
    dump: Dump,
    /// The connection to whoever takes the pages, if anybody does.
    server: Option<OwnedFd>,
}

impl Prepared {
    /// With the dump come the images directory and, maybe, a page server.
    pub fn begin(dump: Dump, descriptors: Vec<OwnedFd>, program: Pid) -> Result<Self, Failed> {
        let mut descriptors = descriptors.into_iter();
        let images = descriptors.next();
        let images = images
            .ok_or_else(|| Failed::Criu("the images directory did not come with the command".into()))?;
        let server = descriptors.next();
        let tree = process::tree(program.as_raw());
        let connections = Taking::of(&tree);
        let request = request(&dump, images.as_raw_fd(), server.as_ref(), &tree, connections);
        let passed: Vec<_> = server.iter().map(AsRawFd::as_raw_fd).collect();
        let criu = Service::spawn(&dump.criu, &passed, Some(Place::Here { hides_unwritten: dump.ahead }))?;
        let waiting = Waiting::begin(criu, images.into(), request, connections)?;
        Ok(Self { waiting, dump, server })
    }

    /// Whether it was asked for this dump, of the program as it is now.
    fn fits(&mut self, dump: &Dump, program: Pid) -> bool {
        let tree = process::tree(program.as_raw());
        let connections = Taking::of(&tree);
        let images = self.waiting.images.as_raw_fd();
        let now = || request(dump, images, self.server.as_ref(), &tree, connections);
        self.dump == *dump && self.waiting.connections == connections && self.waiting.is_asked(&now())
    }
}

fn request(dump: &Dump, images: i32, server: Option<&OwnedFd>, tree: &[i32], connections: Taking) -> Vec<u8> {
    let sockets = dump.external_sockets.iter().map(|inode| format!("unix[{inode}]"));
    rpc::dump_request(&Options {
        images_dir: images,
        work_dir: None,
        pid: tree.first().copied(),
        shell_job: process::is_session_outside(tree),
        leave_running: dump.leave_running,
        tcp_established: connections == Taking::Read,
        timeout_seconds: Some(dump.freeze_seconds),
        log_file: DUMP_LOG,
        log_level: if dump.steps_told { rpc::LOG_DEBUG } else { rpc::LOG_TROUBLE },
        external: sockets
            .chain(outputs::external(&outputs::outside(tree)))
            .chain(LostNames::find(tree).external())
            .collect(),
        inherit: Vec::new(),
        page_server: server.map(AsRawFd::as_raw_fd),
    })
}

/// Dumps the program, by the CRIU that was prepared if it is for this.
pub fn dump(
    dump: &Dump,
    prepared: Option<Prepared>,
    layers: &Layers,
    descriptors: Vec<OwnedFd>,
    program: Pid,
    daemon: &Daemon<'_>,
) -> Result<DumpStats, Failed> {
    let fitting = prepared.and_then(|mut prepared| prepared.fits(dump, program).then_some(prepared));
    let prepared = match fitting {
        Some(prepared) => prepared,
        // The program is another by now, or there is none.
        None => Prepared::begin(dump.clone(), descriptors, program)?,
    };
    let Prepared { waiting, server, .. } = prepared;
    refuse_strays(program, waiting.pid())?;
    let images = waiting.images.try_clone();
    let images = images.map_err(|error| Failed::Criu(format!("keeping the images directory: {error}")))?;
    let dir = PathBuf::from(format!("/proc/self/fd/{}", images.as_raw_fd()));
    let shm = Path::new("/dev/shm");
    let keep_shared = || {
        lost_names::settle(&process::tree(program.as_raw()), &dir)?;
        devshm::all(shm)
            .and_then(|paths| devshm::pack(shm, &paths, &dir.join(devshm::NAME)))
            .map_err(|error| format!("packing the files in /dev/shm: {error}"))?;
        layers.keep(&dir)
    };
    let course = Course { whole: None, log: dir.join(DUMP_LOG), restores: None };
    let patience = Duration::from_millis(dump.verdict_millis);
    let connections = waiting.connections;
    waiting.attend(&course, &mut |step, steps| match step {
        "post-dump" => keep_shared()
            .and_then(|()| {
                let tree = process::tree(program.as_raw());
                severed::sever(&dir, &tree, connections, dump.leave_running)
            })
            .and_then(|()| daemon.ask(patience, steps)),
        _ => Ok(()),
    })?;
    drop(server);
    let stats = fs::read(dir.join("stats-dump")).ok().and_then(|file| rpc::dump_stats(&file));
    Ok(stats.unwrap_or_default())
}

/// A process that left the program's tree would be missing from the dump.
fn refuse_strays(program: Pid, criu: Option<Pid>) -> Result<(), Failed> {
    let tree = process::tree(program.as_raw());
    let is_criu = |pid: i32| criu.is_some_and(|criu| criu.as_raw() == pid);
    let stray = |pid: &i32| *pid != 1 && !is_criu(*pid) && !tree.contains(pid) && !process::is_zombie(*pid);
    // A parent of 0 is outside: somebody looks into the sandbox from there.
    match process::all().into_iter().find(|pid| stray(pid) && process::parent(*pid) == Some(1)) {
        None => Ok(()),
        Some(pid) => Err(Failed::Criu(format!(
            "process {pid} ({}) has outlived its parent and is no longer a descendant of the program",
            process::name(pid)
        ))),
    }
}
