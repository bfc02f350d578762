//! What is said of a sandbox, by `run` and by `restore`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use rekindle_protocol::daemon::{Limits, User};
use rekindle_protocol::mending::MendMode;
use rekindle_protocol::mounts::Volume;
use rekindle_protocol::network::{Network, Port};
use rekindle_protocol::worker::ShareMemory;

use crate::exec::variable;
use crate::user_spec::UserSpec;

#[derive(Debug, Args)]
pub struct SandboxArguments {
    /// Name of the sandbox; one is made up if none is given.
    #[arg(long)]
    pub name: Option<String>,
    /// The GPU: emulated[:SETTINGS] or nvidia[:INDEX].
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Share GPU contexts with the other programs of this tenant.
    ///
    /// They pay for one context together, and a fault of one of them ends all: they should be of one owner.
    #[arg(long, value_name = "TENANT")]
    pub share: Option<String>,
    /// Return as soon as the program runs.
    #[arg(short, long)]
    pub detach: bool,
}

/// Whether a program has a terminal.
#[derive(Clone, Copy, Debug, Args)]
pub struct TerminalArguments {
    /// Give the program a terminal: without -d this one, with -d one that `attach` comes to.
    #[arg(short, long, conflicts_with = "from")]
    pub tty: bool,
    /// Pass what is typed here on to the program, which is done without -d in any case.
    #[arg(short, long)]
    pub interactive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArgument {
    /// The machine's.
    Host,
    /// One of its own, with a loopback and the ports that are published, so that many can use the same ports.
    Private,
}

/// The network of a program, and its ports.
#[derive(Debug, Args)]
pub struct NetworkArguments {
    /// The program's network; the image's if none is given, or else the machine's.
    #[arg(long, value_name = "NETWORK")]
    network: Option<NetworkArgument>,
    /// Have a TCP port of this machine lead to the program's port TO, in a private network; may be given again.
    ///
    /// It stays open while the program sleeps or is checkpointed, and from its stop until it is restored under its name.
    /// PORT 0 is one that is free.
    #[arg(short, long, value_name = "[ADDRESS:]PORT:TO")]
    publish: Vec<Port>,
}

impl NetworkArguments {
    pub fn wanted(self) -> (Option<Network>, Vec<Port>) {
        let network = self.network.map(|network| match network {
            NetworkArgument::Host => Network::Host,
            NetworkArgument::Private => Network::Private,
        });
        (network, self.publish)
    }
}

/// The least memory that a program may be limited to: its sandbox and CRIU take some of it.
const LEAST_MEMORY: u64 = 16 << 20;

/// What a program may use.
#[derive(Clone, Copy, Debug, Args)]
pub struct LimitArguments {
    /// The most memory of the host that the program and its sandbox may use; K, M, G or T may follow.
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    memory: Option<u64>,
    /// How many processors it may keep busy, such as 1.5.
    #[arg(long, value_name = "NUMBER", value_parser = processors)]
    cpus: Option<u32>,
    #[command(flatten)]
    portion: PortionArguments,
    #[command(flatten)]
    memory_at: ShareMemoryArgument,
    /// Have the program go on, as if nothing had happened, when its GPU worker or its GPU context is lost.
    ///
    /// A copy of its GPU memory is kept, on the GPU if that has room, and what it asks for after that. `strict`, the default: it
    /// goes on only if all that it was told since comes out the same again. `loose`: also if it comes out otherwise, as it may
    /// where kernels do not give the same bits twice.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "strict")]
    mend: Option<MendArgument>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MendArgument {
    /// Only if all that it was told comes out the same again.
    Strict,
    /// Also if it comes out otherwise.
    Loose,
}

impl From<MendArgument> for MendMode {
    fn from(mend: MendArgument) -> MendMode {
        match mend {
            MendArgument::Strict => MendMode::Strict,
            MendArgument::Loose => MendMode::Loose,
        }
    }
}

/// When what a program allocates in GPU contexts that it shares gets memory.
#[derive(Clone, Copy, Debug, Args)]
pub struct ShareMemoryArgument {
    /// With --share: when what the program allocates gets GPU memory. An image keeps it.
    #[arg(long, value_name = "WHEN")]
    share_memory: Option<When>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// At once.
    Eager,
    /// When a launch, a copy or a fill names it; what the program frees is given back when it rests.
    Lazy,
}

impl ShareMemoryArgument {
    pub fn wanted(self) -> Option<ShareMemory> {
        self.share_memory.map(|when| match when {
            When::Eager => ShareMemory::Eager,
            When::Lazy => ShareMemory::Lazy,
        })
    }
}

/// What a program has of GPU contexts that it shares.
#[derive(Clone, Copy, Debug, Args)]
pub struct PortionArguments {
    /// With --share: by which weight it has bytes over the link to the GPU while others copy too, from 1 to 100 (10).
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub link_weight: Option<u32>,
    /// With --share: how much of the GPU's multiprocessors are its own, such as 25%; the others have what is left. `none`: no
    /// share.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub sm_share: Option<u32>,
    /// With --share: by which weight it has multiprocessors while it has work, from 1 to 100; its share is the least then, and
    /// others have it while this program rests. `none`: it has its share alone.
    #[arg(long, value_name = "WEIGHT", value_parser = weight)]
    pub sm_weight: Option<u32>,
    /// With --share: the most that it has of the multiprocessors, by its weight (10 if none is given), such as 50%. `none`: all.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub sm_most: Option<u32>,
}

/// 0 for `none`.
fn weight(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(weight) if (1..=100).contains(&weight) => Ok(weight),
        _ if text == "none" => Ok(0),
        _ => Err("expected a weight from 1 to 100, or none".to_string()),
    }
}

/// 0 for `none`.
fn percent(text: &str) -> Result<u32, String> {
    if text == "none" {
        return Ok(0);
    }
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u32>().ok();
    number
        .filter(|percent| (1..=100).contains(percent))
        .ok_or_else(|| "expected a share from 1% to 100%, or none".to_string())
}

impl LimitArguments {
    pub fn wanted(self) -> Limits {
        let (memory, processors) = (self.memory, self.cpus);
        let PortionArguments { link_weight, sm_share, sm_weight, sm_most } = self.portion;
        let (share_memory, mend) = (self.memory_at.wanted(), self.mend.map(MendMode::from));
        Limits { memory, processors, link_weight, sm_share, sm_weight, sm_most, share_memory, mend }
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = rekindle_daemon::parse_bytes(text)?;
    let least = LEAST_MEMORY >> 20;
    if bytes < LEAST_MEMORY { Err(format!("expected at least {least}M")) } else { Ok(bytes) }
}

/// In thousandths.
fn processors(text: &str) -> Result<u32, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.01..=4096.0).contains(&value) => Ok((value * 1000.0).round() as u32),
        _ => Err("expected a number of processors, from 0.01 to 4096".to_string()),
    }
}

