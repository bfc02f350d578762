//! Threads that come to a stand beside each other, and have one processor with CRIU while it leads them.

use crate::affinity;
use crate::assist::fake_criu::{Subject, run};
use crate::process;

const THREADS: &str = r#"
def one():
    while True:
        time.sleep(0.002)
for _ in range(4):
    threading.Thread(target=one, daemon=True).start()
"#;

const STATES: &str = r#"
threads = sorted(int(name) for name in os.listdir(f"/proc/{target}/task"))
assert len(threads) == 5 and threads[0] == target

def state(thread):
    return open(f"/proc/{target}/task/{thread}/stat").read().rsplit(")")[1].split()[0]

def until(states):
    end = time.monotonic() + 20
    while (now := {state(thread) for thread in threads}) != states:
        assert time.monotonic() < end, now
        time.sleep(0.001)

def leave(thread):
    assert ptrace(DETACH, thread) == 0
"#;

/// Whether all threads go on, and nobody traces one.
fn is_free(subject: &mut Subject) -> bool {
    let tracers = process::threads(subject.pid());
    subject.goes_on()
        && tracers
            .into_iter()
            .all(|thread| process::status_field(thread, "TracerPid").as_deref() == Some("0"))
}

#[test]
fn all_threads_of_a_process_stand_once_one_is_asked_for_and_each_is_told_of_when_it_is() {
    let mut subject = Subject::beginning_with(THREADS);
    let code = r#"
statuses = [stand(target)]
until({"t"})
# Nobody is told of a thread that was not asked for.
assert ptrace(GETREGS, threads[1], 0, AT) == -3
say("all stand")
statuses += map(stand, threads[1:])
say({hex(status) for status in statuses})
# One that goes on does not stand again by itself.
assert ptrace(CONT, threads[2]) == 0
time.sleep(0.05)
say(state(threads[2]), os.waitpid(threads[2], 0x40000001)[0])
assert ptrace(INTERRUPT, threads[2]) == 0
say(hex(os.waitpid(threads[2], 0x40000000)[1]))
for thread in threads:
    leave(thread)
"#;
    let (said, mended) = run(&format!("{STATES}\n{code}"), &[&subject]);
    assert_eq!(said, ["all stand", "{'0x80057f'}", "S 0", "0x80057f", "done"]);
    assert_eq!((mended.processes, mended.failed), (vec![], None));
    assert!(is_free(&mut subject));
}

#[test]
fn threads_that_stand_go_on_where_nobody_asks_for_them() {
    let (mut one, mut other) = (Subject::beginning_with(THREADS), Subject::beginning_with(THREADS));
    let code = r#"
stand(target)
until({"t"})
stand(others[0])
leave(target)
os.kill(os.getpid(), signal.SIGKILL)
"#;
    let (_, mended) = run(&format!("{STATES}\n{code}"), &[&one, &other]);
    assert_eq!((mended.processes, mended.failed), (vec![], None));
    assert!(is_free(&mut one) && is_free(&mut other));
}

#[test]
fn a_thread_has_one_processor_with_criu_while_it_goes_on_and_its_own_again_when_it_stands() {
    let mut subject = Subject::beginning_with(&format!(
        "{THREADS}\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    ));
    let all = affinity::of(affinity::OWN);
    let code = r#"
for thread in threads:
    stand(thread)
had = [os.sched_getaffinity(thread) for thread in threads]
assert len(had[0]) == 1 and all(processors == os.sched_getaffinity(0) for processors in had[1:]), had
for thread in threads:
    assert ptrace(CONT, thread) == 0
    (one,) = os.sched_getaffinity(0)
    assert os.sched_getaffinity(thread) == {one}
    assert ptrace(INTERRUPT, thread) == 0
    os.waitpid(thread, 0x40000000)
    assert os.sched_getaffinity(thread) == had[threads.index(thread)]
for thread in threads[:3]:
    leave(thread)
# One that is changed and goes on when CRIU ends.
length = ptrace(GETREGSET, threads[3], 1, part(512)) or struct.unpack_from("Q", buffer, 8)[0]
assert ptrace(SETREGSET, threads[3], 1, part(length)) == 0
assert ptrace(CONT, threads[3]) == 0 and ptrace(CONT, threads[4]) == 0
say("goes on")
os.kill(os.getpid(), signal.SIGKILL)
"#;
    let (said, mended) = run(&format!("{STATES}\n{code}"), &[&subject]);
    assert_eq!((said, mended.failed), (vec!["goes on".to_string()], None));
    assert!(is_free(&mut subject));
    let threads = process::threads(subject.pid());
    let others = threads.iter().filter(|thread| **thread != subject.pid());
    assert!(
        others.clone().count() == 4 && others.into_iter().all(|thread| affinity::of(*thread) == all),
        "{threads:?}"
    );
}
