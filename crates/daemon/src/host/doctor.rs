//! What this machine has, what is needed, and how to mend what is missing.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, getrlimit};
use rekindle_sandbox::capability::{self, For};
use rekindle_sandbox::pages::PreCopy;
use rekindle_sandbox::{Addresses, Criu, MINIMUM_VERSION, Network, amd, trial};
use serde::Serialize;

use crate::host::paths::Paths;
use crate::host::resources::{available_memory, free_space};

/// The least free memory, in memory directories and on disk, that makes sense.
const LEAST_MEMORY: u64 = 1 << 30;
const LEAST_RUNS: u64 = 256 << 20;
const LEAST_DISK: u64 = 1 << 30;

/// How a CRIU comes here that can do what this kernel needs.
const NEWER_CRIU: &str = "run `scripts/criu` in Rekindle's sources and, where it was installed, `make install` again; \
    or install CRIU 4.2 or newer";

/// One need of Rekindle.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub need: String,
    pub found: String,
    pub required: String,
    pub ok: bool,
    /// Whether Rekindle is of no use without it; else only a part of it is.
    pub required_for_all: bool,
    /// What to do if it is missing.
    pub mend: String,
}

/// Looks at everything. `program` is `rekindled`, which asks the driver in a process of its own.
pub fn examine(paths: &Paths, program: &Path) -> Vec<Finding> {
    let criu = Criu::find(&[]);
    vec![
        gpu(program),
        amd_plugin(criu.as_ref().ok()),
        criu_version(&criu),
        criu_check(&criu),
        taken_and_brought_back(&criu, paths, program),
        capabilities("capabilities", For::Checkpoints),
        capabilities("capabilities for restores", For::Restores),
        capabilities("capabilities for programs that become another user", For::OtherUsers),
        capabilities("capabilities for limits beyond the daemon's own", For::HigherLimits),
        capabilities("capabilities for machines with other work", For::OtherWork),
        kernel_feature("pid namespaces", "/proc/self/ns/pid", true, "use a kernel with CONFIG_PID_NS"),
        kernel_feature(
            "checkpoint support of the kernel",
            "/proc/self/map_files",
            true,
            "use a kernel with CONFIG_CHECKPOINT_RESTORE",
        ),
        network(),
        userfaultfd(),
        write_protection(),
        locked_memory(),
        space("free memory", available_memory(), LEAST_MEMORY, "end other programs"),
        space(
            &format!("room in {}", paths.runs.display()),
            free_space(&paths.runs),
            LEAST_RUNS,
            "enlarge that file system or choose another --run-dir",
        ),
        space(
            &format!("free disk for {}", paths.state.display()),
            free_space(&paths.state),
            LEAST_DISK,
            "free some, or choose another --state",
        ),
    ]
}

fn gpu(program: &Path) -> Finding {
    let asked = Command::new(program).arg("gpus").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let found = match asked {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; ")
        }
        _ => String::new(),
    };
    Finding {
        need: "GPU and driver".into(),
        ok: !found.is_empty(),
        found: if found.is_empty() { "none; `--gpu emulated` is there".into() } else { found },
        required: "an NVIDIA GPU with driver 580 or newer, or the emulated one".into(),
        required_for_all: false,
        mend: "install NVIDIA's driver, or use `--gpu emulated`".into(),
    }
}

/// Driver mode takes programs on AMD GPUs by CRIU's plugin.
fn amd_plugin(criu: Option<&Criu>) -> Finding {
    let plugin = criu.is_some_and(|criu| amd::with_plugin(criu).is_ok());
    let (found, ok) = match (amd::is_here(), plugin) {
        (false, _) => ("no AMD GPU", true),
        (true, false) => ("an AMD GPU, and no plugin", false),
        (true, true) => ("an AMD GPU and the plugin", true),
    };
    Finding {
        need: "CRIU's plugin for AMD GPUs".into(),
        found: found.into(),
        required: format!("{}, where there is an AMD GPU", amd::PLUGIN),
        ok,
        required_for_all: false,
        mend: format!("install it with CRIU, and name its directory in {}", amd::PLUGINS_VARIABLE),
    }
}

fn criu_version(criu: &rekindle_sandbox::Result<Criu>) -> Finding {
    Finding {
        need: "CRIU".into(),
        found: match criu {
            Ok(criu) => format!("{} in {}", criu.version(), criu.path().display()),
            Err(error) => error.to_string(),
        },
        required: format!("{MINIMUM_VERSION} or newer"),
        ok: criu.is_ok(),
        required_for_all: true,
        mend: NEWER_CRIU.into(),
    }
}

