//! Random programs over streams and events, against CUDA's rules of what comes before what.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rekindle_device::{MemorySet, Stream};

use crate::support::{MIB, buffer, machine};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Work on a stream, seen in the log.
    Call(usize),
    /// Work on another engine.
    Fill(usize),
    Record(usize, usize),
    Wait(usize, usize),
}

/// Streams: 0 legacy, 1 and 2 blocking, 3 and 4 non-blocking.
const STREAMS: usize = 5;
const EVENTS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..STREAMS).prop_map(Step::Call),
        1 => (0..STREAMS).prop_map(Step::Fill),
        2 => (0..EVENTS, 0..STREAMS).prop_map(|(event, stream)| Step::Record(event, stream)),
        2 => (0..EVENTS, 0..STREAMS).prop_map(|(event, stream)| Step::Wait(event, stream)),
    ]
}

/// For each step, the steps that must be done before it, as bits.
fn rules(steps: &[Step]) -> Vec<u128> {
    let blocking = |stream: usize| stream < 3;
    let mut before = vec![0_u128; steps.len()];
    let mut recorded: HashMap<usize, u128> = HashMap::new();
    for (i, step) in steps.iter().enumerate() {
        let (Step::Call(stream) | Step::Fill(stream) | Step::Record(_, stream) | Step::Wait(_, stream)) =
            *step;
        for (j, earlier) in steps[..i].iter().enumerate() {
            let (Step::Call(other) | Step::Fill(other) | Step::Record(_, other) | Step::Wait(_, other)) =
                *earlier;
            let legacy = (stream == 0 && blocking(other)) || (other == 0 && blocking(stream));
            if other == stream || legacy {
                before[i] |= before[j] | 1 << j;
            }
        }
        match *step {
            Step::Record(event, _) => {
                recorded.insert(event, before[i] | 1 << i);
            }
            Step::Wait(event, _) => before[i] |= recorded.get(&event).copied().unwrap_or(0),
            Step::Call(_) | Step::Fill(_) => {}
        }
    }
    before
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn work_is_done_in_an_allowed_order(steps in prop::collection::vec(step(), 1..100)) {
        let machine = machine("memory=64M");
        let gpu = &machine.gpu;
        let device = buffer(gpu.as_ref(), 2 * MIB);
        let streams: Vec<Stream> = (0..STREAMS)
            .map(|i| if i == 0 { Stream::LEGACY } else { gpu.stream_create(u32::from(i > 2), 0).unwrap() })
            .collect();
        let events: Vec<_> = (0..EVENTS).map(|_| gpu.event_create(0).unwrap()).collect();
        let log = Arc::new(Mutex::new(Vec::new()));
        for (i, step) in steps.iter().enumerate() {
            match *step {
                Step::Call(stream) => {
                    let log = Arc::clone(&log);
                    gpu.host_call(streams[stream], Box::new(move || log.lock().unwrap().push(i))).unwrap();
                }
                Step::Fill(stream) => {
                    let address = device.address + i as u64 * 4;
                    let fill = MemorySet { address, pitch: 0, value: 1, element: 4, width: 1, height: 1 };
                    gpu.set(&fill, streams[stream]).unwrap();
                }
                Step::Record(event, stream) => gpu.event_record(events[event], streams[stream], 0).unwrap(),
                Step::Wait(event, stream) => gpu.stream_wait_event(streams[stream], events[event], 0).unwrap(),
            }
        }
        gpu.synchronize().unwrap();
        let log = log.lock().unwrap().clone();
        let calls = steps.iter().filter(|step| matches!(step, Step::Call(_))).count();
        prop_assert_eq!(log.len(), calls);
        let before = rules(&steps);
        let mut done = 0_u128;
        for i in log {
            let missing = (0..i).find(|j| {
                matches!(steps[*j], Step::Call(_)) && before[i] & 1 << j != 0 && done & 1 << j == 0
            });
            prop_assert!(missing.is_none(), "step {} ran before step {:?}", i, missing);
            done |= 1 << i;
        }
    }
}
