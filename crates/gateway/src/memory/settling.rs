//! What comes between somebody's look at all services and what that has done.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rekindle_protocol::data::Problem;

use crate::plan::{MemoryNeed, Plan, Source};
use crate::policy::Stage;
use crate::{Failure, Gateway, Instance, Maker};

/// Whose instances never start: that they were to is enough.
struct Nobody;

impl Maker for Nobody {
    fn start(&self, _: &Source, _: &str) -> Result<Arc<dyn Instance>, Failure> {
        loop {
            std::thread::park();
        }
    }

    fn fetch_data(&self, _: &str) -> Option<Problem> {
        None
    }

    fn locate(&self, _: &[String]) -> Option<String> {
        None
    }

    fn drop_arrays(&self, _: &Source, _: &[String]) {}
}

#[test]
fn a_service_that_comes_after_the_look_hears_of_what_its_instance_is_granted() -> io::Result<()> {
    let gateway = Gateway::new(1, Some(100));
    let (memory, now) = (gateway.memory(), Instant::now());
    let idle = memory.idle(now);
    memory.settling.store(true, Ordering::SeqCst);
    let plan = Plan { min: 1, max: 1, ..Plan::default() };
    let need = MemoryNeed { gpu: "emulated".into(), program: 60, ..MemoryNeed::default() };
    let source = Source { image: "i".into(), id: "i".into(), need, ..Source::default() };
    let service = gateway.make(("late", "late-"), None, plan, Some(source), Arc::new(Nobody))?;
    gateway.add(&service, None);
    let stages = || -> Vec<Stage> { service.shown().instances.iter().map(|one| one.stage).collect() };
    assert_eq!(stages(), [Stage::Waiting], "somebody else is to see to it");
    memory.give_out(&idle, now);
    assert_eq!(stages(), [Stage::Starting]);
    Ok(())
}
