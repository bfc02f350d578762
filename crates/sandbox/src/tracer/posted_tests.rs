//! What CRIU has left with the tracer, and was told to be done, and that then cannot be done.

use crate::assist::fake_criu::{Subject, run};

const EINVAL: i32 = -libc::EINVAL;
const ESRCH: i32 = -libc::ESRCH;

#[test]
fn a_request_that_fails_after_its_answer_is_told_of_by_the_next_one_for_that_thread_alone() {
    let (mut subject, mut other) = (Subject::new(), Subject::new());
    let code = r#"
stand(target), stand(others[0])
length = ptrace(GETREGSET, target, 1, part(512)) or struct.unpack_from("Q", buffer, 8)[0]
say(ptrace(SETREGSET, target, 0x7777, part(length)))
say(ptrace(GETREGS, others[0], 0, AT + 64), ptrace(GETREGS, target, 0, AT + 64), ptrace(GETREGS, target, 0, AT + 64))
say(ptrace(SETSIGMASK, target, 4, AT), ptrace(DETACH, target), ptrace(DETACH, others[0]))
"#;
    let (said, mended) = run(code, &[&subject, &other]);
    assert_eq!(said, ["0", &format!("0 {EINVAL} 0"), &format!("0 {EINVAL} 0"), "done"]);
    // The one that CRIU could not let go of was given back what it was about to do.
    assert_eq!((mended.processes, mended.failed), (vec![subject.pid()], None));
    assert!(subject.goes_on() && other.goes_on());
}

#[test]
fn what_is_left_for_a_thread_that_has_ended_ends_nobody_else() {
    let (subject, mut other) = (Subject::new(), Subject::new());
    let code = r#"
stand(target), stand(others[0])
length = ptrace(GETREGSET, target, 1, part(512)) or struct.unpack_from("Q", buffer, 8)[0]
say(ptrace(SETREGSET, target, 1, part(length)))
os.kill(target, signal.SIGKILL)
while open(f"/proc/{target}/stat").read().rsplit(")")[1].split()[0] not in "ZX":
    pass
say(ptrace(SETSIGMASK, target, 8, AT), ptrace(GETREGS, target, 0, AT + 64))
say(os.waitpid(target, 0x40000000)[1])
say(ptrace(INTERRUPT, target), ptrace(GETREGS, target, 0, AT + 64))
say(ptrace(GETREGS, others[0], 0, AT + 64), ptrace(DETACH, others[0]))
"#;
    let (said, mended) = run(code, &[&subject, &other]);
    assert_eq!(said, ["0", &format!("0 {ESRCH}"), "9", &format!("0 {ESRCH}"), "0 0", "done"]);
    assert_eq!((mended.processes, mended.failed), (vec![], None));
    assert!(other.goes_on());
}

#[test]
fn what_a_criu_that_is_killed_has_left_is_not_done() {
    let mut subject = Subject::new();
    let code = r#"
stand(target)
length = ptrace(GETREGSET, target, 1, part(512)) or struct.unpack_from("Q", buffer, 8)[0]
ctypes.memset(AT + 64, 0, length)
say(ptrace(SETREGSET, target, 1, part(length)))
os.kill(os.getpid(), signal.SIGKILL)
"#;
    let (said, mended) = run(code, &[&subject]);
    assert_eq!((said, mended.failed), (vec!["0".to_string()], None));
    assert!(subject.goes_on());
}

#[test]
fn more_than_there_is_room_for_is_done_in_its_order() {
    let mut subject = Subject::new();
    let code = r#"
stand(target)
ptrace(GETSIGMASK, target, 8, AT)
mask = buffer.raw[:8]
for number in range(1, 50):
    struct.pack_into("Q", buffer, 0, number << 40)
    assert ptrace(SETSIGMASK, target, 8, AT) == 0
    assert number % 7 or ptrace(GETSIGMASK, target, 8, AT) == 0 and buffer.raw[:8] == struct.pack("Q", number << 40)
# As many as there are: with tiles (AMX) some 11,000 bytes.
registers = 1 << 14
assert ptrace(GETREGSET, target, 0x202, part(registers)) == 0
registers = struct.unpack_from("Q", buffer, 8)[0]
for _ in range(200000 // registers):
    assert ptrace(SETREGSET, target, 0x202, part(registers)) == 0
say(ptrace(GETSIGMASK, target, 8, AT), buffer.raw[:8] == struct.pack("Q", 49 << 40))
buffer[:8] = mask
say(ptrace(SETSIGMASK, target, 8, AT), ptrace(DETACH, target))
"#;
    let (said, mended) = run(code, &[&subject]);
    assert_eq!(said, ["0 True", "0 0", "done"]);
    assert_eq!((mended.processes, mended.failed), (vec![], None));
    assert!(subject.goes_on());
}
