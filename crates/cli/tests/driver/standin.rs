//! The stand-in driver of `programs/standin_driver.c`, and programs that use it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::driver::support::{Program, goes_on, numbers};
use crate::harness::{PATIENCE, Rekindle, is_alive, wait};

/// How long a step of the driver may take where one hangs, milliseconds: others must be done by then on a busy machine.
const LIMIT: &str = "6000";

/// In place of the kernel's switch for large pages.
const HUGE_PAGES: &str = "huge-pages";

pub struct Fixture {
    pub rekindle: Rekindle,
    directory: TempDir,
    switches: String,
}

/// Built once: a program's state is found by the library's path.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let made = || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("libcuda.so.1");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/standin_driver.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&path)
            .arg(source)
            .arg("-ldl");
        assert!(compiler.status().unwrap().success());
        symlink(&path, path.with_file_name("libnvidia-ml.so.1")).unwrap();
        (directory, path)
    };
    &LIBRARY.get_or_init(made).1
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with("")
    }

    /// With a limit to each of the driver's steps, for one that hangs.
    pub fn limited() -> Fixture {
        Fixture::with(&format!("driver.step-ms={LIMIT}"))
    }

    /// With switches of the daemon's.
    fn with(switches: &str) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let huge_pages = directory.path().join(HUGE_PAGES);
        fs::write(&huge_pages, "always [madvise] never\n").unwrap();
        let switches = format!("driver.huge-pages={},{switches}", huge_pages.display());
        let own = [
            ("REKINDLE_TUNING", switches.as_str()),
            ("REKINDLE_LIBCUDA", library().to_str().unwrap()),
            ("STANDIN_DIR", directory.path().to_str().unwrap()),
        ];
        let rekindle = Rekindle::with(&own);
        let scene = Fixture { rekindle, directory, switches: switches.clone() };
        scene.write("gpus", "1 H200 100000000 50000000\n2 H200 100000000 50000000\n");
        scene
    }

    /// The next daemon has this switch too.
    pub fn tune(&mut self, switch: &str) {
        self.rekindle.set_environment("REKINDLE_TUNING", &format!("{},{switch}", self.switches));
    }

    pub fn has(&self, name: &str) -> bool {
        self.directory.path().join(name).exists()
    }

    /// What `kernel` keeps running ends.
    pub fn end_kernel(&self) {
        fs::remove_file(self.directory.path().join("kernel")).unwrap();
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    /// The driver's next steps go wrong.
    pub fn plan(&self, plan: &str) {
        self.write("plan", &format!("{plan}\n"));
    }

    pub fn output(&self, number: usize) -> PathBuf {
        let name = if number == 0 { "count".to_string() } else { format!("count.{number}") };
        self.directory.path().join(name)
    }

    /// The command that counts.
    pub fn command(&self, processes: usize) -> Vec<String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/standin_counter.py");
        let out = self.output(0).to_str().unwrap().to_string();
        ["python3", script, &out, &processes.to_string(), "0"].map(String::from).to_vec()
    }

    /// What a program that uses the stand-in must find under the same names, wherever it runs.
    pub fn paths(&self) -> [PathBuf; 2] {
        [library().parent().unwrap().to_path_buf(), self.directory.path().to_path_buf()]
    }

    /// What it must find in its environment.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let directory = self.directory.path().to_str().unwrap();
        [("REKINDLE_LIBCUDA", library().to_str().unwrap()), ("STANDIN_DIR", directory)].into_iter()
    }

    /// Two processes that count, started without Rekindle.
    pub fn start(&self) -> Program {
        self.start_with(2)
    }

    pub fn start_with(&self, processes: usize) -> Program {
        self.start_in(processes, &[])
    }

    /// As [`Fixture::start_with`], with these variables in its environment.
    pub fn start_in(&self, processes: usize, variables: &[(&str, &str)]) -> Program {
        let words = self.command(processes);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("REKINDLE_LIBCUDA", library())
            .env("STANDIN_DIR", self.directory.path())
            .envs(variables.iter().copied());
        // What these tests print into may be a file, which grows between an image and its restore.
        let program =
            Program::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        for number in 0..processes {
            wait("the program", || !numbers(&self.output(number)).is_empty());
        }
        program
    }

    pub fn go_on(&self, processes: usize) {
        for number in 0..processes {
            goes_on(&self.output(number));
        }
    }

    /// As [`Fixture::go_on`] where a part of it was counted before: by a restore that failed after the program ran.
    pub fn grow(&self, processes: usize) {
        for number in 0..processes {
            let before = numbers(&self.output(number)).len();
            wait("the program to go on", || numbers(&self.output(number)).len() > before + 3);
        }
    }

    /// Calls a function of the driver's on a process.
    pub fn call(&self, function: &str, pid: &str) {
        let code = format!(
            "import ctypes, os\ndriver = ctypes.CDLL(os.environ['REKINDLE_LIBCUDA'])\nzeros = (ctypes.c_uint * 16)(1000)\nassert driver.{function}({pid}, zeros) == 0"
        );
        let mut command = Command::new("python3");
        command
            .args(["-c", &code])
            .env("REKINDLE_LIBCUDA", library())
            .env("STANDIN_DIR", self.directory.path());
        assert!(command.status().unwrap().success());
    }

    /// The CRIU that works for this scene's daemon.
    pub fn criu(&self) -> Option<i32> {
        let daemon = self.rekindle.daemon_pid()?;
        let tasks = fs::read_dir(format!("/proc/{daemon}/task")).ok()?.flatten();
        let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<i32> = children
            .flat_map(|line| line.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
            .collect();
        children.into_iter().find(|child| {
            fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|words| words.contains("\0swrk\0"))
        })
    }

    /// Asks for what the daemon does not survive, for it ends itself at a point of it.
    pub fn kills_daemon(&self, words: &[&str]) {
        self.rekindle.ok(&["ps"]);
        let daemon = self.rekindle.daemon_pid();
        let error = self.rekindle.refused(words);
        assert!(error.contains("the connection to the daemon was lost"), "{error}");
        wait("the daemon's end", || !is_alive(daemon.unwrap()));
    }

    /// Waits until the helper of a daemon that was killed has ended; says what it does if it does not.
    pub fn wait_helper_end(&self) {
        let daemon = self.rekindle.daemon_pid();
        assert!(!daemon.is_some_and(is_alive), "the helper's daemon lives: {}", self.rekindle.daemon_log());
        let began = Instant::now();
        while let Some(helper) = self.helper() {
            if began.elapsed() > PATIENCE {
                let tasks = fs::read_dir(format!("/proc/{helper}/task")).into_iter().flatten().flatten();
                let of = |task: &Path, name| fs::read_to_string(task.join(name)).unwrap_or_default();
                let doing: Vec<_> =
                    tasks.map(|task| (of(&task.path(), "wchan"), of(&task.path(), "syscall"))).collect();
                let log = fs::read_to_string(self.rekindle.path("state/logs/driver-helper.log"));
                panic!("the helper {helper} goes on: {doing:?}; {log:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The helper of this scene's daemon.
    pub fn helper(&self) -> Option<i32> {
        let journals = self.rekindle.path("state/driver");
        fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let words = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            (words.contains("\0driver-helper\0") && words.contains(journals.to_str()?)).then_some(pid)
        })
    }

    pub fn checkpoint(&self, program: &Program, image: &str, after: &str) -> std::process::Output {
        self.rekindle.output(&["checkpoint", "--pid", &program.pid(), "--to", image, after])
    }

    /// Nothing is locked, and nothing is left of work that was not finished.
    pub fn assert_tidy(&self) {
        let journals = self.rekindle.path("state/driver");
        let huge_pages = fs::read_to_string(self.directory.path().join(HUGE_PAGES)).unwrap();
        assert_ne!(huge_pages, "always", "it was not set back");
        wait("the journals to be done", || fs::read_dir(&journals).is_ok_and(|all| all.count() == 0));
        self.rekindle.assert_tidy();
    }
}