/// What `criu check` does not know of is tried: it is content with a CRIU that this kernel refuses every socket to.
fn taken_and_brought_back(criu: &rekindle_sandbox::Result<Criu>, paths: &Paths, program: &Path) -> Finding {
    let directory = paths.runs.join(format!("trial-{}", std::process::id()));
    let tried = criu.as_ref().map(|criu| trial::attempt(criu, program, &directory));
    Finding {
        need: "checkpoint and restore".into(),
        found: match &tried {
            Ok(Ok(took)) => format!("it was taken and brought back in {} ms", took.as_millis()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "not tried".into(),
        },
        required: "a process with a listening socket, a connection, threads and a timer goes on where it was"
            .into(),
        ok: matches!(tried, Ok(Ok(_))),
        required_for_all: true,
        mend: if nix::unistd::Uid::effective().is_root() { NEWER_CRIU } else { "run as root" }.into(),
    }
}

fn criu_check(criu: &rekindle_sandbox::Result<Criu>) -> Finding {
    let checked = criu.as_ref().map(Criu::check);
    Finding {
        need: "what CRIU asks of the kernel".into(),
        found: match &checked {
            Ok(Ok(())) => "`criu check` is content".into(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "not checked".into(),
        },
        required: "a `criu check` without errors".into(),
        ok: matches!(checked, Ok(Ok(()))),
        required_for_all: true,
        mend: "run as root on a kernel that CRIU supports".into(),
    }
}

fn capabilities(need: &str, purpose: For) -> Finding {
    let missing = capability::missing(purpose);
    let named = |(name, what): &(&str, &str)| format!("CAP_{name} ({what})");
    let list = |all: &[_]| all.iter().map(named).collect::<Vec<_>>().join(", ");
    Finding {
        need: need.into(),
        found: if missing.is_empty() { "all".into() } else { format!("without {}", list(&missing)) },
        required: list(&capability::needed(purpose)),
        ok: missing.is_empty(),
        required_for_all: matches!(purpose, For::Checkpoints | For::Restores),
        mend: "run as root, or in a container with these capabilities".into(),
    }
}

/// What a daemon that starts tells of in its log.
pub fn tell_of_capabilities() {
    for (name, what) in For::ALL.into_iter().flat_map(capability::missing) {
        log::warn!(
            "this daemon is without CAP_{name}, for {what}; `rekindle doctor` says what cannot be done so"
        );
    }
}

fn kernel_feature(need: &str, path: &str, required_for_all: bool, mend: &str) -> Finding {
    let there = Path::new(path).exists();
    Finding {
        need: need.into(),
        found: if there { "there" } else { "absent" }.into(),
        required: path.into(),
        ok: there,
        required_for_all,
        mend: mend.into(),
    }
}

fn network() -> Finding {
    let made = Network::make(Addresses::Loopback);
    Finding {
        need: "networks of programs' own".into(),
        found: made.as_ref().map_or_else(ToString::to_string, |_| "there".into()),
        required: "for `--network private`".into(),
        ok: made.is_ok(),
        required_for_all: false,
        mend: "run as root on a kernel with CONFIG_NET_NS, or use `--network host`".into(),
    }
}

fn userfaultfd() -> Finding {
    // SAFETY: the call takes flags and touches no memory of ours.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if descriptor >= 0 {
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
        unsafe { libc::close(descriptor as i32) };
    }
    Finding {
        need: "userfaultfd".into(),
        found: if descriptor >= 0 { "there" } else { "absent" }.into(),
        required: "for loading pages on demand".into(),
        ok: descriptor >= 0,
        required_for_all: false,
        mend: "use a kernel with CONFIG_USERFAULTFD".into(),
    }
}

fn write_protection() -> Finding {
    let ok = PreCopy::is_possible();
    Finding {
        need: "asynchronous write protection".into(),
        found: if ok { "there" } else { "absent" }.into(),
        required: "for copying memory before a program stands still".into(),
        ok,
        required_for_all: false,
        mend: "use Linux 6.7 or newer with CONFIG_USERFAULTFD and CONFIG_PTE_MARKER_UFFD_WP; until then a program stands \
            still for as long as its memory is copied"
            .into(),
    }
}

fn locked_memory() -> Finding {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
    Finding {
        need: "limit on locked memory".into(),
        found: if limit == u64::MAX { "none".into() } else { format!("{} MB", limit >> 20) },
        required: "none, or root, where a real GPU's pinned memory is used".into(),
        ok: limit == u64::MAX || nix::unistd::Uid::effective().is_root(),
        required_for_all: false,
        mend: "`ulimit -l unlimited`".into(),
    }
}

fn space(need: &str, found: u64, least: u64, mend: &str) -> Finding {
    Finding {
        need: need.into(),
        found: format!("{} MB", found >> 20),
        required: format!("{} MB or more", least >> 20),
        ok: found >= least,
        required_for_all: true,
        mend: mend.into(),
    }
}
