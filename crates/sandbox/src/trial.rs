//! What this machine can do, found out by doing it: a small process with a listening TCP socket, a connection with
//! itself, threads and a timer is taken, ended, brought back and asked.
//!
//! ```text
//!  asker ──a byte──▶ listening socket ▶ main thread ──connection──▶ second thread adds one
//!        ◀────────────────────────────── waits for its timer ◀───────────────┘
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::criu::Criu;
use crate::dump::{DumpSpec, Frozen};
use crate::error::{Error, Result};
use crate::init::RUN_PATH;
use crate::message::Program;
use crate::restore::{ReadySandbox, RestoreSpec, Restored};
use crate::sandbox::{Sandbox, Spec};

/// The argument with which the process is run.
pub const TRIAL_ARGUMENT: &str = "criu-trial";
/// The file in the run directory with its port, there once it listens.
const PORT_FILE: &str = "port";
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Takes the process and brings it back with `criu`; how long that took. `program` runs [`trial_main`] when it is given
/// [`TRIAL_ARGUMENT`], and [`crate::init_main`] as a sandbox wants it. `directory` is made, and removed again.
pub fn attempt(criu: &Criu, program: &Path, directory: &Path) -> Result<Duration> {
    let made = fs::create_dir_all(directory);
    made.map_err(Error::io(format!("making {}", directory.display())))?;
    let result = take_and_bring_back(criu, program, directory);
    // What is left lies in memory, and is small.
    let _ = fs::remove_dir_all(directory);
    // CRIU's log went with it.
    result.map_err(|error| match error {
        Error::Criu { action, cause, .. } => Error::Criu { action, cause, log: None },
        other => other,
    })
}

fn take_and_bring_back(criu: &Criu, program: &Path, directory: &Path) -> Result<Duration> {
    let began = Instant::now();
    let spec = |name: &str| -> Result<Spec> {
        let run_dir = directory.join(name);
        fs::create_dir(&run_dir).map_err(Error::io(format!("making {}", run_dir.display())))?;
        let init = vec![program.into(), crate::INIT_ARGUMENT.into()];
        Ok(Spec { init, run_dir, ..Spec::default() })
    };
    let (first, second, images) = (spec("first")?, spec("second")?, directory.join("images"));
    let port_file = first.run_dir.join(PORT_FILE);
    let process = Program {
        args: vec![program.into(), TRIAL_ARGUMENT.into()],
        env: std::env::vars_os().filter(|(key, _)| key == "PATH").collect::<Vec<(OsString, OsString)>>(),
        cwd: "/".into(),
        allowed: Vec::new(),
        user: None,
    };
    let sandbox = Sandbox::start(&first, &process)?;
    let taken = port(&port_file, &sandbox).and_then(|port| {
        ask(port, 1)?;
        let dump = DumpSpec::new(criu, &images, false);
        sandbox.dump(&dump, |_: &Frozen<'_>| Ok::<(), Error>(()))?;
        Ok(port)
    });
    let ended = sandbox.kill();
    let port = taken?;
    ended?;
    let restore = RestoreSpec::new(second, criu, PATIENCE);
    let (sandbox, _) = ReadySandbox::make(&restore)?.restore(&images, |_: &Restored| Ok::<(), Error>(()))?;
    let asked = ask(port, 41);
    sandbox.kill()?;
    asked.map(|()| began.elapsed())
}

fn port(file: &Path, sandbox: &Sandbox) -> Result<u16> {
    let began = Instant::now();
    loop {
        if let Some(port) = fs::read_to_string(file).ok().and_then(|text| text.parse().ok()) {
            return Ok(port);
        }
        let ended = sandbox.exit_status()?;
        if ended.is_some() || began.elapsed() > PATIENCE {
            let cause = format!("the process of the trial does not listen ({ended:?})");
            return Err(Error::Start { cause, shell_code: None });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn ask(port: u16, number: u8) -> Result<()> {
    let mut answer = [0];
    let mut exchanged = || -> io::Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[number])?;
        stream.read_exact(&mut answer)
    };
    exchanged().map_err(Error::io("asking the process of the trial"))?;
    if answer[0] == number + 1 {
        return Ok(());
    }
    Err(Error::Protocol {
        found: format!("{}", answer[0]),
        expected: "the number after the one that it was given",
    })
}

/// The process itself. Only returns if it cannot go on.
pub fn trial_main() -> io::Error {
    match serve() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn serve() -> io::Result<std::convert::Infallible> {
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(own.local_addr()?)?;
    let (mut far, _) = own.accept()?;
    drop(own);
    std::thread::spawn(move || -> io::Result<()> {
        let mut byte = [0];
        loop {
            far.read_exact(&mut byte)?;
            far.write_all(&[byte[0].wrapping_add(1)])?;
        }
    });
    let mut timer = timer(Duration::from_millis(10))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let file = Path::new(RUN_PATH).join(PORT_FILE);
    let draft = file.with_extension("draft");
    fs::write(&draft, listener.local_addr()?.port().to_string())?;
    fs::rename(draft, file)?;
    loop {
        let (mut stream, _) = listener.accept()?;
        let (mut byte, mut expirations) = ([0], [0; 8]);
        stream.read_exact(&mut byte)?;
        near.write_all(&byte)?;
        near.read_exact(&mut byte)?;
        timer.read_exact(&mut expirations)?;
        stream.write_all(&byte)?;
        // Whoever asked closes: what is left of the connection is theirs, and the next checkpoint finds none.
        let _ = stream.read(&mut byte)?;
    }
}

/// A timer that expires again and again.
fn timer(every: Duration) -> io::Result<File> {
    // SAFETY: takes two integers and touches no memory of ours.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let timer = unsafe { OwnedFd::from_raw_fd(fd) };
    let time = libc::timespec { tv_sec: 0, tv_nsec: every.subsec_nanos().into() };
    let times = libc::itimerspec { it_interval: time, it_value: time };
    // SAFETY: `times` is read during the call, and the old setting is not asked for.
    if unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &times, std::ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(timer.into())
}
