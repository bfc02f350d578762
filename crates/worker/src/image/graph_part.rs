//! Graphs and their instances, in a part of their own. Those of an inference server come to tens of megabytes: they are written
//! beside the other work of a stop, and read beside the other work of a restore, which needs them last.
//!
//! ```text
//!   worker-state   all else; in images of earlier versions these too
//!   graphs         postcard encodings of some Graphs each, one behind the other; the attribute `pieces` has their lengths, and
//!                  their version is that of the state
//! ```

use std::iter;

use rekindle_store::{Image, Part, PartKind, Staging};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::beside::Beside;
use super::error::{Error, Result};
use super::state::{ExecState, GraphState, MOST_BYTES};

const PART: &str = "graphs";
const PIECES: &str = "pieces";
/// Instances in a piece.
const AT_ONCE: usize = 64;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Graphs {
    pub graphs: Vec<GraphState>,
    /// Those first that were launched last.
    pub execs: Vec<ExecState>,
}

/// Begins to write them. There is no part where there are none.
pub(super) fn write(staging: &Staging, graphs: Graphs) -> Beside<Option<Part>> {
    let staging = staging.clone();
    Beside::begin(move || {
        if graphs == Graphs::default() {
            return Ok(None);
        }
        rekindle_parallel::give_way(rekindle_parallel::BESIDE_A_PROGRAM);
        let (encoded, lengths) = graphs.encode()?;
        check_size(encoded.len() as u64)?;
        Ok(Some(staging.put(PartKind::WorkerState, PART, json!({ PIECES: lengths }), &encoded)?))
    })
}

/// Begins to read them.
pub(super) fn read(image: &Image) -> Beside<Graphs> {
    let image = image.clone();
    Beside::begin(move || {
        let Some(part) = image.part(PartKind::WorkerState, PART) else { return Ok(Graphs::default()) };
        check_size(part.bytes)?;
        let mut encoded = vec![0; part.bytes as usize];
        image.read_part(part, 0, &mut encoded)?;
        let lengths = part.attributes.get(PIECES).cloned().unwrap_or_default();
        let lengths: Vec<u64> =
            serde_json::from_value(lengths).map_err(|error| Error::State(error.to_string()))?;
        Graphs::decode(&encoded, &lengths)
    })
}

impl Graphs {
    /// In pieces, for several threads to read: their bytes, and their lengths.
    fn encode(&self) -> Result<(Vec<u8>, Vec<u64>)> {
        let some = self.execs.chunks(AT_ONCE).map(|execs| (&[][..], execs));
        let pieces = iter::once((&self.graphs[..], &[][..])).chain(some);
        let (mut encoded, mut lengths) = (Vec::new(), Vec::new());
        for piece in pieces {
            let before = encoded.len();
            let piece: (&[GraphState], &[ExecState]) = piece;
            encoded =
                postcard::to_extend(&piece, encoded).map_err(|error| Error::State(error.to_string()))?;
            lengths.push((encoded.len() - before) as u64);
        }
        Ok((encoded, lengths))
    }

    fn decode(encoded: &[u8], lengths: &[u64]) -> Result<Graphs> {
        let mut left = encoded;
        let mut pieces = Vec::new();
        for length in lengths {
            let cut = usize::try_from(*length).ok().and_then(|length| left.split_at_checked(length));
            let (piece, rest) = cut.ok_or_else(|| Error::State("its graphs are cut short".to_string()))?;
            pieces.push(piece);
            left = rest;
        }
        let decode = |_: &mut (), at: usize| {
            let wrong = |error| Error::State(format!("its graphs: {error}"));
            postcard::from_bytes::<Graphs>(pieces[at]).map_err(wrong)
        };
        let decoded = rekindle_parallel::map(rekindle_parallel::threads(), pieces.len(), || (), decode)?;
        let mut all = Graphs::default();
        for mut some in decoded {
            all.graphs.append(&mut some.graphs);
            all.execs.append(&mut some.execs);
        }
        Ok(all)
    }
}

fn check_size(bytes: u64) -> Result<()> {
    if bytes > MOST_BYTES {
        return Err(Error::State(format!(
            "its graphs take {bytes} bytes, more than the {MOST_BYTES} that are read"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn graphs_and_their_instances_are_read_back_in_their_order() {
        let exec = |id| ExecState { id, device: 0, flags: 1, recipe: Arc::default() };
        let graph = |id| GraphState { id, device: 0, recipe: Arc::default(), nodes: 0 };
        for count in [0, 1, AT_ONCE as u32, 3 * AT_ONCE as u32 + 1] {
            let graphs = Graphs {
                graphs: (0..count / 2).map(graph).collect(),
                execs: (0..count).rev().map(exec).collect(),
            };
            let (encoded, lengths) = graphs.encode().unwrap();
            assert_eq!(Graphs::decode(&encoded, &lengths).unwrap(), graphs);
        }
    }

    proptest! {
        #[test]
        fn nonsense_is_refused_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0u64..400) {
            let _ = Graphs::decode(&bytes, &[bytes.len() as u64]);
            let decoded = Graphs::decode(&bytes, &[cut]);
            prop_assert!(decoded.is_err() || cut <= bytes.len() as u64);
        }
    }
}
