//! What is kept on disk of a sandbox, so that the next daemon finds it again. One JSON file each, replaced as a whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_device::Slice;
use rekindle_protocol::daemon::{Limits, Mode, Sandbox, State, User};
use rekindle_protocol::mounts::Mounts;
use rekindle_protocol::network::{Network, Port};
use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::terminal::WindowSize;
use rekindle_store::bounded;
use serde::{Deserialize, Serialize};

use crate::contexts::Share;
use crate::error::{Error, Result};
use crate::host::clock;
use crate::host::records::RecordError;
use crate::host::replace::{Outlasting, PRIVATE, replace};
use crate::sandboxes::asleep::SleepingGpu;
use crate::sandboxes::mending::Mended;
use crate::sandboxes::recovery::Recovery;

/// The longest record read.
const LONGEST: u64 = 16 << 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Names the record, the run directory and the logs; never shown to the user.
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub mode: Mode,
    /// Whether it is a GPU for a container, whose engine has the program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device: bool,
    pub state: State,
    pub pid: i32,
    pub command: Vec<String>,
    pub directory: String,
    pub gpu: String,
    pub started: String,
    pub ended: Option<String>,
    pub exit_code: Option<i32>,
    pub image: Option<String>,
    pub problem: Option<String>,
    pub workers: Vec<WorkerRecord>,
    /// Where in the log this run of the program begins; before that is what an earlier one under this name has printed.
    #[serde(default)]
    pub log_start: u64,
    /// Its GPU half, if that sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<SleepingGpu>,
    /// Where it is being moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
    /// How it is brought back after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    #[serde(default, skip_serializing_if = "Network::is_host")]
    pub network: Network,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Mounts::is_empty")]
    pub mounts: Mounts,
    /// Whose programs it shares contexts with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The addresses that it keeps to, whether it shares now or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Slice>,
    /// The service that it is an instance of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The tenant whose service that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_tenant: Option<String>,
    /// Whom it was started as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Where it may have gone on, while that is not known for certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
    /// The node that it has gone on at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Where its ports lead from here, for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Forward>,
    /// The id of the migration that it has come by from another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<String>,
    /// What has come of mending the loss of its workers.
    #[serde(default, skip_serializing_if = "Mended::is_none")]
    pub mended: Mended,
    /// Whether it was started with a terminal, and of which size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<WindowSize>,
    /// Why it has its mode, where that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_reason: Option<String>,
    /// What stands for its file and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Functions that it was refused, once it has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// A program that is being moved to another GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    pub gpu: String,
    /// The number of the worker there.
    pub worker: u32,
    /// The worker's client, as the daemon sees it.
    pub pid: i32,
    /// The other processes that move with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<MovingProcess>,
}

/// A process whose GPU half moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingProcess {
    pub worker: u32,
    pub pid: i32,
}

impl Moving {
    /// These processes' halves; none if there are none.
    pub fn of(gpu: &str, processes: impl IntoIterator<Item = MovingProcess>) -> Option<Moving> {
        let mut processes = processes.into_iter();
        let MovingProcess { worker, pid } = processes.next()?;
        Some(Moving { gpu: gpu.to_string(), worker, pid, others: processes.collect() })
    }

    /// All of them.
    pub fn processes(&self) -> impl Iterator<Item = MovingProcess> {
        let first = MovingProcess { worker: self.worker, pid: self.pid };
        std::iter::once(first).chain(self.others.iter().copied())
    }
}

/// A program that has been given away to another node, unless that says that it never ran there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    pub node: String,
    /// The migration's.
    pub id: String,
    /// For how long its ports are to lead there.
    #[serde(default)]
    pub forward_ms: Option<u64>,
    /// The user wants it back, whatever the other node says.
    #[serde(default)]
    pub taken_back: bool,
}

/// Where the ports of a program lead that has gone on at another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    pub host: String,
    /// Those there.
    pub ports: Vec<Port>,
    /// Since 1970.
    pub until_unix_ms: u64,
}

/// A worker that may still run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    pub number: u32,
    /// The pid of the process that it serves, as the daemon sees it; 0 if it serves none yet.
    pub client: i32,
    /// The addresses that the process keeps to, if it may share contexts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Slice>,
}

impl Record {
    /// Of a sandbox that begins now and has nothing yet.
    pub fn new(id: String, name: String, mode: Mode, state: State, gpu: String) -> Record {
        Record { id, name, mode, state, gpu, started: clock::now(), ..Record::default() }
    }

    /// With whom it shares contexts, if it does. Instances of a tenant's services do with no others than its own, whatever
    /// those call themselves: no name has a slash.
    pub fn share(&self) -> Option<Share> {
        let (name, slice) = self.tenant.clone().zip(self.slice)?;
        let tenant = match &self.service_tenant {
            Some(tenant) => format!("{tenant}/{name}"),
            None => name,
        };
        let memory = self.limits.share_memory.unwrap_or_default();
        Some(Share { tenant, slices: vec![slice], portion: self.limits.portion(), memory })
    }

