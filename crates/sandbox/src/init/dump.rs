//! A dump, as seen from inside the sandbox: a conversation with `criu swrk`.
//!
//! CRIU announces each step and waits for leave to go on. At its first it has looked at nothing of the program, and waits
//! there if it was started [ahead](Prepared). At `post-dump` (the images are written, the program still stands) the
//! daemon is asked; any answer but [`crate::message::Verdict::Commit`] makes CRIU undo what it did, unless the program is
//! [held](super::hold). CRIU outlives a daemon that dies meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::Pid;
use rekindle_parallel::Urgent;

use super::hold::Daemon;
use super::look::{Look, Told, Unfit};
use crate::assist::Assist;
use crate::conversation::{ConversationOptions, Failed, Library, Service};
use crate::lost_names::{self, LostNames};
use crate::message::{Dump, DumpStats};
use crate::overlay::Layers;
use crate::rpc::{self, Options};
use crate::severed::{self, ConnectionPolicy};
use crate::tracer::TracerMode;
use crate::waiting::{POST_DUMP_STEP, STANDING_STEP, Waiting};
use crate::{connections, devshm, outputs, process, processor};

/// CRIU's log, among the images.
pub const DUMP_LOG: &str = "dump.log";

/// A CRIU that was asked for a dump, and waits for leave to begin. Dropped, it ends.
pub struct Prepared {
    waiting: Waiting,
    dump: Dump,
    /// The connection to whoever takes the pages, if anybody does.
    server: Option<OwnedFd>,
    assist: Option<Arc<Assist>>,
}

impl Prepared {
    /// With the dump come the images directory and, maybe, a page server.
    pub fn begin(dump: Dump, descriptors: Vec<OwnedFd>, program: Pid) -> Result<Self, Failed> {
        // CRIU and its tracer come of this thread.
        let _urgent = Urgent::begin();
        let mut descriptors = descriptors.into_iter();
        let images = descriptors.next();
        let images = images
            .ok_or_else(|| Failed::Criu("the images directory did not come with the command".into()))?;
        let server = descriptors.next();
        let tree = process::tree(program.as_raw());
        let connections = ConnectionPolicy::of(&tree);
        let assist = dump.assist.then(|| Assist::new(dump.ahead)).flatten().map(Arc::new);
        let descriptors = Descriptors::of(&images, server.as_ref(), assist.as_deref());
        let request = request(&dump, descriptors, &tree, connections, &LostNames::find(&tree));
        let passed: Vec<_> = server.iter().map(AsRawFd::as_raw_fd).collect();
        let begun = processor::Begun::new(&images, tree.clone());
        let mut begun =
            begun.map_err(|error| Failed::Criu(format!("opening {}: {error}", processor::NAME)))?;
        let describing = assist.clone().map(|assist| std::thread::spawn(move || assist.describe(tree)));
        let (hides_unwritten, processor) = (dump.ahead, begun.found.take());
        let tracer = TracerMode::Here { hides_unwritten, assist: assist.clone(), processor };
        let library = assist.as_deref().map(|assist| assist as &dyn Library);
        let criu = Service::spawn(&dump.criu, &passed, Some(tracer), library)?;
        let waiting = Waiting::begin(criu, images.into(), request, connections)?;
        // What could not be described CRIU reads itself.
        describing.map(JoinHandle::join);
        begun.finish().map_err(Failed::Criu)?;
        Ok(Self { waiting, dump, server, assist })
    }

    /// Whether it was asked for this dump, and waits.
    fn is_for(&mut self, dump: &Dump) -> bool {
        self.dump == *dump && self.waiting.is_there()
    }

