//! A process tree of this machine that was started without us, taken where it is.
//!
//! CRIU runs beside it as our child. Should we die in the middle, CRIU's next word to us fails and it undoes all; the
//! kernel lets go of what a dead CRIU traced.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::affinity::Noted;
use crate::capability::For;
use crate::conversation::{ConversationOptions, Failed, Service};
use crate::dump::{Cpu, DumpReport, DumpSpec, Frozen, Prepared, Ready, is_full, open_dir};
use crate::error::{Error, Result};
use crate::init::DUMP_LOG;
use crate::inventory::{self, Inventory, PartialInventory};
use crate::lost_names::{self, LostNames};
use crate::mapped_file::KnownFiles;
use crate::process::maps;
use crate::process::{self, Handle};
use crate::rpc::{self, Options};
use crate::severed::{self, ConnectionPolicy};
use crate::tracer::TracerMode;
use crate::waiting::{POST_DUMP_STEP, STANDING_STEP, Waiting};
use crate::{capability, connections, devshm, ending, outputs, pages, unfit};

const SHARED: &str = "/dev/shm";
/// How long a thread may be in uninterruptible sleep before the program is refused.
const UNINTERRUPTIBLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Tree {
    root: i32,
    handle: Handle,
}

impl Tree {
    /// The tree below the process `pid`, if it is one that can be taken.
    pub fn find(pid: i32) -> Result<Self> {
        let missing = capability::missing(For::Checkpoints);
        if !missing.is_empty() {
            let names = missing.iter().map(|(name, _)| format!("CAP_{name}")).collect::<Vec<_>>().join(", ");
            return Err(refused(format!(
                "the daemon lacks {names}; start it as root, or with that capability"
            )));
        }
        let gone = |_| Error::NoProcess { pid };
        if pid <= 0 {
            return Err(Error::NoProcess { pid });
        }
        let handle = Handle::open(pid).map_err(gone)?;
        let tree = Self { root: pid, handle };
        tree.refuse_unfit()?;
        Ok(tree)
    }

    pub fn root_pid(&self) -> i32 {
        self.root
    }

    pub fn is_alive(&self) -> bool {
        matches!(self.handle.ended(Some(Duration::ZERO)), Ok(false))
    }

    /// Whether the program has ended, or does so within a moment.
    pub fn is_ending(&self) -> bool {
        ending::ends_soon(self.root, || !self.is_alive())
    }

    /// All pids of the tree, as it sees them itself, with ours: the same.
    pub fn pids(&self) -> BTreeMap<i32, i32> {
        process::tree(self.root).into_iter().map(|pid| (pid, pid)).collect()
    }

    pub fn begin_inventory(&self, known: &KnownFiles) -> Result<PartialInventory> {
        let pids: Vec<_> = self.pids().into_values().collect();
        Inventory::begin(&pids, std::process::id() as i32, known, &Noted::default())
            .map_err(Error::io("taking stock of the program"))
    }

    /// Starts CRIU and asks it for this dump.
    pub(crate) fn prepare(&self, spec: &DumpSpec<'_>) -> Result<Waiting, Failed> {
        let images = open_dir(spec.images_dir)
            .map_err(|error| Failed::Criu(format!("making {}: {error}", spec.images_dir.display())))?;
        let connections = self.connections();
        let request = self.request(spec, &images, connections);
        let page_server = spec.page_server.map(|socket| socket.as_raw_fd());
        let passed: Vec<_> = [images.as_raw_fd()].into_iter().chain(page_server).collect();
        let place = spec.tracer.as_deref();
        let kept = Some((spec.images_dir, self.root));
        let place = place.map(|command| TracerMode::Process { command, kept });
        let criu = Service::spawn(spec.criu.command(), &passed, place, None)?;
        Waiting::begin(criu, images, request, connections)
    }

    fn connections(&self) -> ConnectionPolicy {
        ConnectionPolicy::of(&process::tree(self.root))
    }

    /// What CRIU is asked for, with the tree as it is.
    fn request(&self, spec: &DumpSpec<'_>, images: &File, connections: ConnectionPolicy) -> Vec<u8> {
        let pids: Vec<_> = self.pids().into_values().collect();
        let mut external: Vec<_> = outputs::external(&outputs::outside(&pids)).collect();
        external.extend(LostNames::find(&pids).external());
        external.extend(spec.external_sockets.iter().map(|inode| format!("unix[{inode}]")));
        rpc::dump_request(&Options {
            images_dir: images.as_raw_fd(),
            pid: Some(self.root),
            leave_running: spec.leave_running,
            tcp_established: connections == ConnectionPolicy::Read,
            shell_job: process::is_session_outside(&pids),
            timeout_seconds: Some(u32::try_from(spec.freeze_timeout.as_secs().max(1)).unwrap_or(u32::MAX)),
            log_file: DUMP_LOG,
            log_level: if spec.steps_told { rpc::LOG_DEBUG } else { rpc::LOG_TROUBLE },
            external,
            page_server: spec.page_server.map(|socket| socket.as_raw_fd()),
            ..Options::default()
        })
    }