    /// Whose arrays its program has and hands on: those of the tenant whose service it is an instance of, else of those that it
    /// shares contexts with, else of the app whose service it is an instance of, else its own. Services of one app are named
    /// alike up to the last `-`.
    pub fn owner(&self) -> String {
        self.owner_of_several().unwrap_or_else(|| format!("{ALONE}{}", self.id))
    }

    /// The service that it is an instance of, if it is one.
    pub fn of_service(&self) -> Option<ServiceName> {
        let name = self.service.as_deref()?;
        Some(ServiceName::new(self.service_tenant.as_deref(), name))
    }

    /// As [`Record::owner`], if other programs may be of it too.
    pub fn owner_of_several(&self) -> Option<String> {
        owner(self.service_tenant.as_deref(), self.tenant.as_deref(), self.service.as_deref())
    }

    /// Whether it is to be brought back if it fails, or is about to be.
    pub fn goes_on(&self) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| !recovery.over)
    }

    /// The images that it runs from, or may be brought back from.
    pub fn needs_images(&self) -> Vec<String> {
        let from = self.image.iter().filter(|_| self.is_live());
        let recovery = self.recovery.iter().filter(|recovery| !recovery.over);
        from.chain(recovery.flat_map(Recovery::images)).cloned().collect()
    }

    pub fn is_live(&self) -> bool {
        self.state.is_live()
    }

    /// Nothing is being done to it, if it is still live.
    pub fn rest(&mut self) {
        if self.is_live() {
            self.state = match (&self.asleep, &self.leaving) {
                (_, Some(_)) => State::Migrating,
                (Some(_), None) => State::Asleep,
                (None, None) => State::Running,
            };
        }
    }

    /// As the command line shows it.
    pub fn shown(
        &self,
        device_bytes: u64,
        shared_bytes: u64,
        pinned_bytes: u64,
        workers: Vec<i32>,
    ) -> Sandbox {
        Sandbox {
            name: self.name.clone(),
            mode: self.mode,
            state: self.state,
            pid: if self.is_live() { self.pid } else { 0 },
            command: self.command.clone(),
            gpu: self.gpu.clone(),
            started: self.started.clone(),
            ended: self.ended.clone(),
            exit_code: self.exit_code,
            image: self.image.clone(),
            problem: self.problem.clone(),
            device_bytes,
            shared_bytes,
            pinned_bytes,
            workers,
            recovery: self.recovery.as_ref().map(Recovery::shown),
            network: self.network,
            ports: self.ports.clone(),
            limits: self.limits,
            mounts: self.mounts.clone(),
            tenant: self.tenant.clone(),
            asleep: self.asleep.as_ref().map(|asleep| asleep.level),
            node: self.node.clone(),
            mode_reason: self.mode_reason.clone(),
            refused: self.refused.clone(),
            mending: None,
        }
    }

    /// What runs does not outlive the machine, so only the record of what has ended, or may have gone elsewhere, waits for
    /// the disk.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let place = path(directory, &self.id);
        let outlasting = match self.leaving {
            // Before another node is told that it has the program.
            Some(_) => Outlasting::Name,
            None if self.is_live() => Outlasting::Nothing,
            None => Outlasting::Contents,
        };
        serde_json::to_vec_pretty(self)
            .map_err(io::Error::from)
            .and_then(|text| replace(&place, &text, PRIVATE, outlasting))
            .map_err(|source| Error::io("write the record", &place, source))
    }

    /// Whether it is on disk, and was not removed.
    pub fn is_kept(&self, directory: &Path) -> bool {
        path(directory, &self.id).exists()
    }

    pub fn remove(&self, directory: &Path) {
        if let Err(error) = fs::remove_file(path(directory, &self.id)) {
            log::warn!("the record of {:?} stays: {error}", self.name);
        }
    }

    /// All records that can be read; the others are reported and left alone.
    pub fn load_all(directory: &Path) -> Result<Vec<Record>> {
        let failed = |source| Error::io("list", directory, source);
        let mut records = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            match load(&path) {
                Ok(record) => records.push(record),
                Err(reason) => log::error!("the record {} cannot be used: {reason}", path.display()),
            }
        }
        Ok(records)
    }
}

/// The word for a state, as everywhere.
pub fn state_word(state: State) -> &'static str {
    match state {
        State::Starting => "starting",
        State::Running => "running",
        State::Checkpointing => "checkpointing",
        State::Restoring => "restoring",
        State::FallingAsleep => "falling asleep",
        State::Asleep => "asleep",
        State::Waking => "waking",
        State::Migrating => "migrating",
        State::Exited => "exited",
        State::Killed => "killed",
        State::Stopped => "stopped",
        State::Failed => "failed",
    }
}

fn path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.json"))
}

fn load(path: &Path) -> std::result::Result<Record, RecordError> {
    let text = bounded::read(path, LONGEST)?;
    let record: Record = serde_json::from_slice(&text)?;
    let named = path.file_stem().is_some_and(|stem| stem == record.id.as_str());
    named.then_some(record).ok_or(RecordError::Misnamed { kind: "sandbox" })
}

