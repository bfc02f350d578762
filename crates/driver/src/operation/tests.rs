//! Operations on real processes with a driver that only remembers.

use std::collections::HashMap;
use std::process::{Child, Command};
use std::sync::Mutex;

use super::*;
use crate::journal::tests::PATIENCE;

/// Which call does what in place of working.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Fail,
    /// Says that it worked.
    Lie,
    Hang,
}

#[derive(Default)]
struct Fake {
    states: Mutex<HashMap<i32, State>>,
    faults: Mutex<HashMap<(&'static str, i32), Fault>>,
    used: u64,
}

impl Fake {
    fn step(&self, step: &'static str, pid: i32, to: State) -> Result<()> {
        let fault = self.faults.lock().unwrap().remove(&(step, pid));
        match fault {
            None => {
                self.states.lock().unwrap().insert(pid, to);
                Ok(())
            }
            Some(Fault::Lie) => Ok(()),
            Some(Fault::Fail) => Err(Error::Step { step, pid, reason: "as asked".into() }),
            Some(Fault::Hang) => loop {
                std::thread::park();
            },
        }
    }
}

impl Driver for Fake {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        Ok(vec![Gpu {
            model: "GPU".into(),
            uuid: "GPU-1".into(),
            memory_bytes: 1,
            free_bytes: None,
            used_bytes: 0,
            driver_version: "1".into(),
        }])
    }

    fn state(&self, pid: i32) -> Option<State> {
        self.states.lock().unwrap().get(&pid).copied()
    }

    fn lock(&self, pid: i32, _: Duration) -> Result<()> {
        self.step("lock", pid, State::Locked)
    }

    fn checkpoint(&self, pid: i32) -> Result<()> {
        self.step("checkpoint", pid, State::Checkpointed)
    }

    fn restore(&self, pid: i32, _: &[UuidPair]) -> Result<()> {
        self.step("restore", pid, State::Locked)
    }

    fn unlock(&self, pid: i32) -> Result<()> {
        self.step("unlock", pid, State::Running)
    }

    fn usage(&self) -> Vec<(String, i32, u64)> {
        self.states.lock().unwrap().keys().map(|pid| ("GPU-1".to_string(), *pid, self.used)).collect()
    }
}

const LIMITS: Limits = Limits { lock: PATIENCE, step: PATIENCE };
/// For steps of which one hangs: the others must be done by then on a busy machine.
const SHORT: Duration = Duration::from_secs(5);

/// Two sleeping processes that the driver knows.
struct Fixture {
    directory: tempfile::TempDir,
    children: Vec<Child>,
    fake: Arc<Fake>,
    driver: Arc<dyn Driver>,
}

impl Fixture {
    fn new() -> Fixture {
        let children: Vec<_> = (0..2).map(|_| Command::new("sleep").arg("60").spawn().unwrap()).collect();
        let states = children.iter().map(|child| (child.id() as i32, State::Running)).collect();
        let fake = Arc::new(Fake { states: Mutex::new(states), ..Fake::default() });
        Fixture { directory: tempfile::tempdir().unwrap(), children, driver: fake.clone(), fake }
    }

    fn pids(&self) -> Vec<i32> {
        self.children.iter().map(|child| child.id() as i32).collect()
    }

    fn operation(&self) -> Operation {
        let processes = self.pids().into_iter().filter_map(Process::find).collect();
        let journal = Journal::begin(self.directory.path(), "a", processes, Vec::new()).unwrap();
        Operation {
            driver: self.driver.clone(),
            journal,
            limits: LIMITS,
            began: Instant::now(),
            phases: Vec::new(),
        }
    }

    fn is(&self, state: State) -> bool {
        self.pids().into_iter().all(|pid| self.driver.state(pid) == Some(state))
    }

