//! Writing the GPU half into an image in the making. The client is quiesced and the devices are idle.

use std::cmp::Reverse;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use rekindle_device::DeviceInfo;
use rekindle_protocol::worker::{self as protocol, Contents};
use rekindle_store::{Part, PartKind, Staging};
use serde_json::Value;

use super::STATE_PART;
use super::block::Preparing;
use super::code_pre_copy::CodePreCopy;
use super::contents::PartLocation;
use super::cut::Cut;
use super::drain::SaveContext;
use super::error::{Error, Result, device};
use super::graph_part::{self, Graphs};
use super::pre_copy::PreCopy;
use super::reference::Reference;
use super::save_memory::MemoryFate;
use super::shadow::SaveTask;
use super::state::{
    ContextState, DeviceState, EventState, ExecState, GraphState, MOST_BYTES, PartState, State, StreamState,
    ThreadState,
};
use super::timer::Timer;
use super::{
    LeftMemory, arrays, contents, copy_out, declared, kernels, pinned, reference, runs, save_code,
    save_memory, uncollected,
};
use crate::client::{Body, Client, Context, ExecObject, ModuleObject, PartObject, StreamObject};
use crate::dispatch::{Activity, Dispatcher};

/// Begins to make what [`save`] or a restore will copy through.
pub(crate) fn blocks(client: &Client, contents: Contents) -> Option<Preparing> {
    let device = client.any_device().ok()?;
    match contents {
        Contents::Saved => Some(contents::prepare(device, client.gpus.block_pool())),
        Contents::Shadowed => Some(contents::prepare_beside(device, client.gpus.block_pool())),
        Contents::Left => None,
    }
}

/// What was saved, and descriptors of the memory that was left.
type Saved = (protocol::Saved, LeftMemory);

