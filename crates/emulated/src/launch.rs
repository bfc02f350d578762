//! Nodes of a graph as tasks, and those of conditional nodes, which become tasks when their turn has come.
//!
//! ```text
//!   before ─▶ branch ┄┄▶ body's tasks ─▶ branch again, or open ┄┄▶ latch ─▶ behind
//! ```

use std::sync::Arc;

use rekindle_device::{Event, Result};

use crate::graph::{Action, Node};
use crate::scheduler::{Batch, NO_TASK, Record, TaskId, TaskWork};
use crate::stream::Streams;
use crate::work::Engine;

// `CUgraphConditionalNodeType`.
const IF: u32 = 0;
const WHILE: u32 = 1;

/// A conditional node whose turn may have come.
#[derive(Clone)]
pub(crate) struct Branch {
    pub handle: u64,
    kind: u32,
    bodies: Arc<[Arc<[Node]>]>,
    pub priority: i32,
    /// What is behind the node waits for it.
    pub latch: TaskId,
}

impl Branch {
    /// What is to be done for a value.
    pub fn body(&self, value: u32) -> Option<Arc<[Node]>> {
        let index = match self.kind {
            IF => usize::from(value == 0),
            WHILE if value == 0 => return None,
            WHILE => 0,
            _ => value as usize,
        };
        self.bodies.get(index).cloned()
    }

    pub fn repeats(&self) -> bool {
        self.kind == WHILE
    }
}

pub(crate) fn note_record(streams: &mut Streams, event: Event, task: TaskId, record: Record) -> Result<()> {
    let state = streams.event_mut(event)?;
    (state.task, state.record, state.captured) = (task, Some(record), None);
    Ok(())
}

/// Adds nodes between a task that starts them and one that ends them, and answers the latter. Without streams they are those of
/// a body, of which none has an event.
pub(crate) fn launch_nodes(
    streams: &mut Option<&mut Streams>,
    batch: &mut Batch<'_>,
    nodes: &[Node],
    priority: i32,
    after: &[TaskId],
) -> Result<TaskId> {
    let start = batch.add(TaskWork::Mark(None), Engine::Compute, priority, after);
    let mut tasks: Vec<TaskId> = Vec::with_capacity(nodes.len());
    let mut is_leaf = vec![true; nodes.len()];
    for node in nodes {
        let mut after = vec![start];
        after.extend(node.after.iter().map(|index| tasks[*index]));
        node.after.iter().for_each(|index| is_leaf[*index] = false);
        let task = match &node.action {
            Action::Op(op) => batch.add(TaskWork::Op(op.clone()), op.engine(), priority, &after),
            Action::Ops(ops) => ops.iter().fold(NO_TASK, |last, op| {
                let own = [last];
                let after: &[TaskId] = if last == NO_TASK { &after } else { &own };
                batch.add(TaskWork::Op(op.clone()), op.engine(), priority, after)
            }),
            Action::Call(call) => {
                let call = Arc::clone(call);
                batch.add(TaskWork::Call(Box::new(move || call())), Engine::Host, priority, &after)
            }
            Action::Empty => batch.add(TaskWork::Mark(None), Engine::Compute, priority, &after),
            Action::Child(child) => launch_nodes(streams, batch, child, priority, &after)?,
            Action::Conditional { handle, kind, bodies, .. } => {
                let latch = batch.add_latch(priority, &[]);
                let (handle, kind, bodies) = (*handle, *kind, Arc::clone(bodies));
                let branch = Branch { handle, kind, bodies, priority, latch };
                batch.add(TaskWork::Branch(branch), Engine::Compute, priority, &after);
                latch
            }
            Action::Wait(event) => {
                if let Some(streams) = streams {
                    after.push(streams.event(*event)?.task);
                    after.sort_unstable();
                    after.dedup();
                }
                batch.add(TaskWork::Mark(None), Engine::Compute, priority, &after)
            }
            Action::Record(event) => {
                let record = Record::default();
                let work = TaskWork::Mark(Some(Arc::clone(&record)));
                let task = batch.add(work, Engine::Compute, priority, &after);
                if let Some(streams) = streams {
                    note_record(streams, *event, task, record)?;
                }
                task
            }
        };
        tasks.push(task);
    }
    let mut leaves: Vec<TaskId> =
        tasks.iter().zip(is_leaf).filter(|(_, leaf)| *leaf).map(|(task, _)| *task).collect();
    leaves.push(start);
    Ok(batch.add(TaskWork::Mark(None), Engine::Compute, priority, &leaves))
}
