//! Workflows: steps that are calls of services' functions, each with the results of steps before it.

use serde::{Deserialize, Serialize};

/// Steps in their order. The one whose result no other takes gives the workflow's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// The app whose deployment it belongs to, if it is one's.
    #[serde(default)]
    pub app: Option<String>,
    pub steps: Vec<Step>,
    /// From so many bytes on an array on a GPU goes from step to step by reference.
    pub least: u64,
    /// How long such an array waits for who takes it, should that one fail: milliseconds.
    pub expiry_ms: u64,
    /// How long all of it may take: milliseconds.
    pub timeout_ms: u64,
    /// How many requests it has at once; further ones are refused.
    pub most: u32,
}

/// One call, or one for each element of lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// By which sentences and spans tell it from the others.
    pub name: String,
    pub service: String,
    /// Whose service that is; none: nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What of the service's is called.
    pub method: String,
    /// The steps whose results it has, by their places; with none it has the workflow's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<usize>,
    /// Those results are lists, of whose elements it has one each in a call of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each: bool,
    #[serde(default)]
    pub retries: Retries,
    /// Which objects its calls have in place of declared data, as requests name them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// How often a call that failed is made again, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retries {
    pub max: u32,
    pub initial_ms: u64,
    pub backoff: f64,
    pub longest_ms: u64,
}

/// The most steps of a workflow.
pub const STEPS: usize = 1000;
/// The longest name of a step, bytes.
pub const LONGEST_NAME: usize = 128;

/// What of a graph cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("it has {0} steps; give 1 to {STEPS}")]
    Count(usize),
    #[error(
        "the step {step:?} comes after step {after}, which is not before it; give places of earlier steps"
    )]
    Order { step: String, after: usize },
    #[error("the step {0:?} is one call for each element, of nothing; say after which steps it comes")]
    EachOfNothing(String),
    #[error("the step {0:?} calls no method of a service; give both by their names, without `/`")]
    NoFunction(String),
    #[error("a step is named {0:?}; give a name of 1 to {LONGEST_NAME} bytes")]
    Name(String),
    #[error("the results of the steps {0:?} are taken by none; give one step that joins them")]
    Ends(Vec<String>),
    #[error(
        "nothing can be done in {timeout_ms} ms, or for {most} requests at once; give at least 1 of both"
    )]
    Nothing { timeout_ms: u64, most: u32 },
    #[error(
        "the step {step:?} is called again after {backoff} times as long; give a number that is at least 1"
    )]
    Backoff { step: String, backoff: String },
}

impl Graph {
    pub fn check(&self) -> Result<(), GraphError> {
        if self.steps.is_empty() || self.steps.len() > STEPS {
            return Err(GraphError::Count(self.steps.len()));
        }
        if self.timeout_ms == 0 || self.most == 0 {
            return Err(GraphError::Nothing { timeout_ms: self.timeout_ms, most: self.most });
        }
        for (place, step) in self.steps.iter().enumerate() {
            step.check(place)?;
        }
        let ends: Vec<String> = (0..self.steps.len())
            .filter(|place| self.uses(*place) == 0)
            .map(|place| self.steps[place].name.clone())
            .collect();
        if ends.len() == 1 { Ok(()) } else { Err(GraphError::Ends(ends)) }
    }

    /// How many times the result of a step is taken.
    pub fn uses(&self, place: usize) -> usize {
        self.steps.iter().map(|step| step.after.iter().filter(|before| **before == place).count()).sum()
    }
}

impl Step {
    fn check(&self, place: usize) -> Result<(), GraphError> {
        let name = self.name.clone();
        let is_word =
            |word: &str| !word.is_empty() && !word.contains(|c: char| c == '/' || !c.is_ascii_graphic());
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(GraphError::Name(name));
        }
        if let Some(after) = self.after.iter().find(|after| **after >= place) {
            return Err(GraphError::Order { step: name, after: *after });
        }
        if self.each && self.after.is_empty() {
            return Err(GraphError::EachOfNothing(name));
        }
        if !is_word(&self.service) || !is_word(&self.method) {
            return Err(GraphError::NoFunction(name));
        }
        if self.retries.max > 0 && !(1.0..=f64::MAX).contains(&self.retries.backoff) {
            return Err(GraphError::Backoff { step: name, backoff: self.retries.backoff.to_string() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(after: &[&[usize]]) -> Graph {
        let step = |(place, after): (usize, &&[usize])| Step {
            name: format!("s{place}"),
            service: "app-F".into(),
            tenant: None,
            method: "m".into(),
            after: after.to_vec(),
            each: false,
            retries: Retries::default(),
            data: None,
        };
        let steps = after.iter().enumerate().map(step).collect();
        Graph { app: None, steps, least: 1, expiry_ms: 1, timeout_ms: 1, most: 1 }
    }

    #[test]
    fn steps_come_after_earlier_ones_and_one_is_the_last() {
        assert_eq!(graph(&[&[], &[0], &[0, 0], &[1, 2]]).check(), Ok(()));
        assert_eq!(graph(&[]).check(), Err(GraphError::Count(0)));
        assert_eq!(graph(&[&[0]]).check(), Err(GraphError::Order { step: "s0".into(), after: 0 }));
        assert_eq!(graph(&[&[], &[]]).check(), Err(GraphError::Ends(vec!["s0".into(), "s1".into()])));
        assert_eq!(graph(&[&[], &[0], &[0, 0], &[1, 2]]).uses(0), 3);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let changed = |change: fn(&mut Graph)| {
            let mut graph = graph(&[&[], &[0]]);
            change(&mut graph);
            graph.check().unwrap_err().to_string()
        };
        assert!(changed(|graph| graph.timeout_ms = 0).contains("at least 1"));
        assert!(changed(|graph| graph.steps[0].each = true).contains("each element"));
        assert!(changed(|graph| graph.steps[0].method = "a/b".into()).contains("without `/`"));
        assert!(changed(|graph| graph.steps[1].name = String::new()).contains("named"));
        let endless = Retries { max: 1, backoff: f64::NAN, ..Retries::default() };
        let mut graph = graph(&[&[]]);
        graph.steps[0].retries = endless;
        assert!(graph.check().unwrap_err().to_string().contains("NaN"));
    }
}