/// What the names begin with by which the functions of an app share contexts. No other name has a colon.
pub const APP: &str = "app:";

/// What the name of an owner begins with that is one program alone.
const ALONE: &str = "sandbox:";

/// Whether an owner may be of several programs, and at several nodes.
pub fn is_of_several(owner: &str) -> bool {
    !owner.starts_with(ALONE)
}

/// Whose a program is, if others are too: of a service's tenant, of those that share contexts by one name, or of the service.
pub fn owner(tenant: Option<&str>, sharers: Option<&str>, service: Option<&str>) -> Option<String> {
    let app = |service: &str| match service.rsplit_once('-') {
        Some((app, _)) => format!("{APP}{app}"),
        None => format!("{APP}{service}"),
    };
    let named = |name: &str| match name.starts_with(APP) {
        true => name.to_string(),
        false => format!("share:{name}"),
    };
    let tenant = tenant.map(|tenant| format!("tenant:{tenant}"));
    tenant.or_else(|| sharers.map(named)).or_else(|| service.map(app))
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode as Permissions;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_a_tenant_s_is_nobody_else_s_whatever_that_is_called() {
        let of = |tenant: Option<&str>, service: Option<&str>, service_tenant: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_string);
            let record = Record {
                tenant: owned(tenant),
                slice: Some(Slice::FIRST),
                service: owned(service),
                service_tenant: owned(service_tenant),
                ..Record::new("0a".into(), "n".into(), Mode::Sandbox, State::Running, "emulated".into())
            };
            (record.owner(), record.share().map(|share| share.tenant))
        };
        let all = [
            of(None, Some("t-a"), Some("t")),
            of(Some("t"), Some("t-b"), Some("t")),
            of(Some("t"), Some("t-c"), Some("u")),
            of(Some("t"), Some("t-d"), None),
            of(Some("t"), None, None),
            of(None, Some("t-e"), None),
            of(None, None, None),
            of(Some("app:t"), Some("t-f"), None),
            of(Some("app:t"), Some("t-g"), Some("t")),
        ];
        let owners = [
            "tenant:t",
            "tenant:t",
            "tenant:u",
            "share:t",
            "share:t",
            "app:t",
            "sandbox:0a",
            "app:t",
            "tenant:t",
        ];
        assert_eq!(all.each_ref().map(|(owner, _)| owner.as_str()), owners);
        let shares = [
            None,
            Some("t/t"),
            Some("u/t"),
            Some("t"),
            Some("t"),
            None,
            None,
            Some("app:t"),
            Some("t/app:t"),
        ];
        assert_eq!(all.each_ref().map(|(_, share)| share.as_deref()), shares);
    }

    #[test]
    fn records_come_back_and_broken_ones_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let record = Record {
            id: "0a".into(),
            name: "../$(x)".into(),
            mode: Mode::Driver,
            state: State::Running,
            pid: 7,
            command: vec!["true".into()],
            directory: "/".into(),
            gpu: "emulated".into(),
            started: crate::host::clock::now(),
            workers: vec![WorkerRecord { number: 1, client: 8, slice: Some(Slice::FIRST) }],
            network: Network::Private,
            ports: vec!["8080:80".parse().unwrap()],
            limits: Limits { memory: Some(1), ..Limits::default() },
            mounts: Mounts {
                volumes: vec!["/a:/b:ro".parse().unwrap()],
                overlays: vec!["/c".parse().unwrap()],
            },
            tenant: Some("us".into()),
            slice: Some(Slice::FIRST),
            service: Some("web".into()),
            service_tenant: Some("t".into()),
            user: Some(User { uid: 1, gid: 2, groups: vec![3] }),
            leaving: Some(Leaving { node: "b".into(), id: "1f".into(), forward_ms: None, taken_back: false }),
            node: Some("b".into()),
            forward: Some(Forward { host: "b".into(), ports: Vec::new(), until_unix_ms: 1 }),
            arrival: Some("2f".into()),
            mended: Mended { times: 1, lost_ms: 300 },
            terminal: Some(WindowSize::default()),
            mode_reason: Some("it is so".into()),
            program: Some("0f".into()),
            refused: vec!["cuX".into()],
            ..Record::default()
        };
        record.save(directory.path()).unwrap();
        fs::write(directory.path().join("bad.json"), "{").unwrap();
        fs::copy(directory.path().join("0a.json"), directory.path().join("0b.json")).unwrap();
        fs::write(directory.path().join("0c.partial"), "{").unwrap();
        mkfifo(&directory.path().join("0d.json"), Permissions::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.path().join("0e.json")).unwrap();
        assert_eq!(Record::load_all(directory.path()).unwrap(), std::slice::from_ref(&record));
        record.remove(directory.path());
        assert!(Record::load_all(directory.path()).unwrap().is_empty());
    }
}
