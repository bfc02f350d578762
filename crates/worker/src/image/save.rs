//! Writing the GPU half into an image in the making. The client is quiesced and the devices are idle.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use rekindle_protocol::worker::Phase;
use rekindle_store::{Part, PartKind, Staging};
use serde_json::{Value, json};

use super::STATE_PART;
use super::error::{Error, Result, device};
use super::state::{
    ContextState, DeviceState, EventState, ExecState, GraphState, MOST_BYTES, State, StreamState, ThreadState,
};
use super::timer::Timer;
use super::{LeftMemory, contents, save_code, save_memory};
use crate::dispatch::Desk;
use crate::engine::{Engine, StreamObject};

/// Begins to make what [`save`] will copy through.
pub(crate) fn expect_save(desk: &mut Desk) {
    desk.blocks = desk.engine.any_device().ok().map(contents::prepare);
}

/// No save follows.
pub(crate) fn forget_save(desk: &mut Desk) {
    desk.blocks = None;
}

/// With `left`, contents of buffers stay where they are, and descriptors of that memory go there.
pub(crate) fn save(
    desk: &mut Desk,
    staging: &Path,
    left: Option<&mut LeftMemory>,
    stop: &AtomicBool,
) -> Result<(Vec<Value>, Vec<Phase>)> {
    let mut timer = Timer::start();
    let blocks = desk.blocks.take();
    let engine = &mut desk.engine;
    let gpus = save_memory::gpus(engine);
    let staging = Staging::open(staging)?;
    let mut state = State {
        board: engine.board_name.clone(),
        history: engine.history,
        placements: engine.platform.placements(),
        ..State::default()
    };
    state.devices = devices(engine)?;
    streams_and_events(engine, &mut state)?;
    graphs(engine, &mut state);
    timer.lap("GPU objects", 0);
    let plan = save_memory::plan(engine, &staging, &mut state, left)?;
    timer.lap("GPU addresses", 0);
    let bytes = plan.work.iter().map(|(place, _)| place.bytes).sum();
    let (saved, parts) = std::thread::scope(|scope| {
        let saving = scope.spawn(|| {
            let saved = contents::save(&gpus, blocks, &plan.work, stop);
            saved.map(|()| timer.lap("GPU memory", bytes))
        });
        let parts = save_code::modules(engine, &staging, &mut state);
        (saving.join(), parts)
    });
    let saved =
        saved.unwrap_or_else(|_| Err(Error::Refused("a thread that saved buffers panicked".to_string())));
    let buffers = save_memory::finish(engine, plan, saved)?;
    let mut parts = parts?;
    timer.lap("modules, beyond that", 0);
    parts.extend(buffers);
    let encoded = state.encode()?;
    if encoded.len() as u64 > MOST_BYTES {
        let text =
            format!("it takes {} bytes, more than the {MOST_BYTES} that can be read again", encoded.len());
        return Err(Error::State(text));
    }
    parts.push(staging.put(PartKind::WorkerState, STATE_PART, json!({}), &encoded)?);
    timer.lap("worker state", encoded.len() as u64);
    let parts = parts.iter().map(describe).collect::<Result<_>>()?;
    Ok((parts, timer.phases()))
}

/// A part as it travels to the daemon.
pub(super) fn describe(part: &Part) -> Result<Value> {
    Ok(serde_json::to_value(part)?)
}

fn devices(engine: &mut Engine) -> Result<Vec<DeviceState>> {
    let board = engine.board;
    let describe = |(index, slot): (usize, &crate::engine::Slot)| {
        let context = slot.context.as_ref().map(|context| ContextState {
            regions: context
                .heap
                .reserved()
                .iter()
                .map(|region| (region.start, region.end - region.start))
                .collect(),
            buffers: Vec::new(),
            limits: context.limits.clone(),
            clock: 0.0,
            // An error that counts as sticky is looked at and left in place.
            error: board.map_or(0, |board| board.take_error(index, |_| true)),
        });
        DeviceState { kind: slot.info.kind, model: slot.info.name.clone(), context }
    };
    Ok(engine.slots.iter().enumerate().map(describe).collect())
}

fn streams_and_events(engine: &mut Engine, state: &mut State) -> Result<()> {
    let describe = |id, stream: &StreamObject| StreamState {
        id,
        device: stream.device,
        flags: stream.flags,
        priority: stream.priority,
        at: stream.at,
    };
    state.streams = engine.streams.iter().map(|(id, stream)| describe(Some(id), stream)).collect();
    state.streams.extend(engine.former_streams.iter().map(|stream| describe(None, stream)));
    state.threads = engine
        .threads
        .iter()
        .map(|thread| ThreadState {
            index: thread.index,
            name: thread.name.clone(),
            streams: thread.streams.iter().flatten().map(|stream| (stream.device, stream.at)).collect(),
        })
        .collect();
    let mut times = std::collections::HashMap::new();
    for (index, row) in state.devices.iter_mut().enumerate() {
        if let Some(context) = &mut row.context {
            let (events, now) = engine.event_times(index).map_err(device("tell when events happened"))?;
            times.extend(events);
            context.clock = now;
        }
    }
    let event = |(id, event): (u32, &crate::engine::EventObject)| EventState {
        id,
        device: event.device,
        flags: event.flags,
        time: times.get(&id).copied(),
    };
    state.events = engine.events.iter().map(event).collect();
    Ok(())
}

fn graphs(engine: &Engine, state: &mut State) {
    for (id, graph) in engine.graphs.iter() {
        let recipe = (*graph.recipe).clone();
        state.graphs.push(GraphState { id, device: graph.device, recipe, nodes: graph.nodes.len() });
    }
    for (id, exec) in engine.execs.iter() {
        let recipe = (*exec.recipe).clone();
        state.execs.push(ExecState { id, device: exec.device, flags: exec.flags, recipe });
    }
}
