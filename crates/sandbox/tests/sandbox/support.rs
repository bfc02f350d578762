//! What the tests share: a counting program in a sandbox, and its peer outside.

use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fs, io};

use rekindle_sandbox::{
    Criu, DumpSpec, Error, ExternalSocket, Frozen, INIT_ARGUMENT, Inventory, KnownFiles, Program,
    ReadySandbox, RestoreReport, RestoreSpec, Restored, Result, Sandbox, Spec,
};
use serde_json::Value;
use tempfile::TempDir;

pub const RING_BYTES: u64 = 8192;

/// Whether the tests can run; says why where they cannot.
pub fn able() -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: namespaces and CRIU need root");
    }
    root
}

pub fn criu() -> &'static Criu {
    static CRIU: OnceLock<Criu> = OnceLock::new();
    CRIU.get_or_init(|| {
        if std::env::var_os("REKINDLE_CRIU_DIR").is_some() {
            return Criu::find(&[]).unwrap();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let output = Command::new(root.join("scripts/criu")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found = Criu::find(&[root.join(".build/criu")]).unwrap();
        found.check().unwrap();
        found
    })
}

/// A run directory with a ring and a control socket in it, as a daemon would make.
pub struct RunDirectory {
    pub dir: TempDir,
    listener: UnixListener,
}

impl RunDirectory {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("rekindle-test-").tempdir_in("/dev/shm").unwrap();
        fs::File::create(dir.path().join("ring-0")).unwrap().set_len(RING_BYTES).unwrap();
        let listener = UnixListener::bind(dir.path().join("control.sock")).unwrap();
        Self { dir, listener }
    }

    pub fn spec(&self) -> Spec {
        spec_in(self.dir.path())
    }

    pub fn accept(&self) -> UnixStream {
        self.listener.accept().unwrap().0
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

pub fn spec_in(run_dir: &Path) -> Spec {
    Spec {
        init: vec![env!("CARGO_BIN_EXE_sandbox-init").into(), INIT_ARGUMENT.into()],
        run_dir: run_dir.into(),
        ..Spec::default()
    }
}

pub fn program(args: &[&str]) -> Program {
    Program {
        args: args.iter().map(Into::into).collect(),
        env: vec![
            ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
            ("GREETING".into(), "hello".into()),
        ],
        cwd: "/tmp".into(),
        allowed: Vec::new(),
        user: None,
    }
}

pub fn counter() -> Program {
    script("counter.py")
}

fn script(name: &str) -> Program {
    program(&["/usr/bin/python3", &format!("{}/tests/sandbox/{name}", env!("CARGO_MANIFEST_DIR"))])
}

/// A sandbox that ends with the test, however that ends.
pub struct OwnedSandbox(pub Sandbox);

impl Deref for OwnedSandbox {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.0
    }
}

impl Drop for OwnedSandbox {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill() {
            eprintln!("a sandbox stays: {error}");
        }
    }
}

/// A program in a sandbox with the connection to it.
pub struct Running {
    pub sandbox: OwnedSandbox,
    pub place: Arc<RunDirectory>,
    peer: BufReader<UnixStream>,
    /// The inode of the program's end of the control connection.
    pub inode: u32,
}

impl Running {
    pub fn start() -> Self {
        Self::start_script("counter.py")
    }

    pub fn start_script(name: &str) -> Self {
        let place = Arc::new(RunDirectory::new());
        let sandbox = Sandbox::start(&place.spec(), &script(name)).unwrap();
        let peer = place.accept();
        Self::new(sandbox, place, peer)
    }

    /// With the connection that the program itself has made.
    pub fn new(sandbox: Sandbox, place: Arc<RunDirectory>, peer: UnixStream) -> Self {
        let mut running = Self::with_inode(sandbox, place, peer, 0);
        let mut hello = String::new();
        running.peer.read_line(&mut hello).unwrap();
        running.inode = hello.trim().parse().unwrap();
        running
    }

    fn with_inode(sandbox: Sandbox, place: Arc<RunDirectory>, peer: UnixStream, inode: u32) -> Self {
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { sandbox: OwnedSandbox(sandbox), place, peer: BufReader::new(peer), inode }
    }

    pub fn ask(&mut self, command: &str) -> Value {
        self.try_ask(command).unwrap()
    }

    pub fn try_ask(&mut self, command: &str) -> io::Result<Value> {
        writeln!(self.peer.get_mut(), "{command}")?;
        let mut line = String::new();
        self.peer.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    pub fn dump<E>(
        &self,
        images: &Path,
        leave_running: bool,
        hook: impl FnOnce(&Frozen<'_>) -> Result<(), E>,
    ) -> Result<rekindle_sandbox::DumpReport>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut spec = DumpSpec::new(criu(), images, leave_running);
        spec.external_sockets = vec![self.inode];
        let mut inventory = None;
        let dumped = self.sandbox.dump(&spec, |frozen| {
            let taken = self.sandbox.begin_inventory(&KnownFiles::default());
            inventory = taken.and_then(|taken| frozen.inventory(taken)).ok();
            hook(frozen)
        });
        if let Some(inventory) = inventory {
            fs::write(kept(images), serde_json::to_vec(&inventory).unwrap()).unwrap();
        }
        dumped
    }

    pub fn restore(images: &Path, inode: u32) -> Result<(Self, RestoreReport)> {
        Self::restore_with(images, inode, |_| Ok::<(), Error>(()))
    }

    pub fn restore_with<E>(
        images: &Path,
        inode: u32,
        hook: impl FnOnce(&Restored) -> Result<(), E>,
    ) -> Result<(Self, RestoreReport)>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let place = Arc::new(RunDirectory::new());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let inventory: Option<Inventory> =
            fs::read(kept(images)).ok().map(|text| serde_json::from_slice(&text).unwrap());
        let spec = RestoreSpec {
            sockets: vec![ExternalSocket { inode, socket: theirs.as_fd() }],
            inventory: inventory.as_ref(),
            ..RestoreSpec::new(place.spec(), criu(), Duration::from_secs(30))
        };
        let (sandbox, report) = restore(&spec, images, hook)?;
        // The program's end is the socket itself that was passed.
        let inode = nix::sys::stat::fstat(&theirs).unwrap().st_ino as u32;
        Ok((Self::with_inode(sandbox, place, ours, inode), report))
    }
}

pub fn restore<E>(
    spec: &RestoreSpec<'_>,
    images: &Path,
    hook: impl FnOnce(&Restored) -> Result<(), E>,
) -> Result<(Sandbox, RestoreReport)>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    ReadySandbox::make(spec)?.restore(images, hook)
}

/// What is kept with images of what the program needs.
fn kept(images: &Path) -> PathBuf {
    images.with_extension("kept")
}

pub fn images() -> (TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("rekindle-images-").tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("cpu");
    (dir, path)
}