    /// Dumps the program; none if that is another by now than the one that CRIU was told of, and goes on. It is looked at
    /// while CRIU brings it to a stand.
    fn dump(self, layers: &Layers, program: Pid, daemon: &Daemon<'_>) -> Result<Option<Dumped>, Failed> {
        let _urgent = Urgent::begin();
        let Prepared { waiting, dump, server, assist } = self;
        let images = waiting.images.try_clone();
        let images =
            images.map_err(|error| Failed::Criu(format!("keeping the images directory: {error}")))?;
        let dir = PathBuf::from(format!("/proc/self/fd/{}", images.as_raw_fd()));
        let shm = Path::new("/dev/shm");
        let keep_shared = |found: Option<LostNames>| {
            let found = found.map_or_else(|| find_if_linked(program, &dir), Ok)?;
            lost_names::settle(&found, &dir)?;
            devshm::all(shm)
                .and_then(|paths| devshm::pack(shm, &paths, &dir.join(devshm::NAME)))
                .map_err(|error| format!("packing the files in /dev/shm: {error}"))?;
            layers.keep(&dir)
        };
        let course = ConversationOptions { whole: None, log: dir.join(DUMP_LOG), restores: None };
        let patience = Duration::from_millis(dump.verdict_millis);
        let leave_running = dump.leave_running;
        let (connections, request) = (waiting.connections, waiting.request().to_vec());
        let descriptors = Descriptors::of(&waiting.images, server.as_ref(), assist.as_deref());
        let criu = waiting.pid();
        let mut look = Look::begin(program, Told { dump, descriptors, connections, request, criu });
        let changed = || assist.clone().map(|assist| std::thread::spawn(move || assist.changed()));
        let (mut standing, mut comparing) = (None, None);
        let attended = waiting.attend_until_done(&course, &mut |step, steps| match step {
            STANDING_STEP => {
                look.verdict().map_err(|unfit| unfit.to_string())?;
                if let Some(assist) = &assist {
                    assist.look_at_links();
                    assist.look_at_pages();
                    assist.looks_at_sockets();
                }
                daemon.ask_standing(patience)?;
                assist.iter().for_each(|assist| assist.processors_are_noted());
                let had_lost_names = look.has_lost_names();
                let told = assist.clone();
                standing =
                    Some(std::thread::spawn(move || Standing::of(program, had_lost_names, told.as_deref())));
                comparing = changed();
                Ok(())
            }
            POST_DUMP_STEP => {
                look.verdict().map_err(|unfit| unfit.to_string())?;
                let taken = standing.take().and_then(|thread| thread.join().ok());
                let Standing { tree, inside, lost_names } =
                    taken.unwrap_or_else(|| Standing::of(program, true, None));
                keep_shared(lost_names)?;
                let changed = comparing.take().or_else(&changed).and_then(|thread| thread.join().ok());
                assist.iter().try_for_each(|assist| assist.check(changed.as_deref()))?;
                severed::sever(&dir, &tree, &inside, connections, leave_running)?;
                daemon.ask_frozen(patience, steps)
            }
            _ => Ok(()),
        });
        drop(server);
        // One that failed before that step may have failed by it.
        if let Err(unfit) = look.verdict() {
            if let Ok(Some(mut criu)) = attended {
                criu.wait();
            }
            return match unfit {
                Unfit::Another => Ok(None),
                Unfit::Stray(sentence) => Err(Failed::Criu(sentence)),
            };
        }
        let mut criu = attended?;
        // A program that ends with its image is gone when CRIU is.
        if !leave_running && let Some(mut criu) = criu.take() {
            criu.wait();
        }
        let stats = fs::read(dir.join("stats-dump")).ok().and_then(|file| rpc::dump_stats(&file));
        let mut stats = stats.unwrap_or_default();
        if let Some(assist) = assist {
            stats.known_areas = assist.known() as u64;
            stats.known_answers = assist.answered();
            stats.known_links = assist.linked();
        }
        Ok(Some(Dumped { stats, criu }))
    }
}

/// A dump that is done.
pub struct Dumped {
    pub stats: DumpStats,
    /// CRIU, if it has yet to end, which is to be waited for before the program is looked at again.
    pub criu: Option<Service>,
}

/// What is looked at of a program that stands, while CRIU dumps it.
struct Standing {
    tree: Vec<i32>,
    /// The sockets that it has connected with itself.
    inside: BTreeSet<u64>,
    /// If it had files by names that are gone a moment ago.
    lost_names: Option<LostNames>,
}

impl Standing {
    fn of(program: Pid, had_lost_names: bool, assist: Option<&Assist>) -> Self {
        let tree = process::tree(program.as_raw());
        let connections::Found { inside, all_listen } = connections::find(&tree);
        assist.into_iter().for_each(|assist| assist.sockets_are_known(all_listen));
        let lost_names = had_lost_names.then(|| LostNames::find(&tree));
        Self { inside, lost_names, tree }
    }
}

/// A name that was lost while CRIU began is met by CRIU, which has made a link then: without one there is nothing to be found.
fn find_if_linked(program: Pid, images: &Path) -> Result<LostNames, String> {
    let is_any = lost_names::is_any_linked(images)?;
    Ok(if is_any { LostNames::find(&process::tree(program.as_raw())) } else { LostNames::default() })
}

/// What CRIU is told of by number.
#[derive(Debug, Clone, Copy)]
pub struct Descriptors {
    images: RawFd,
    server: Option<RawFd>,
    options: Option<RawFd>,
}

impl Descriptors {
    fn of(images: &impl AsRawFd, server: Option<&OwnedFd>, assist: Option<&Assist>) -> Self {
        let (server, options) = (server.map(AsRawFd::as_raw_fd), assist.map(Assist::options));
        Self { images: images.as_raw_fd(), server, options }
    }
}

/// What CRIU is asked for.
pub fn request(
    dump: &Dump,
    descriptors: Descriptors,
    tree: &[i32],
    connections: ConnectionPolicy,
    lost_names: &LostNames,
) -> Vec<u8> {
    let sockets = dump.external_sockets.iter().map(|inode| format!("unix[{inode}]"));
    rpc::dump_request(&Options {
        images_dir: descriptors.images,
        work_dir: None,
        pid: tree.first().copied(),
        shell_job: process::is_session_outside(tree),
        leave_running: dump.leave_running,
        tcp_established: connections == ConnectionPolicy::Read,
        timeout_seconds: Some(dump.freeze_seconds),
        log_file: DUMP_LOG,
        log_level: if dump.steps_told { rpc::LOG_DEBUG } else { rpc::LOG_TROUBLE },
        external: sockets
            .chain(outputs::external(&outputs::outside(tree)))
            .chain(lost_names.external())
            .collect(),
        inherit: Vec::new(),
        page_server: descriptors.server,
        config: descriptors.options,
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
) -> Result<Dumped, Failed> {
    let fitting = prepared.and_then(|mut prepared| prepared.is_for(dump).then_some(prepared));
    if let Some(prepared) = fitting
        && let Some(dumped) = prepared.dump(layers, program, daemon)?
    {
        return Ok(dumped);
    }
    // The program is another by now, or none was prepared.
    let dumped = Prepared::begin(dump.clone(), descriptors, program)?.dump(layers, program, daemon)?;
    dumped.ok_or_else(|| Failed::Criu("the program's processes change while they are looked at".into()))
}