    fn journals(&self) -> usize {
        Journal::all(self.directory.path()).len()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn all_are_held_and_released() {
    let scene = Fixture::new();
    let mut operation = scene.operation();
    operation.take(-1, 0).unwrap();
    assert!(scene.is(State::Checkpointed));
    assert_eq!(operation.journal.entry.step, Step::Held);
    let phases = operation.release().unwrap();
    assert!(scene.is(State::Running));
    assert_eq!(
        phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(),
        ["lock", "checkpoint", "restore", "unlock"]
    );
    assert_eq!(scene.journals(), 0);
}

#[test]
fn a_step_that_fails_or_lies_on_one_brings_all_back() {
    for step in ["lock", "checkpoint", "restore", "unlock"] {
        for fault in [Fault::Fail, Fault::Lie] {
            let scene = Fixture::new();
            scene.fake.faults.lock().unwrap().insert((step, scene.pids()[1]), fault);
            let mut operation = scene.operation();
            match operation.take(-1, 0) {
                Ok(_) => drop(operation.release().unwrap()),
                Err(_) => operation.undo().unwrap(),
            }
            assert!(scene.is(State::Running), "{step}");
            assert_eq!(scene.journals(), 0);
        }
    }
}

#[test]
fn a_step_that_hangs_is_left_to_the_next_helper() {
    let hangs = |step: &'static str| {
        let scene = Fixture::new();
        scene.fake.faults.lock().unwrap().insert((step, scene.pids()[0]), Fault::Hang);
        let mut operation = scene.operation();
        operation.limits = Limits { lock: Duration::ZERO, step: SHORT };
        let took = operation.take(-1, 0);
        let hung = match took {
            Ok(_) => operation.release().unwrap_err(),
            Err(error) => {
                drop(operation);
                error
            }
        };
        assert!(matches!(hung, Error::Hung { .. }), "{step}: {hung}");
        assert_eq!(scene.journals(), 1);
        let journal = Journal::take_over(scene.directory.path(), "a", PATIENCE).unwrap().unwrap();
        Operation::recover(&scene.driver, journal, LIMITS).unwrap();
        assert!(scene.is(State::Running), "{step}");
        assert_eq!(scene.journals(), 0);
    };
    std::thread::scope(|scope| {
        for step in ["lock", "checkpoint", "restore", "unlock"] {
            scope.spawn(move || hangs(step));
        }
    });
}

#[test]
fn what_is_left_is_brought_back_and_told() {
    let scene = Fixture::new();
    let mut operation = scene.operation();
    operation.take(-1, 0).unwrap();
    drop(operation);
    scene.fake.faults.lock().unwrap().insert(("restore", scene.pids()[0]), Fault::Fail);
    let journal = Journal::take_over(scene.directory.path(), "a", PATIENCE).unwrap().unwrap();
    let notes = Operation::recover(&scene.driver, journal, LIMITS).unwrap();
    assert!(notes.len() == 2 && notes[0].contains("left checkpointed"), "{notes:?}");
    assert!(scene.is(State::Running));
}

#[test]
fn what_cannot_be_brought_back_stays_in_the_journal() {
    let scene = Fixture::new();
    let operation = scene.operation();
    let pid = scene.pids()[0];
    scene.fake.states.lock().unwrap().insert(pid, State::Failed);
    let error = operation.undo().unwrap_err().to_string();
    assert!(error.contains(&pid.to_string()) && error.contains("failed"), "{error}");
    assert_eq!(scene.journals(), 1);
}

#[test]
fn a_process_whose_gpu_half_is_missing_is_not_restored() {
    let scene = Fixture::new();
    let pids = scene.pids();
    scene.fake.states.lock().unwrap().insert(pids[0], State::Checkpointed);
    scene.fake.states.lock().unwrap().remove(&pids[1]);
    let restored = Operation::restore(&scene.driver, scene.directory.path(), "a", &pids, Vec::new(), LIMITS);
    assert!(restored.unwrap_err().to_string().contains("did not come back"));
    scene.fake.states.lock().unwrap().insert(pids[1], State::Checkpointed);
    Operation::restore(&scene.driver, scene.directory.path(), "a", &pids, Vec::new(), LIMITS).unwrap();
    assert!(scene.is(State::Running));
}

#[test]
fn memory_that_the_host_lacks_is_asked_for_first() {
    let gpu = |used_bytes| Gpu { used_bytes, ..Fake::default().gpus().unwrap().remove(0) };
    assert!(check_host_memory(&[gpu(1)]).is_ok());
    let error = check_host_memory(&[gpu(1 << 50), gpu(1 << 50)]).unwrap_err().to_string();
    assert!(error.contains("2147483648 MB"), "{error}");
}
