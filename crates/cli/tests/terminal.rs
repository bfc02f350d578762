//! Programs with terminals: used from terminals of ours, by nobody, and over checkpoints and restores.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use crate::harness::{Rekindle, kill, wait};
use libc::winsize;
use serde_json::json;

/// A command in the foreground of a terminal of ours.
struct TerminalSession {
    child: Child,
    /// Our side; none once the terminal has gone.
    ours: Option<File>,
    theirs: Option<OwnedFd>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl TerminalSession {
    fn new(rekindle: &Rekindle, arguments: &[&str]) -> TerminalSession {
        TerminalSession::sized(rekindle, arguments, 30, 90)
    }

    fn sized(rekindle: &Rekindle, arguments: &[&str], rows: u16, columns: u16) -> TerminalSession {
        TerminalSession::of(rekindle.command(arguments), rows, columns)
    }

    fn of(mut command: Command, rows: u16, columns: u16) -> TerminalSession {
        let (mut ours, mut theirs, size) = (-1, -1, size_of(rows, columns));
        let none = std::ptr::null_mut();
        // SAFETY: writes two integers and reads a size.
        let made = unsafe { libc::openpty(&mut ours, &mut theirs, none, std::ptr::null(), &raw const size) };
        assert_eq!(made, 0);
        // SAFETY: both were just made for us.
        let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let end = || Stdio::from(theirs.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // Of ours alone: no other command keeps it open.
                libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
                Ok(())
            })
        };
        let child = command.spawn().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (ours.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(got @ 1..) = from.read(&mut piece) {
                into.lock().unwrap().extend(&piece[..got]);
            }
        });
        TerminalSession { child, ours: Some(ours), theirs: Some(theirs), seen }
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until this is seen, and forgets it with all before it.
    fn sees(&self, what: &str) {
        wait(&format!("{what:?} on the terminal, which has {:?}", self.seen()), || {
            let mut seen = self.seen.lock().unwrap();
            let at = seen.windows(what.len()).position(|window| window == what.as_bytes());
            at.map(|at| seen.drain(..at + what.len()).count()).is_some()
        });
    }

    fn types(&mut self, keys: &str) {
        self.ours.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = size_of(rows, columns);
        // SAFETY: reads a size that lives as long as the call.
        let done = unsafe {
            libc::ioctl(self.ours.as_ref().unwrap().as_raw_fd(), libc::TIOCSWINSZ, &raw const size)
        };
        assert_eq!(done, 0);
    }

    /// Whether our terminal does what terminals do by themselves: it echoes, and Ctrl-C is a signal.
    fn is_cooked(&self) -> bool {
        // SAFETY: all of it are integers, which may be zero.
        let mut settings: libc::termios = unsafe { std::mem::zeroed() };
        let theirs = self.theirs.as_ref().unwrap().as_raw_fd();
        // SAFETY: writes settings that live as long as the call.
        assert_eq!(unsafe { libc::tcgetattr(theirs, &raw mut settings) }, 0);
        let both = libc::ECHO | libc::ISIG;
        assert!([0, both].contains(&(settings.c_lflag & both)));
        settings.c_lflag & both == both
    }

    /// The terminal goes away.
    fn vanish(&mut self) {
        // The thread that reads has it open too.
        let ours = self.ours.take().unwrap();
        // SAFETY: takes an integer; what is open there is closed by its owner.
        unsafe { libc::ioctl(self.theirs.as_ref().unwrap().as_raw_fd(), libc::TIOCVHANGUP) };
        drop(ours);
        self.theirs = None;
    }

    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        wait("the command's end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn code(&mut self) -> Option<i32> {
        self.end().code()
    }

    /// Ctrl-P Ctrl-Q.
    fn lets_go(mut self) {
        self.types("\x10\x11");
        assert_eq!(self.code(), Some(0), "{}", self.seen());
        self.sees("goes on");
        assert!(self.is_cooked());
    }
}

