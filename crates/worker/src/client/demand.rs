//! What the program's requests need of memory that comes at its first use: known from its image, and kept with it.

use rekindle_protocol::worker::RequestProfile;
use rekindle_ring::Record;
use rekindle_store::{Image, MemoryDemand, RequestKinds};

use super::Client;
use crate::demand::Demand;
use crate::ondemand::{Needs, needs};

impl Client {
    /// The program launches a kernel or a graph.
    #[inline]
    pub(crate) fn note_launch(&self) {
        self.demands().for_each(Demand::note_launch);
    }

    /// Whether a request of the program's is under way, as far as its use of memory is followed.
    pub(crate) fn is_in_request(&self) -> bool {
        self.demands().any(Demand::is_under_way)
    }

    /// The program rests: its request is over.
    pub(crate) fn end_request(&self) {
        self.demands().for_each(Demand::end);
    }

    /// The program is an image's, which knows what its requests need. With `record` it is noted which buffers they name.
    pub(crate) fn expect_demand(&self, image: &Image, record: bool) {
        let known = image.memory_demand().unwrap_or_else(|error| {
            log::warn!("how much memory requests need is not known: {error}");
            MemoryDemand::default()
        });
        let known = known.gpus.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        for (context, known) in self.contexts.iter().zip(known) {
            let Some(demand) = context.as_ref().and_then(|context| context.heap.demand()) else { continue };
            if let Some(known) = known {
                demand.expect(known);
            }
            if record {
                demand.record();
            }
        }
    }

    /// What its requests were seen to need, and how many kinds of them were learned here.
    pub(crate) fn known_demand(&self) -> (MemoryDemand, u64) {
        let known = |context: &Option<super::Context>| {
            let demand = context.as_ref().and_then(|context| context.heap.demand());
            demand.map_or((RequestKinds::default(), 0), Demand::known)
        };
        let (gpus, learned): (Vec<_>, Vec<_>) = self.contexts.iter().map(known).unzip();
        (MemoryDemand { gpus }, learned.into_iter().sum())
    }

    /// Notes which buffers a request names.
    pub(crate) fn note_named(&self, record: &Record<'_>) {
        let (Needs::Memory(touched) | Needs::Look(touched)) =
            needs(self, record.opcode, record.body, record.trailer)
        else {
            return;
        };
        for context in self.contexts.iter().flatten() {
            let Some(demand) = context.heap.demand() else { continue };
            let addresses =
                touched.ranges.iter().map(|range| range.start).chain(touched.words.iter().copied());
            demand.note_named(addresses, || context.heap.bytes() + context.heap.unbacked_bytes());
        }
    }

    /// What was recorded of the last request, on each GPU.
    pub(crate) fn profile(&self) -> Vec<RequestProfile> {
        let contexts = self.contexts.iter().flatten();
        let profile = |context: &super::Context| {
            let demand = context.heap.demand()?;
            let (named, (known, _)) = (demand.named()?, demand.known());
            let last = known.0.last().cloned().unwrap_or_default();
            let mut level = 0;
            let held = last.changes.iter().map(|change| {
                level += change.bytes;
                (change.launch, level)
            });
            Some(RequestProfile {
                launches: last.launches,
                allocated_bytes: named.allocated,
                resident_bytes: context
                    .heap
                    .bytes()
                    .saturating_add_signed(-last.changes.iter().map(|change| change.bytes).sum::<i64>()),
                held: held.collect(),
                used: named.used(),
            })
        };
        contexts.filter_map(profile).collect()
    }

    fn demands(&self) -> impl Iterator<Item = &Demand> {
        self.contexts.iter().flatten().filter_map(|context| context.heap.demand())
    }
}
