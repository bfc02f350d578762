//! The real programs, driven as a user would, with places of their own.

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use rekindle_sandbox::{Stat, process};
use serde_json::Value;
use tempfile::TempDir;

const REKINDLE: &str = env!("CARGO_BIN_EXE_rekindle");
const REKINDLED: &str = env!("CARGO_BIN_EXE_rekindled");

/// How long anything may take that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Counts and prints, forever, ten times a second.
pub const COUNTER: [&str; 3] = [
    "python3",
    "-c",
    "import time\nn = 0\nwhile True:\n    print(n, flush=True)\n    n += 1\n    time.sleep(0.02)",
];

/// Counts on the GPU, as [`COUNTER`] does on the CPU.
pub const GPU_COUNTER: [&str; 2] =
    ["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/bump.py")];

pub struct Rekindle {
    root: TempDir,
    runs: Arc<TempDir>,
    environment: Vec<(String, String)>,
    /// What every command and daemon gets, whatever faults there are.
    always: Vec<(String, String)>,
}

impl Rekindle {
    pub fn new() -> Rekindle {
        Rekindle::new_in(Arc::new(tempfile::tempdir_in("/dev/shm").unwrap()))
    }

    fn new_in(runs: Arc<TempDir>) -> Rekindle {
        build_client();
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("marks")).unwrap();
        Rekindle { root, runs, environment: Vec::new(), always: Vec::new() }
    }

    /// Another one, with the other's place for what runs.
    pub fn beside(other: &Rekindle) -> Rekindle {
        Rekindle::new_in(other.runs.clone())
    }

    /// As [`Rekindle::new`], with variables of its own.
    pub fn with(variables: &[(&str, &str)]) -> Rekindle {
        let always = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let mut rekindle = Rekindle::new();
        rekindle.always = always;
        rekindle
    }

    /// The next daemon meets this fault; `None` for no fault. The one that runs is ended.
    pub fn set_fault(&mut self, fault: Option<&str>) {
        if let Some(pid) = self.daemon_pid() {
            self.ok(&["shutdown"]);
            wait("the daemon's end", || !is_alive(pid));
        }
        for mark in fs::read_dir(self.path("marks")).unwrap() {
            fs::remove_file(mark.unwrap().path()).unwrap();
        }
        self.environment.clear();
        self.environment.extend(fault.map(|fault| ("REKINDLE_FAULT".to_string(), fault.to_string())));
    }

    /// Waits until somebody hangs at this point.
    pub fn reached(&self, point: &str) {
        wait(point, || self.path("marks").join(point).exists());
    }

    /// Whoever hangs at this point goes on, and whoever comes there later.
    pub fn let_go(&self, point: &str) {
        fs::write(self.path("marks").join(format!("{point}.go")), "").unwrap();
    }

    /// Stores opened from now on may write so many bytes and no more.
    pub fn set_disk_bytes(&mut self, bytes: &str) {
        self.environment = vec![("REKINDLE_FAULT".to_string(), format!("disk:{bytes}"))];
    }

    pub fn path(&self, name: &str) -> PathBuf {
        match name.strip_prefix("runs") {
            Some(rest) => self.runs.path().join(rest.trim_start_matches('/')),
            None => self.root.path().join(name),
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(REKINDLE);
        self.place(&mut command);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// `rekindled`, in the foreground.
    pub fn daemon(&self) -> Command {
        let mut command = Command::new(REKINDLED);
        self.place(&mut command);
        command.stdin(Stdio::null());
        command
    }

    fn place(&self, command: &mut Command) {
        command
            .env("REKINDLE_SOCKET", self.path("socket"))
            .env("REKINDLE_STATE", self.path("state"))
            .env("REKINDLE_RUN_ROOT", self.path("runs"))
            .env("REKINDLE_FAULT_MARKS", self.path("marks"))
            // A line is one write, so that a checkpoint never finds half of one written.
            .env_remove("PYTHONUNBUFFERED")
            .envs(self.always.iter().cloned())
            .envs(self.environment.iter().cloned());
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must work; its standard output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}\n{}", self.daemon_log());
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.insert(0, "--json");
        serde_json::from_str(&self.ok(&arguments)).unwrap()
    }

    /// Runs a command that must be refused; the one sentence that it says.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.starts_with("rekindle: ") && error.lines().count() == 1, "{arguments:?}: {error}");
        error
    }

    pub fn start(&self, name: &str, command: &[&str]) {
        let name = format!("--name={name}");
        let mut arguments = vec!["run", "-d", &name, "--gpu", "emulated", "--"];
        arguments.extend(command);
        self.ok(&arguments);
    }

    pub fn sandbox(&self, name: &str) -> Value {
        let all = self.json(&["ps", "-a"]);
        let found = all["sandboxes"].as_array().unwrap().iter().find(|sandbox| sandbox["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {all}")).clone()
    }

    /// What this run of the program has printed, and not one before a restore: whole lines.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let all = self.ok(&["logs", "--", name]);
        // What stands behind the last line's end is one that is being written.
        let whole = &all[..all.rfind('\n').map_or(0, |end| end + 1)];
        let all: Vec<String> = whole.lines().map(str::to_string).collect();
        let begin = all.iter().rposition(|line| line.starts_with("--- rekindle: restored from the image "));
        all[begin.map_or(0, |marker| marker + 1)..].to_vec()
    }

    /// The numbers that [`COUNTER`] has printed.
    pub fn count(&self, name: &str) -> Vec<u64> {
        let lines = self.lines(name);
        lines.iter().map(|line| line.parse().unwrap_or_else(|_| panic!("{lines:?}"))).collect()
    }

    pub fn images(&self) -> Vec<String> {
        let all = self.json(&["images"]);
        all["images"]
            .as_array()
            .unwrap()
            .iter()
            .map(|image| image["name"].as_str().unwrap().to_string())
            .collect()
    }

    /// The files of 2 MB that keep contents of large buffers.
    pub fn large_chunks(&self) -> Vec<PathBuf> {
        let mut chunks = Vec::new();
        let mut places = vec![self.path("state/store/chunks")];
        while let Some(place) = places.pop() {
            for entry in fs::read_dir(place).unwrap().map(Result::unwrap) {
                let kind = entry.metadata().unwrap();
                if kind.is_dir() {
                    places.push(entry.path());
                } else if kind.len() == 2 << 20 {
                    chunks.push(entry.path());
                }
            }
        }
        chunks
    }

    /// Waits until the counter has gone on by a few steps: the program runs.
    pub fn goes_on(&self, name: &str) {
        let before = self.lines(name).len();
        wait(&format!("{name} to go on"), || self.lines(name).len() > before + 3);
        let counted = self.count(name);
        assert!(counted.windows(2).all(|pair| pair[1] == pair[0] + 1), "{counted:?}");
    }

    pub fn daemon_pid(&self) -> Option<i32> {
        let text = fs::read_to_string(self.path("state/lock")).ok()?;
        // It is empty before one that starts has written who it is.
        text.split_whitespace().nth(1)?.parse().ok()
    }

    pub fn kill_daemon(&self) {
        let pid = self.daemon_pid().unwrap();
        kill(pid, 9);
        // Its first thread is dead before its socket is closed.
        wait("the daemon's end", || UnixStream::connect(self.path("socket")).is_err());
    }

    pub fn daemon_log(&self) -> String {
        fs::read_to_string(self.path("state/daemon.log")).unwrap_or_default()
    }

    /// The pids of all workers of sandboxes.
    pub fn workers(&self) -> Vec<i32> {
        let all = self.json(&["ps"]);
        let of = |sandbox: &Value| -> Vec<i32> {
            sandbox["workers"].as_array().unwrap().iter().map(|pid| pid.as_i64().unwrap() as i32).collect()
        };
        all["sandboxes"].as_array().unwrap().iter().flat_map(of).collect()
    }

    /// The pids of this Rekindle's worker processes, those that wait among them.
    pub fn worker_processes(&self) -> Vec<i32> {
        let runs = self.path("runs");
        let runs = runs.to_str().unwrap();
        let command = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| command(pid).contains("\0worker\0") && command(pid).contains(runs))
            .collect()
    }

    /// Whether this worker has no program: it has ended, or waits for the next one.
    pub fn is_done(&self, worker: i32) -> bool {
        let pool = self.json(&["ps"])["pool"].take();
        !is_alive(worker) || pool.as_array().unwrap().iter().any(|spare| spare["pid"] == worker)
    }

    /// The pids of workers that wait ready and have served nobody, once there are so many.
    pub fn pool(&self, count: usize) -> Vec<i32> {
        let began = Instant::now();
        loop {
            let pool = self.json(&["ps"])["pool"].take();
            let new = pool.as_array().unwrap().iter().filter(|spare| spare["returned"] == false);
            let ready = new.filter(|spare| spare["ready"] == true);
            let ready: Vec<i32> = ready.map(|spare| spare["pid"].as_i64().unwrap() as i32).collect();
            if ready.len() == count {
                return ready;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{count} are to wait, and these do: {pool}\n{}",
                self.daemon_log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The next daemon gets this environment too.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_string(), value.to_string()));
    }

    /// Nothing is left of work that was not finished.
    pub fn assert_tidy(&self) {
        for place in ["state/store/staging", "state/dumps"] {
            let left: Vec<_> =
                fs::read_dir(self.path(place)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(left.is_empty(), "{place}: {left:?}");
        }
        let live = self.json(&["ps"])["sandboxes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|sandbox| sandbox["pid"] != 0)
            .count();
        assert_eq!(self.run_directories().len(), live);
    }

    /// A program whose only thread waits for a child that it has made by vfork, and counts once that is killed.
    pub fn disk_sleep(&self) -> PathBuf {
        let binary = self.path("disk_sleep");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/disk_sleep.c");
        assert!(Command::new("cc").arg("-o").arg(&binary).arg(source).status().unwrap().success());
        binary
    }

    /// Those of this one's sandboxes.
    pub fn run_directories(&self) -> Vec<PathBuf> {
        let name = fs::read_to_string(self.path("state/name")).unwrap_or_default();
        let Some(name) = name.split_whitespace().next() else { return Vec::new() };
        let all = fs::read_dir(self.path("runs/run")).into_iter().flatten();
        let all = all.map(|entry| entry.unwrap().path());
        all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(name)).collect()
    }
}