impl Drop for TerminalSession {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size_of(rows: u16, columns: u16) -> winsize {
    winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The one sentence that a command says which must be refused, on a terminal.
fn refused(rekindle: &Rekindle, arguments: &[&str]) -> String {
    let mut session = TerminalSession::new(rekindle, arguments);
    assert_eq!(session.code(), Some(1), "{}", session.seen());
    session.sees("rekindle: ");
    wait("the end of the sentence", || session.seen().ends_with("\r\n"));
    assert_eq!(session.seen().lines().count(), 1);
    session.seen()
}

/// Says what it has, new sizes, and that Ctrl-C has come; ends with 7 at the third line.
const WITNESS: &str = "import os, signal, sys
def say(*words):
    # By itself: a signal may come in the middle of a print.
    os.write(1, (' '.join(map(str, words)) + '\\n').encode())
def size(*_):
    now = os.get_terminal_size()
    say('size', f'{now.lines}x{now.columns}')
signal.signal(signal.SIGWINCH, size)
signal.signal(signal.SIGINT, lambda *_: say('interrupted'))
own = os.getsid(0) == os.getpid() == os.tcgetpgrp(0)
controls = os.open('/dev/tty', os.O_RDWR)
say('tty', *map(os.isatty, (0, 1, 2, controls)), own, os.environ['TERM'])
size()
for number, line in enumerate(sys.stdin):
    say('line', line.strip())
    if number == 2:
        sys.exit(7)";

/// Says when it is in the foreground: at its begin, and when it is continued.
const JOB: &str = "import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'continued\\n'))
os.write(1, b'begun\\n')
while True:
    signal.pause()
";

/// A file with [`JOB`].
fn job(rekindle: &Rekindle) -> String {
    let path = rekindle.path("job.py");
    fs::write(&path, JOB).unwrap();
    format!("python3 {}\r", path.display())
}

fn shell(prompt: &str) -> [String; 4] {
    // What is typed is not what is looked for: the terminal echoes it.
    ["env".into(), format!("PS1={prompt}"), "ENV=".into(), "sh".into()]
}

#[test]
fn a_program_has_a_terminal_of_its_own_and_ours_is_as_it_was() {
    let rekindle = Rekindle::new();
    let run = ["run", "-it", "-e", "TERM=dumb", "--name", "t", "--", "python3", "-c", WITNESS];
    let mut session = TerminalSession::new(&rekindle, &run);
    session.sees("tty True True True True True dumb\r\nsize 30x90\r\n");
    assert!(!session.is_cooked());
    session.resize(11, 22);
    session.sees("size 11x22\r\n");
    session.types("\x03");
    session.sees("interrupted\r\n");
    for word in ["one", "two", "three"] {
        session.types(&format!("{word}\r"));
        session.sees(&format!("{word}\r\nline {word}\r\n"));
    }
    assert_eq!(session.code(), Some(7));
    assert!(session.is_cooked());
    let logged = rekindle.ok(&["logs", "t"]);
    assert!(logged.contains("size 11x22\r\n") && logged.ends_with("line three\r\n"), "{logged:?}");
    assert_eq!(rekindle.sandbox("t")["exit_code"], 7);
    rekindle.assert_tidy();
}

#[test]
fn jobs_are_stopped_continued_and_interrupted() {
    let rekindle = Rekindle::new();
    let (shell, job) = (shell("ready>"), job(&rekindle));
    let mut run = vec!["run", "-t", "--"];
    run.extend(shell.iter().map(String::as_str));
    let mut session = TerminalSession::new(&rekindle, &run);
    session.sees("ready>");
    session.types(&job);
    session.sees("begun\r\n");
    session.types("\x1a");
    session.sees("ready>");
    session.types("jobs\r");
    session.sees("Stopped");
    session.sees("ready>");
    session.types("fg\r");
    session.sees("continued\r\n");
    session.types("\x03");
    session.sees("ready>");
    session.types("echo code $?\r");
    session.sees("code 130\r\n");
    session.types("exit 3\r");
    assert_eq!(session.code(), Some(3));
}

#[test]
fn users_come_and_go_and_the_program_goes_on() {
    let rekindle = Rekindle::new();
    assert_eq!(rekindle.ok(&["run", "-dt", "--name", "t", "--", "python3", "-c", WITNESS]), "t\n");
    wait("its first words", || rekindle.ok(&["logs", "t"]).contains("size 24x80"));
    let one = TerminalSession::new(&rekindle, &["attach", "t"]);
    one.sees("size 30x90\r\n");
    let mut two = TerminalSession::sized(&rekindle, &["attach", "t"], 31, 91);
    one.sees("size 31x91\r\n");
    two.sees("size 31x91\r\n");
    one.resize(12, 34);
    one.sees("size 12x34\r\n");
    two.sees("size 12x34\r\n");
    two.types("hello\r");
    one.sees("line hello\r\n");
    two.sees("line hello\r\n");
    one.lets_go();

    two.vanish();
    assert_eq!(two.code(), Some(129));
    // The daemon's end is nothing to those who are there.
    let mut three = TerminalSession::new(&rekindle, &["attach", "t"]);
    three.sees("size 30x90\r\n");
    rekindle.kill_daemon();
    three.types("two\r");
    three.sees("line two\r\n");
    kill(three.child.id() as i32, libc::SIGTERM);
    assert_eq!(three.code(), Some(143));
    assert!(three.is_cooked());

    let mut last = TerminalSession::new(&rekindle, &["attach", "t"]);
    last.resize(5, 6);
    last.sees("size 5x6\r\n");
    last.types("three\r");
    last.sees("line three\r\n");
    assert_eq!(last.code(), Some(7));
    assert!(refused(&rekindle, &["attach", "t"]).contains("not running"));
}

#[test]
fn a_terminal_comes_back_with_its_settings_and_its_jobs() {
    let rekindle = Rekindle::new();
    let (shell, job) = (shell("ready>"), job(&rekindle));
    let mut run = vec!["run", "-it", "--name", "t", "--"];
    run.extend(shell.iter().map(String::as_str));
    let mut session = TerminalSession::new(&rekindle, &run);
    session.resize(44, 55);
    session.sees("ready>");
    // The erase key says that settings come along, and that the shell has others than the kernel's.
    session.types("stty erase '^A' -echoctl; trap 'echo hung up' HUP\r");
    session.sees("ready>");
    session.types(&job);
    session.sees("begun\r\n");
    rekindle.ok(&["checkpoint", "t", "--to", "first", "--leave-running"]);
    session.types("\x03");
    session.sees("ready>");
    session.types(&job);
    session.sees("begun\r\n");
    rekindle.ok(&["checkpoint", "t", "--to", "second", "--stop"]);
    assert_eq!(session.code(), Some(0));
    assert!(session.is_cooked());

    let mut from = "second";
    for name in ["a", "b"] {
        rekindle.ok(&["restore", from, "--name", name, "-d"]);
        // Ours has the size that it had, so that nothing changes but by what comes along.
        let mut session = TerminalSession::new(&rekindle, &["attach", name]);
        wait("the keys to be the program's", || !session.is_cooked());
        session.types("\x03");
        session.sees("ready>");
        session.types("stty -a\r");
        session.sees("rows 30; columns 90;");
        session.sees("erase = ^A;");
        session.sees("-echoctl");
        session.sees("ready>");
        session.types("echo con''trolled >/dev/tty\r");
        session.sees("controlled\r\n");
        session.types(&job);
        session.sees("begun\r\n");
        if name == "a" {
            session.lets_go();
            rekindle.ok(&["checkpoint", "a", "--to", "third", "--stop"]);
            from = "third";
        } else {
            session.types("\x1a");
            session.sees("ready>");
            session.types("fg\r");
            session.sees("continued\r\n");
            session.types("\x03");
            session.sees("ready>");
            session.types("exit 9\r");
            assert_eq!(session.code(), Some(9), "{}", session.seen());
            assert!(!rekindle.ok(&["logs", "b"]).contains("hung up"));
        }
    }
    // Nobody comes to this one, whose size is what it was.
    rekindle.ok(&["restore", "first", "--name", "c", "-d"]);
    let tell = "import os; print(*os.get_terminal_size(os.open('/proc/1000/fd/0', os.O_RDWR | os.O_NOCTTY)))";
    assert_eq!(rekindle.ok(&["exec", "c", "--", "python3", "-c", tell]), "55 44\n");
    rekindle.assert_tidy();
}

#[test]
fn a_program_from_elsewhere_keeps_having_a_terminal() {
    let rekindle = Rekindle::new();
    let job = job(&rekindle);
    let mut command = Command::new("sh");
    command.env("PS1", "ready>").env_remove("ENV");
    let mut outside = TerminalSession::of(command, 30, 90);
    outside.sees("ready>");
    outside.types("word=kept\r");
    outside.sees("ready>");
    let pid = outside.child.id().to_string();
    rekindle.ok(&["checkpoint", "--pid", &pid, "--to", "image", "--stop"]);
    outside.end();
    rekindle.ok(&["restore", "image", "--name", "t", "-d"]);
    let mut session = TerminalSession::new(&rekindle, &["attach", "t"]);
    wait("the keys to be the program's", || !session.is_cooked());
    session.types("echo $word\r");
    session.sees("kept\r\n");
    session.types(&job);
    session.sees("begun\r\n");
    session.types("\x03");
    session.sees("ready>");
    session.lets_go();
}

#[test]
fn a_program_that_is_brought_back_keeps_its_user() {
    let rekindle = Rekindle::new();
    let mark = rekindle.path("mark").display().to_string();
    let script =
        "test -e $0 && { echo second; read line; echo got $line; exit; }; touch $0; echo first; exit 1";
    let run = ["run", "-t", "--name", "t", "--restart", "on-failure", "--", "sh", "-c", script, &mark];
    let mut session = TerminalSession::new(&rekindle, &run);
    session.sees("first\r\n");
    // It may have been there before its user.
    wait("its second run", || rekindle.ok(&["logs", "t"]).contains("second\r\n"));
    session.types("word\r");
    session.sees("got word\r\n");
    assert_eq!(session.code(), Some(0));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let rekindle = Rekindle::new();
    for arguments in [&["run", "-it", "--", "true"][..], &["attach", "t"]] {
        assert!(rekindle.refused(arguments).contains("standard input is no terminal"));
    }
    assert!(rekindle.refused(&["run", "-di", "--", "true"]).contains("-t"));
    rekindle.start("plain", &crate::harness::COUNTER);
    assert!(refused(&rekindle, &["attach", "plain"]).contains("has no terminal"));
    assert!(refused(&rekindle, &["attach", "nobody"]).contains("nobody"));
    let missing = TerminalSession::new(&rekindle, &["run", "-t", "--", "no-such-program"]).code();
    assert_eq!(missing, Some(127));
    let run = ["--json", "run", "-dt", "--name", "t", "--", "sleep", "1000"];
    let started: serde_json::Value = serde_json::from_slice(&rekindle.output(&run).stdout).unwrap();
    assert_eq!(started["state"], json!("running"));
}