    /// Dumps the program as [`crate::Sandbox::dump`] does.
    pub fn dump<E>(
        &self,
        spec: &DumpSpec<'_>,
        prepared: Prepared,
        on_frozen: impl FnOnce(&Frozen<'_>) -> Result<(), E>,
    ) -> Result<DumpReport>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let began = Instant::now();
        self.refuse_unfit()?;
        unfit::refuse_descriptors(&process::tree(self.root), &spec.external_sockets)?;
        let log = spec.images_dir.join(DUMP_LOG);
        let course = ConversationOptions { whole: None, log: log.clone(), restores: None };
        let (mut until_frozen, mut frozen_step) = (Duration::ZERO, Duration::ZERO);
        let (mut on_frozen, mut step, mut is_ended) = (Some(on_frozen), None, false);
        let failed = |failure| match failure {
            Failed::Criu(_) if is_full(spec.images_dir) => Error::DiskFull { place: spec.images_dir.into() },
            Failed::Criu(cause) => Error::Criu { action: "dump", cause, log: Some(log.clone()) },
            Failed::Aborted(cause) => Error::Aborted { action: "dump", cause },
        };
        let fitting = match prepared.0 {
            Ready::Tree(mut waiting) => {
                let now = self.request(spec, &waiting.images, self.connections());
                waiting.is_asked(&now).then_some(waiting)
            }
            _ => None,
        };
        let waiting = match fitting {
            Some(waiting) => waiting,
            // The program is another by now, or there is none.
            None => self.prepare(spec).map_err(failed)?,
        };
        let connections = waiting.connections;
        let finished = waiting.attend(&course, &mut |announced, _| {
            if announced == STANDING_STEP {
                spec.page_server.iter().for_each(|server| pages::tell_stands(*server));
            }
            if announced != POST_DUMP_STEP {
                return Ok(());
            }
            until_frozen = began.elapsed();
            self.keep_shared(spec.images_dir)?;
            let tree = process::tree(self.root);
            severed::sever(
                spec.images_dir,
                &tree,
                &connections::inside(&tree),
                connections,
                spec.leave_running,
            )?;
            let frozen = Frozen { cpu: Cpu::Tree(self), images_dir: spec.images_dir, init: None };
            let done = on_frozen.take().map_or(Ok(()), |hook| hook(&frozen)).map_err(Into::into);
            frozen_step = began.elapsed() - until_frozen;
            if done.is_ok() && !spec.leave_running {
                is_ended = true;
                ending::end_all(self.pids().into_values());
            }
            let sentence = done.as_ref().err().map(ToString::to_string);
            step = done.err();
            sentence.map_or(Ok(()), Err)
        });
        if let Some(error) = step {
            return Err(Error::Hook(error));
        }
        match finished {
            // All is written, and the program is ended: whoever held it has nothing to add.
            Err(failure) if is_ended => log::info!("CRIU's end after the program's: {failure:?}"),
            finished => finished.map_err(failed)?,
        }
        let stats = fs::read(spec.images_dir.join("stats-dump")).ok().and_then(|file| rpc::dump_stats(&file));
        let stats = stats.unwrap_or_default();
        Ok(DumpReport { stats, until_frozen, frozen_step, total: began.elapsed(), log })
    }

    /// Keeps the named files in `/dev/shm` that the tree uses: a restored program has a `/dev/shm` of its own.
    fn keep_shared(&self, images_dir: &Path) -> std::result::Result<(), String> {
        let failed = |error: std::io::Error| format!("packing the files in {SHARED}: {error}");
        let pids: Vec<_> = self.pids().into_values().collect();
        let found = LostNames::find(&pids);
        lost_names::settle(&found, images_dir)?;
        let mut used: Vec<_> = pids.iter().copied().flat_map(shared_files).collect();
        used.extend(found.other_names().map(Path::to_path_buf));
        devshm::pack(Path::new(SHARED), &used, &images_dir.join(devshm::NAME)).map_err(failed)
    }

    fn refuse_unfit(&self) -> Result<()> {
        let pids: Vec<_> = self.pids().into_values().collect();
        let own = std::process::id() as i32;
        unfit::refuse_headless(pids.iter().copied())?;
        if !self.is_alive() || ending::is_dying(self.root) {
            return Err(Error::NoProcess { pid: self.root });
        }
        if self.root == 1 || pids.contains(&own) {
            return Err(refused(format!(
                "process {} is an ancestor of this daemon, or the daemon itself",
                self.root
            )));
        }
        // One that is just killed has no memory either.
        if process::is_kernel_thread(self.root) && !ending::is_dying(self.root) {
            return Err(refused(format!("process {} is a thread of the kernel", self.root)));
        }
        for &pid in &pids {
            if process::namespace(pid, "pid")
                .is_some_and(|found| Some(found) != process::namespace(own, "pid"))
            {
                return Err(refused(format!(
                    "process {pid} lives in another pid namespace, such as a container's or a sandbox's; name that one"
                )));
            }
            if process::session(pid) == Some(0) {
                return Err(refused(format!(
                    "process {pid} is in no session of this pid namespace, as under `docker exec`, and CRIU cannot take it; \
                     start the program with `setsid`"
                )));
            }
        }
        unfit::refuse_traced(&pids)?;
        unfit::refuse_unkept(&pids)?;
        unfit::refuse_uninterruptible(|| self.pids().into_values().collect(), UNINTERRUPTIBLE)
    }
}

fn refused(cause: String) -> Error {
    Error::Refused { cause }
}

/// The files in `/dev/shm` that a process has open or mapped by name.
fn shared_files(pid: i32) -> Vec<PathBuf> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let opened = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut paths = inventory::named_paths(&maps::if_there(pid));
    paths.extend(opened.filter(|path| !path.as_os_str().as_bytes().ends_with(b" (deleted)")));
    paths.retain(|path| path.starts_with(SHARED) && File::open(path).is_ok());
    paths.sort();
    paths.dedup();
    paths
}