pub(crate) fn save(
    dispatcher: &mut Dispatcher,
    staging: &Path,
    contents: Contents,
    (code, ahead, mut timer): (CodePreCopy, PreCopy, Timer),
    stop: &AtomicBool,
) -> Result<Saved> {
    let Activity::Quiesced(quiesced) = &mut dispatcher.activity else {
        return Err(Error::Refused("only a program that stands still can be saved".to_string()));
    };
    let (mut blocks, behind, shares) = (quiesced.blocks.take(), quiesced.behind, quiesced.shared.is_some());
    let client = &mut dispatcher.client;
    check_globals(client)?;
    client.own_orphans()?;
    let gpus = save_memory::gpus(client);
    let staging = ahead.join(Staging::open(staging)?);
    let mut state = State {
        board: client.board_name.clone(),
        history: client.turns.last(),
        placements: client.gpus.placements(),
        slice: client.gpus.regions.slice(),
        ..State::default()
    };
    state.devices = devices(client)?;
    streams_and_events(client, &mut state)?;
    // What is large and does not change is written beside the rest.
    let graphs = graph_part::write(&staging, graphs(client, &mut state));
    let kernels = kernels::write(client, &staging, &mut state)?;
    state.ipc = client.ipc_state();
    state.physical_shared = client.physical_shared();
    let arrays = arrays::save(client, &staging, &mut state)?;
    let declared = declared::save(client, &staging)?;
    timer.lap("GPU objects", 0);
    let mut left = LeftMemory::new();
    if contents == Contents::Left {
        client.leave_shared(&mut left).map_err(device("leave behind what processes of the program share"))?;
    }
    let kept = if contents == Contents::Left { MemoryFate::Left(&mut left) } else { MemoryFate::Saved };
    if !behind {
        // Else there is none that counts as the program's, and to unmap what others have by now waits for the GPU.
        client.trim_all().map_err(device("free what the program has freed"))?;
    }
    let mut plan = save_memory::plan(client, &staging, &mut state, kept)?;
    timer.lap("GPU addresses", 0);
    if behind {
        match pinned::tasks(client, &staging) {
            Ok(tasks) => plan.work.extend(tasks),
            Err(error) => return save_memory::finish(client, plan, Err(error)).map(|_| Default::default()),
        }
    }
    let runs = plan.runs(client);
    let looked_at = reference::Places::of(&plan.work, &runs);
    let bytes = runs::bytes(&runs);
    let mut reference = None;
    if let Some(places) = looked_at.as_ref().filter(|_| !behind) {
        let taken = Reference::take(&gpus, places, stop);
        match taken {
            Ok(taken) => reference = Some(taken),
            Err(error) => return save_memory::finish(client, plan, Err(error)).map(|_| Default::default()),
        }
        timer.lap("reference", bytes);
    }
    let mut cut = Cut::Still;
    let mut taken = None;
    if contents == Contents::Shadowed && !plan.work.is_empty() {
        match Cut::make(client, &gpus, &mut blocks, (&plan.work, &runs), (&ahead, behind, shares), &mut timer)
        {
            Ok((made, way)) => (cut, taken) = (made, Some(way)),
            Err(error) => return save_memory::finish(client, plan, Err(error)).map(|_| Default::default()),
        }
    }
    let known =
        cut.partial().map(|partial| |location: &PartLocation, piece| partial.hash_of(location, piece));
    let known = known.as_ref().map(|known| known as &copy_out::KnownHashes<'_>);
    let (saved, code) = {
        let spans = cut.at_once(&plan.work, &runs);
        let bytes = spans.iter().map(|span| span.location.bytes).sum();
        std::thread::scope(|scope| {
            let saving = scope.spawn(|| {
                if bytes > 0 {
                    let (copied, made) = copy_out::save(&gpus, blocks.take(), &spans, known, stop)?;
                    blocks = made.map(Preparing::Ready);
                    timer.lap("GPU memory", bytes);
                    timer.from(copy_out::origin(bytes, copied));
                }
                Ok(())
            });
            let code = code.into(&staging).unwrap_or_default();
            let code = save_code::modules(client, &staging, &mut state, code);
            (saving.join(), code)
        })
    };
    let saved =
        saved.unwrap_or_else(|_| Err(Error::Refused("a thread that saved buffers panicked".to_string())));
    if code.is_ok() {
        timer.lap("modules, beyond that", code.iter().flatten().map(|part| part.bytes).sum());
    }
    // Windows go with the plan, and the copy may be of what lies there.
    let saved = saved.and(cut.wait(client, &mut timer));
    let saved = saved.and_then(|()| match looked_at.filter(|_| behind) {
        Some(places) => {
            save_memory::wait(client)?;
            let taken = Reference::take(&gpus, &places, stop);
            reference = Some(taken?);
            timer.lap("reference", bytes);
            Ok(())
        }
        None => Ok(()),
    });
    let buffers = plan.buffers(client);
    let drained = if cut.is_drained() { std::mem::take(&mut plan.work) } else { SaveTask::new() };
    let saved = save_memory::finish(client, plan, saved);
    let saved = saved.and_then(|parts| match &reference {
        Some(reference) => parts.iter().try_for_each(|part| reference.check(part)).map(|()| parts),
        None => Ok(parts),
    });
    let described = saved.and_then(|mut parts| {
        parts.extend(code?);
        parts.extend(arrays);
        parts.extend(declared);
        parts.extend(kernels.end()?);
        parts.extend(graphs.end()?);
        parts.push(put_state(&staging, &state, &mut timer)?);
        parts.iter().map(describe).collect::<Result<_>>()
    });
    match described {
        Ok(parts) => {
            let context = SaveContext { since: timer.began(), reference };
            client.shadow = cut.drain(client, (drained, buffers), gpus, blocks, context);
            Ok((protocol::Saved { parts, phases: timer.phases(), memory: taken, ..Default::default() }, left))
        }
        Err(error) => {
            cut.close(client);
            Err(error)
        }
    }
}

/// Where globals of whole modules lie depends on all that is loaded in a context, so that they come back to their places only
/// in one that nobody shares.
pub(super) fn check_globals(client: &Client) -> Result<()> {
    let held = |module: &ModuleObject| {
        let whole = matches!(module.body, Body::Whole(_));
        whole.then(|| Some((module.globals.first()?.name.clone(), module.whole.clone()))).flatten()
    };
    let found = client.modules.iter().find_map(|(_, module)| held(module));
    let Some((name, why)) = found.filter(|_| client.gpus.is_shared()) else { return Ok(()) };
    let why = why.map_or(String::new(), |why| format!(" ({why})"));
    Err(Error::Refused(format!(
        "it shares its context, and code of it had to be loaded whole{why}, whose global {name} lies where the context's \
         other programs let it; run it without `--share`, or declare the function with `share=False`, to take images of it"
    )))
}

pub(super) fn put_state(staging: &Staging, state: &State, timer: &mut Timer) -> Result<Part> {
    let encoded = state.encode()?;
    if encoded.len() as u64 > MOST_BYTES {
        let text =
            format!("it takes {} bytes, more than the {MOST_BYTES} that can be read again", encoded.len());
        return Err(Error::State(text));
    }
    let part = staging.put(PartKind::WorkerState, STATE_PART, state.code_attributes(), &encoded)?;
    timer.lap("worker state", encoded.len() as u64);
    Ok(part)
}

/// A part as it travels to the daemon.
pub(super) fn describe(part: &Part) -> Result<Value> {
    Ok(serde_json::to_value(part)?)
}

pub(super) fn devices(client: &mut Client) -> Result<Vec<DeviceState>> {
    client.tell_late_failures();
    let board = client.board;
    let describe = |(info, context): (DeviceInfo, &Option<Context>)| {
        let index = info.index as usize;
        let context = context.as_ref().map(|context| ContextState {
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
        DeviceState { kind: info.kind, model: info.name, context }
    };
    Ok(client.gpus.infos().into_iter().zip(&client.contexts).map(describe).collect())
}

fn parts(client: &mut Client) -> Result<Vec<PartState>> {
    let rows: Vec<(u32, PartObject)> = client.parts.iter().map(|(id, part)| (id, *part)).collect();
    let describe = |(id, part): (u32, PartObject)| {
        let gpu = client.on(part.device).map_err(device("be used"))?;
        let units = gpu.units().unwrap_or_default();
        let streams = client.streams.iter().filter(|(_, stream)| stream.part == Some(id));
        let streams = streams.map(|(stream, _)| stream).collect();
        Ok(PartState { id, device: part.device, set: part.units, units, streams })
    };
    rows.into_iter().map(describe).collect()
}

pub(super) fn streams_and_events(client: &mut Client, state: &mut State) -> Result<()> {
    let describe = |id, stream: &StreamObject| StreamState {
        id,
        device: stream.device,
        flags: stream.flags,
        priority: stream.priority,
        at: stream.at,
    };
    state.streams = client.streams.iter().map(|(id, stream)| describe(Some(id), stream)).collect();
    state.streams.extend(client.former_streams.iter().map(|stream| describe(None, stream)));
    state.parts = parts(client)?;
    state.threads = client
        .threads
        .iter()
        .map(|thread| ThreadState {
            index: thread.index,
            name: thread.name.clone(),
            streams: thread.streams.iter().flatten().map(|stream| (stream.device, stream.at)).collect(),
        })
        .collect();
    state.uncollected = uncollected::save(client);
    let mut times = std::collections::HashMap::new();
    for (index, row) in state.devices.iter_mut().enumerate() {
        if let Some(context) = &mut row.context {
            let (events, now) = client.event_times(index).map_err(device("tell when events happened"))?;
            times.extend(events);
            context.clock = now;
        }
    }
    let event = |(id, event): (u32, &crate::client::EventObject)| EventState {
        id,
        device: event.device,
        flags: event.flags,
        time: times.get(&id).copied(),
    };
    state.events = client.events.iter().map(event).collect();
    Ok(())
}

/// Instances that were launched last come first, for they are made in this order.
pub(super) fn graphs(client: &Client, state: &mut State) -> Graphs {
    let mut graphs = Vec::new();
    for (id, graph) in client.graphs.iter() {
        let (recipe, nodes) = (graph.recipe.clone(), graph.recipe.nodes());
        graphs.push(GraphState { id, device: graph.device, recipe, nodes });
        state.inside.extend(graph.within.map(|within| (id, within)));
    }
    let mut execs: Vec<_> = client.execs.iter().collect();
    execs.sort_by_key(|(_, exec)| Reverse(exec.used));
    let describe = |(id, exec): (u32, &ExecObject)| ExecState {
        id,
        device: exec.device,
        flags: exec.flags,
        recipe: exec.recipe.clone(),
    };
    Graphs { graphs, execs: execs.into_iter().map(describe).collect() }
}
