//! A program in CRIU's place, with our library, the filter and the tracer, that asks in other orders than CRIU does.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use super::Assist;
use crate::connections;
use crate::conversation::Service;
use crate::process::{Handle, status_field};
use crate::tracer::{Mended, TracerMode};

/// What programs have to say it with: calls by way of our library, and such that go past it.
const PREAMBLE: &str = r#"
import ctypes, mmap, os, signal, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
target, out = int(sys.argv[1]), open(sys.argv[2], "w")
libc.syscall.restype = libc.ptrace.restype = libc.read.restype = ctypes.c_long

def result(done):
    return -ctypes.get_errno() if done == -1 else done

def ptrace(request, thread, address=0, data=0):
    ctypes.set_errno(0)
    return result(libc.ptrace(ctypes.c_int(request), ctypes.c_int(thread), ctypes.c_void_p(address), ctypes.c_void_p(data)))

def kernel(number, *words):
    return result(libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, words)))

SEIZE, INTERRUPT, CONT, DETACH, GETREGS, SETOPTIONS = 0x4206, 0x4207, 7, 17, 12, 0x4200
GETREGSET, SETREGSET, GETSIGMASK, SETSIGMASK = 0x4204, 0x4205, 0x420a, 0x420b

def stand(thread):
    assert ptrace(SEIZE, thread) == 0 and ptrace(INTERRUPT, thread) == 0
    return os.waitpid(thread, 0x40000000)[1]

buffer = ctypes.create_string_buffer(1 << 16)
AT = ctypes.addressof(buffer)

def part(length):
    struct.pack_into("QQ", buffer, 0, AT + 64, length)
    return AT

def say(*words):
    print(*words, file=out, flush=True)

# CRIU does nothing before it is asked for something, and whose the library is is written before that.
shared = mmap.mmap(int(os.environ["REKINDLE_ASSIST"]), 4096)
while struct.unpack_from("I", shared)[0] != os.getpid():
    time.sleep(0.001)
"#;

/// A program to be looked at: what it writes comes for as long as it goes on.
pub struct Subject {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Subject {
    /// One that writes a number every few milliseconds.
    pub fn new() -> Subject {
        Subject::beginning_with("")
    }

    /// One that does something first.
    pub fn beginning_with(code: &str) -> Subject {
        let code = format!(
            "import locale, os, socket, sqlite3, threading, time\n{code}\nwhile True:\n print(1, flush=True)\n time.sleep(0.005)"
        );
        let child = Command::new("python3").args(["-c", &code]).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut subject = Subject { lines: BufReader::new(child.stdout.take().unwrap()), child };
        assert!(subject.writes(), "it has begun");
        subject
    }

    /// One that has begun to, and stands still.
    pub fn stopped() -> Subject {
        Subject::new().stop()
    }

    pub fn stop(self) -> Subject {
        let subject = self;
        Handle::open(subject.pid()).unwrap().signal(libc::SIGSTOP).unwrap();
        while status_field(subject.pid(), "State").is_none_or(|state| !state.starts_with('T')) {
            std::thread::yield_now();
        }
        subject
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn writes(&mut self) -> bool {
        self.lines.read_line(&mut String::new()).is_ok_and(|read| read > 0)
    }

    /// Whether it goes on: more than what it may have written before.
    pub fn goes_on(&mut self) -> bool {
        (0..100).all(|_| self.writes())
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program in CRIU's place has said about processes that were described to it, and how its tracer has left the first.
pub fn run(code: &str, subjects: &[&Subject]) -> (Vec<String>, Mended) {
    let assist = Arc::new(Assist::new(true).unwrap());
    let pids: Vec<i32> = subjects.iter().map(|subject| subject.pid()).collect();
    assist.describe(pids.clone());
    assist.look_at_links();
    assist.look_at_pages();
    assist.processors_are_noted();
    assist.sockets_are_known(connections::find(&pids).all_listen);
    let said = tempfile::NamedTempFile::new().unwrap();
    let code = format!("{PREAMBLE}\nothers = {:?}\n{code}\nsay('done')\n", &pids[1..]);
    let command =
        ["python3".into(), "-c".into(), code.into(), pids[0].to_string().into(), said.path().into()];
    let tracer = TracerMode::Here { hides_unwritten: true, assist: Some(assist.clone()), processor: None };
    let mut service = Service::spawn(&command, &[], Some(tracer), Some(&*assist)).unwrap();
    let mended = service.wait();
    let lines = std::fs::read_to_string(said.path()).unwrap();
    (lines.lines().map(str::to_string).collect(), mended)
}
