//! Stream capture: work that goes into a graph instead of onto the device.

use std::collections::HashMap;

use rekindle_cuda::{
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_MERGE,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CuResult,
};
use rekindle_device::{Result, Stream};

use crate::graph::{Action, Node};

pub(crate) type CaptureId = u64;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

pub(crate) struct CaptureState {
    mode: u32,
    /// Where it began, and must end.
    origin: Stream,
    valid: bool,
    nodes: Vec<Node>,
    /// What the next node of each stream comes after.
    ends: HashMap<u64, Vec<usize>>,
}

#[derive(Default)]
pub(crate) struct Captures {
    open: HashMap<CaptureId, CaptureState>,
    next: CaptureId,
}

impl Captures {
    pub fn begin(&mut self, origin: Stream, mode: u32) -> CaptureId {
        self.next += 1;
        let ends = HashMap::from([(origin.0, Vec::new())]);
        self.open.insert(self.next, CaptureState { mode, origin, valid: true, nodes: Vec::new(), ends });
        self.next
    }

    pub fn is_open(&self, id: CaptureId) -> bool {
        self.open.contains_key(&id)
    }

    pub fn is_valid(&self, id: CaptureId) -> bool {
        self.open.get(&id).is_some_and(|capture| capture.valid)
    }

    /// Ends the usefulness of a capture, and answers why.
    pub fn invalidate(&mut self, id: CaptureId, why: CuResult) -> CuResult {
        if let Some(capture) = self.open.get_mut(&id) {
            capture.valid = false;
        }
        why
    }

    /// Invalidates every capture that does not allow unsafe calls; whether there is any capture at all.
    pub fn unsafe_call(&mut self) -> bool {
        for capture in self.open.values_mut().filter(|capture| capture.mode != RELAXED) {
            capture.valid = false;
        }
        !self.open.is_empty()
    }

    /// Puts work of a captured stream into the graph.
    pub fn add(&mut self, id: CaptureId, stream: Stream, action: Action) -> Result<()> {
        let capture = self.valid(id)?;
        let index = capture.nodes.len();
        let after = capture.ends.insert(stream.0, vec![index]).unwrap_or_default();
        capture.nodes.push(Node { action, after });
        Ok(())
    }

    /// The nodes that an event recorded in a stream comes after.
    pub fn ends(&mut self, id: CaptureId, stream: Stream) -> Result<Vec<usize>> {
        Ok(self.valid(id)?.ends.get(&stream.0).cloned().unwrap_or_default())
    }

    /// Makes a stream wait for an event of the same capture; a stream that was not captured joins by it.
    pub fn join(&mut self, id: CaptureId, stream: Stream, nodes: &[usize]) -> Result<()> {
        let capture = self.valid(id)?;
        let ends = capture.ends.entry(stream.0).or_default();
        ends.extend(nodes);
        ends.sort_unstable();
        ends.dedup();
        Ok(())
    }

    /// A stream waits for an event of another capture: neither can be a graph of its own any more.
    pub fn merge(&mut self, id: CaptureId, other: CaptureId) -> CuResult {
        self.invalidate(id, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        self.invalidate(other, CUDA_ERROR_STREAM_CAPTURE_MERGE)
    }

    /// A captured stream is gone.
    pub fn forget(&mut self, id: CaptureId, stream: Stream) {
        if let Some(capture) = self.open.get_mut(&id) {
            capture.valid = false;
            if capture.origin == stream {
                self.open.remove(&id);
            }
        }
    }

    pub fn end(&mut self, id: CaptureId, stream: Stream) -> Result<Vec<Node>> {
        match self.open.get(&id) {
            None => return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            Some(capture) if capture.origin != stream => {
                return Err(self.invalidate(id, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
            }
            Some(_) => {}
        }
        let Some(capture) = self.open.remove(&id).filter(|capture| capture.valid) else {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        let ends = capture.ends.get(&stream.0).cloned().unwrap_or_default();
        let joined = reachable(&capture.nodes, ends);
        match joined.iter().all(|joined| *joined) {
            true => Ok(capture.nodes),
            false => Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
        }
    }

    fn valid(&mut self, id: CaptureId) -> Result<&mut CaptureState> {
        self.open.get_mut(&id).filter(|capture| capture.valid).ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    }
}

/// Which nodes are among `open` or before one of them.
fn reachable(nodes: &[Node], mut open: Vec<usize>) -> Vec<bool> {
    let mut found = vec![false; nodes.len()];
    while let Some(index) = open.pop() {
        if !std::mem::replace(&mut found[index], true) {
            open.extend(&nodes[index].after);
        }
    }
    found
}