impl Drop for Rekindle {
    fn drop(&mut self) {
        self.environment.clear();
        let all = self.output(&["ps", "--json"]);
        let all: Value = serde_json::from_slice(&all.stdout).unwrap_or_default();
        for sandbox in all["sandboxes"].as_array().into_iter().flatten() {
            if sandbox["pid"] != 0 {
                let name = sandbox["name"].as_str().unwrap_or_default();
                // SIGKILL: a program of a test need not be asked.
                self.output(&["kill", "--signal", "9", "--", name]);
            }
        }
        let began = Instant::now();
        while !self.run_directories().is_empty() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.output(&["shutdown"]);
    }
}

/// The daemon finds the client beside its executable.
fn build_client() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        if !PathBuf::from(REKINDLED).with_file_name("libcuda.so").exists() {
            let built = Command::new(env!("CARGO")).args(["build", "-p", "rekindle-client"]).status();
            assert!(built.unwrap().success());
        }
    });
}

pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "still waiting for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The only child of a process of one thread.
pub fn child(pid: i32) -> Option<i32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.trim().parse().ok()
}

/// Waits for a child's end, not for ever.
pub fn end_of(mut child: Child) -> Output {
    wait("a command's end", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap()
}

pub fn kill(pid: i32, signal: i32) {
    assert!(pid > 1, "{pid} is no single process");
    let signal = nix::sys::signal::Signal::try_from(signal).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

/// Whether any thread of a process lives: the first may have ended before others, and before what it has open is closed.
pub fn is_alive(pid: i32) -> bool {
    process::threads(pid).into_iter().any(|thread| Stat::of(thread).is_ok_and(|stat| !stat.has_ended()))
}

/// Has the kernel refuse a system call to a command and to all that it starts, as containers do.
pub fn refuse(command: &mut Command, call: i64) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: a whole filter, borrowed for the call.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(install) };
}
