//! One request's way through the graph.

use std::sync::Arc;

use bytes::Bytes;
use rekindle_protocol::workflow::{Graph, Step};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Workflow;
use super::arguments::{Request, StepArrays, Values};
use super::call::{Origin, call, value};
use super::failure::Failure;
use super::given::GivenArrays;
use super::packed::{Packed, Writer};
use crate::limits;

/// What the steps of a request have in common.
pub struct Run {
    pub workflow: Arc<Workflow>,
    pub graph: Arc<Graph>,
    pub request: Request,
    pub origin: Origin,
    /// What its steps have put for each other so far.
    pub given: GivenArrays,
}

/// What a step has come to.
enum Outcome {
    /// Its function's message.
    Message(Bytes),
    /// What all of its calls have returned.
    List(Packed),
}

/// The message of the last step's function. Its steps end with it: those that are under way as their clients going away would
/// end them.
pub async fn run(run: Arc<Run>) -> Result<Bytes, Failure> {
    let steps = &run.graph.steps;
    let mut results: Vec<Option<Packed>> = vec![None; steps.len()];
    let mut takers: Vec<usize> = (0..steps.len()).map(|place| run.graph.uses(place)).collect();
    let mut under_way = JoinSet::new();
    let begin = |place: usize, given: Vec<Packed>, under_way: &mut JoinSet<_>| {
        let run = run.clone();
        under_way.spawn(async move { (place, run.step(place, given).await) });
    };
    for place in (0..steps.len()).filter(|place| steps[*place].after.is_empty()) {
        begin(place, Vec::new(), &mut under_way);
    }
    while let Some(ended) = under_way.join_next().await {
        let Ok((ended, outcome)) = ended else { return Err(Failure::Ended) };
        let (outcome, step) = (outcome?, &steps[ended]);
        if run.graph.uses(ended) == 0 {
            let message = outcome.message(step)?;
            run.given.are_taken();
            return Ok(message);
        }
        results[ended] = Some(outcome.value(step)?);
        let is_due = |step: &Step| {
            step.after.contains(&ended) && step.after.iter().all(|before| results[*before].is_some())
        };
        let due: Vec<usize> = (0..steps.len()).filter(|place| is_due(&steps[*place])).collect();
        for place in due {
            let given = steps[place].after.iter().filter_map(|before| results[*before].clone()).collect();
            for before in &steps[place].after {
                takers[*before] -= 1;
            }
            begin(place, given, &mut under_way);
        }
        // What nobody takes any more is kept no longer.
        for (result, _) in results.iter_mut().zip(&takers).filter(|(_, takers)| **takers == 0) {
            *result = result.take().map(|_| Packed::default());
        }
    }
    // A graph has a last step, which each other one leads to.
    Err(Failure::Ended)
}

impl Outcome {
    fn message(self, step: &Step) -> Result<Bytes, Failure> {
        let write = |list: &Packed| {
            let mut writer = Writer::default();
            writer.value(list)?;
            Ok(writer.message()?.whole())
        };
        match self {
            Outcome::Message(message) => Ok(message),
            Outcome::List(list) => {
                write(&list).map_err(|source| Failure::NotUnderstood { step: step.name.clone(), source })
            }
        }
    }

    fn value(self, step: &Step) -> Result<Packed, Failure> {
        match self {
            Outcome::Message(message) => value(step, &message),
            Outcome::List(list) => Ok(list),
        }
    }
}

impl Run {
    async fn step(self: &Arc<Run>, place: usize, given: Vec<Packed>) -> Result<Outcome, Failure> {
        let step = &self.graph.steps[place];
        match (step.each, step.after.is_empty()) {
            (true, _) => self.each(place, &given).await.map(Outcome::List),
            (false, true) => self.call(place, Values::Own).await.map(Outcome::Message),
            (false, false) => self.call(place, Values::Results(&given)).await.map(Outcome::Message),
        }
    }

    async fn call(&self, place: usize, values: Values<'_>) -> Result<Bytes, Failure> {
        let Graph { steps, least, expiry_ms, .. } = &*self.graph;
        let uses = self.graph.uses(place) as u64;
        let arrays = StepArrays { least: *least, uses, expiry_s: *expiry_ms as f64 / 1000.0 };
        let step = (&steps[place], arrays);
        call(&self.workflow, step, (&self.request, values), (&self.origin, &self.given)).await
    }

    /// A call for each element, several at once; a list of their results, in the elements' order.
    async fn each(self: &Arc<Run>, place: usize, lists: &[Packed]) -> Result<Packed, Failure> {
        let step = &self.graph.steps[place];
        let no_list = |what| Failure::NoList { step: step.name.clone(), what };
        let lists = lists.iter().map(Packed::elements).collect::<Result<Vec<_>, _>>().map_err(no_list)?;
        let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
        let count = lengths.first().copied().unwrap_or_default();
        if lengths.iter().any(|length| *length != count) {
            return Err(Failure::Lengths { step: step.name.clone(), lengths });
        }
        let window = Arc::new(Semaphore::new(limits::WINDOW));
        let mut under_way = JoinSet::new();
        for number in 0..count {
            let given: Vec<Packed> = lists.iter().map(|list| list[number].clone()).collect();
            let (run, window) = (self.clone(), window.clone());
            under_way.spawn(async move {
                let _place = window.acquire().await;
                let message = run.call(place, Values::Results(&given)).await?;
                Ok((number, value(&run.graph.steps[place], &message)?))
            });
        }
        let mut results = vec![None; count];
        while let Some(ended) = under_way.join_next().await {
            let (number, result) = ended.map_err(|_| Failure::Ended)??;
            results[number] = Some(result);
        }
        let unsendable = |source| Failure::Unsendable { step: step.name.clone(), source };
        let mut writer = Writer::default();
        writer.list(count).map_err(unsendable)?;
        results.iter().flatten().try_for_each(|one| writer.value(one)).map_err(unsendable)?;
        Ok(writer.packed())
    }
}