/// What a program sees beside the machine's files.
#[derive(Debug, Args)]
pub struct VolumeArguments {
    /// Have the program see a directory or file of this machine's at another path, which must be there; may be given again.
    ///
    /// An image keeps it, and a restore mounts it again, or what it is given for the same place.
    #[arg(long = "volume", value_name = "HOST:INSIDE[:ro]")]
    pub volumes: Vec<Volume>,
}

/// What a program finds itself in.
#[derive(Debug, Args)]
pub struct SettingArguments {
    /// Run it as this user, by number or name; HOME, USER and LOGNAME are those of a user that this machine knows.
    #[arg(long, value_name = "UID[:GID]|NAME[:GROUP]", conflicts_with = "from")]
    user: Option<UserSpec>,
    /// Set a variable of its environment, which is else that of this command; may be given again.
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(String, String)>,
    /// Its working directory, if not this one.
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<PathBuf>,
}

impl SettingArguments {
    /// The user, and what is set of the environment; and the directory, which begins at `here`.
    pub fn apply(self, here: &mut String, environment: &mut Vec<(String, String)>) -> Option<User> {
        let (user, known) = self.user.map(|person| (person.user, person.environment)).unzip();
        for (name, value) in known.into_iter().flatten().chain(self.variables) {
            environment.retain(|(other, _)| *other != name);
            environment.push((name, value));
        }
        if let Some(directory) = self.workdir {
            *here = Path::new(here).join(directory).to_string_lossy().into_owned();
        }
        user
    }
}
