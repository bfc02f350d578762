//! Building a worker's state from an image. The client's files lie in the run directory; the client comes later.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rekindle_device::Stream;
use rekindle_protocol::worker::{Cached, Phase, Recording};
use rekindle_ring::{BoardMapping, Liveness, Ring};
use rekindle_store::{Image, PartKind};

use super::beside::Beside;
use super::block::Preparing;
use super::code_parts::CodeParts;
use super::error::{Error, Result, device};
use super::graph_part::{self, Graphs};
use super::hidden::open_windows;
use super::loading::{LoadTask, Loading, spans};
use super::resident::Registering;
use super::state::{MOST_BYTES, PinnedState, State, buffer_part};
use super::timer::Timer;
use super::whole::{self, OwnStreams};
use super::{
    LeftMemory, STATE_PART, arrays, contents, declared, kernels, lent, restore_code, restore_memory,
    save_memory, uncollected,
};
use crate::client::{
    Client, EventJoin, EventObject, ExecObject, GraphObject, INTERPROCESS, Mark, Mending, PartObject,
};
use crate::dispatch::{Activity, Dispatcher, Remote};
use crate::ondemand::{Journal, Uses};

/// What a restore is to be like.
#[derive(Default)]
pub(crate) struct RestoreOptions {
    pub directory: PathBuf,
    /// Memory that is mapped, not loaded.
    pub left: LeftMemory,
    /// Memory that is copied from, not loaded: another worker's, whose program stands still.
    pub lent: LeftMemory,
    /// Devices on which what is lent lies where it is to lie: it is mapped too.
    pub stays: Vec<usize>,
    /// What lies in memories that the dispatcher was given.
    pub cached: Vec<Cached>,
    /// Requests need not wait for all contents.
    pub on_demand: bool,
    /// Names of parts, in the order in which they are best loaded.
    pub order: Vec<String>,
    /// What becomes of the order in which requests name parts first.
    pub record: Recording,
    /// Memory is made and not filled: its contents come from a base.
    pub based: bool,
    /// The client was let go on by a worker before this: what it was told is not told again.
    pub again: bool,
    /// A file for what is done of requests before all is there; without one none are.
    pub journal: Option<OwnedFd>,
}

pub(crate) fn restore(
    dispatcher: &mut Dispatcher,
    image: &Path,
    options: RestoreOptions,
    remote: Remote,
) -> Result<Vec<Phase>> {
    let (since, mut timer) = (Instant::now(), Timer::start());
    if dispatcher.client.board.is_some() {
        return Err(Error::Refused("this worker has a program already; restore into a new one".to_string()));
    }
    let image = Image::open(image)?;
    let in_own_part = graph_part::read(&image);
    let state = Arc::new(State::decode(&read_state(&image)?)?);
    let blocks = begin(dispatcher, &image, &state)?;
    let code_parts = CodeParts::begin(image.clone(), &state, kernels::PART);
    timer.lap("worker state", 0);
    let RestoreOptions {
        directory,
        mut left,
        mut lent,
        stays,
        mut cached,
        order,
        record,
        based,
        again,
        journal,
        on_demand,
    } = options;
    lent::keep(&state, &stays, &mut lent, &mut left);
    let noted = journal.map(Journal::new).transpose();
    let mut journal =
        noted.map_err(|source| Error::Io { action: "map", path: "the journal".into(), source })?;
    dispatcher.uses = match record {
        Recording::None => None,
        Recording::Asked => Some(Uses::new(spans(&state))),
        Recording::Learned => Some(Uses::new(spans(&state)).learned_for(&image)),
    };
    dispatcher.client.directory = directory;
    dispatcher.client.board_name = state.board.clone();
    // Where requests run ahead, one that answers holds up all until what ran ahead has ended; with several GPUs that may wait for
    // those that are held up. And what others have too is there for all of them at once.
    let can_wait = !dispatcher.client.has_several_gpus()
        && left.is_empty()
        && lent.is_empty()
        && state.ipc.is_empty()
        && state.arrays.is_empty()
        // Arguments do not name the memory that textures read.
        && state.views.is_empty()
        && state.physical_shared.is_empty();
    // What kernels print must be kept back as long as they might have to run once more.
    let on_demand = on_demand && can_wait && journal.is_some() && dispatcher.client.output.keep_back();
    let mut hidden = on_demand.then(Vec::new);
    let shared = match on_demand && can_share(&dispatcher.client, &state) {
        true => dispatcher.cache.take_shared(&mut cached),
        false => HashMap::new(),
    };
    let declared = match based {
        // It gets what the base has.
        true => declared::PresentMemory::new(),
        false => declared::join(&mut dispatcher.client, &image, &buffers(&state), &left)?,
    };
    let there = (&shared, &declared);
    restore_memory::place(&mut dispatcher.client, &state, &left, hidden.as_mut(), there)?;
    let of_others = restore_memory::of_others(&state);
    let client = &mut dispatcher.client;
    let arrivals = client.prepare_shared(state.ipc.clone(), &left).and_then(|mut arrivals| {
        client.prepare_physical(&mut arrivals, state.physical_shared.clone(), of_others)?;
        client.take_left(&mut arrivals, &left)?;
        Ok(arrivals)
    });
    let arrivals = arrivals.map_err(device("have again what processes of the program share"))?;
    let (mut windows, mut load_windows) = (Vec::new(), Vec::new());
    match &mut hidden {
        Some(hidden) => {
            load_windows = open_windows(&mut dispatcher.client, hidden)?;
            let pinned = |row: &PinnedState| row.address..row.address.saturating_add(row.bytes);
            let pinned_later = state.pinned.iter().map(pinned).collect();
            dispatcher.client.mending = Some(Mending::new(pinned_later));
        }
        None => {
            restore_memory::pin(&mut dispatcher.client, &state)?;
            windows = save_memory::map_physical(&mut dispatcher.client)?;
        }
    }
    dispatcher.client.expect_demand(&image, record == Recording::Asked);
    dispatcher.learns_demand_of(&image);
    timer.lap("GPU addresses", 0);
    if !state.arrays.is_empty() || !state.views.is_empty() {
        arrays::restore(&mut dispatcher.client, &image, &state)?;
        timer.lap("arrays", state.arrays.iter().map(|row| row.description.bytes()).sum());
    }
    if !lent.is_empty() {
        let mut wanted = restore_memory::wanted(&state, &windows);
        wanted.retain(|(name, _)| !declared.contains_key(name) && !left.contains_key(name));
        let bytes = lent::copy(&mut dispatcher.client, wanted, &lent)?;
        timer.lap("GPU memory, from the other GPU", bytes);
    }
    let gpus = save_memory::gpus(&dispatcher.client);
    let on = |index: usize| gpus.get(index).and_then(Option::as_ref).map(|gpu| gpu.device.clone());
    if dispatcher.cache.needs_room()
        && let Err(code) = dispatcher
            .client
            .bind(0)
            .and_then(|()| dispatcher.client.heap(0))
            .and_then(|heap| dispatcher.cache.make_room(heap))
    {
        log::warn!("caches in GPU memory are not used, for there are no addresses for them: {code}");
    }
    let views = dispatcher.cache.open(cached, on);
    let filled = match based {
        true => restore_memory::wanted(&state, &windows).into_iter().map(|(name, _)| name).collect(),
        false => left.keys().chain(lent.keys()).chain(declared.keys()).cloned().collect(),
    };
    let to_load = dispatcher.client.data.declared().map(|(address, _)| (buffer_part(address), address));
    let to_load = to_load.filter(|(part, _)| !declared.contains_key(part)).collect();
    // Once contents and kernels are on their way, events wait for some of them, or for the driver.
    clocks(&mut dispatcher.client, &state)?;
    events(&mut dispatcher.client, &state)?;
    timer.lap("events", 0);
    let work = LoadTask {
        image: image.clone(),
        state: state.clone(),
        windows,
        gpus,
        left: filled,
        views: Mutex::new(views),
        resident: Mutex::new(dispatcher.registering.take().and_then(Registering::end)),
        hidden,
        order,
        declared: to_load,
        arrivals,
    };
    let beside = remote.clone();
    let mut loading = Loading::begin(work, load_windows, blocks, remote, since)?;
    timer.lap("begin to load", 0);
    parts(&mut dispatcher.client, &state)?;
    let bytes = restore_code::pieces(&mut dispatcher.client, &image, &state, &code_parts)?;
    timer.lap("kernels", bytes);
    let own_streams = whole::replay(&mut dispatcher.client, &image, &state)?;
    timer.lap("modules", 0);
    let in_pieces = state.pieces.len() as u64;
    timer.count([("loaded", state.modules.len() as u64 - in_pieces), ("in pieces", in_pieces)]);
    let kernels = kernels::load_beside(&dispatcher.client, &state, beside);
    graphs(&mut dispatcher.client, &state, in_own_part.end()?)?;
    join_files(dispatcher, &state, own_streams, again)?;
    if let Some(journal) = &mut journal {
        for thread in &dispatcher.client.threads {
            journal.push_ring(thread.index, &thread.name);
        }
    }
    loading.check_present()?;
    kernels.map_or(Ok(()), Beside::end)?;
    dispatcher.activity = Activity::Loading { loading, journal };
    timer.lap("GPU objects", 0);
    Ok(timer.phases())
}

/// Checks the GPUs, opens their contexts, and begins to make the blocks that contents are copied through; none where no
/// contents are loaded.
fn begin(dispatcher: &mut Dispatcher, image: &Image, state: &State) -> Result<Option<Preparing>> {
    let waiting = dispatcher.blocks.take();
    let client = &mut dispatcher.client;
    let any = client.any_device().map_err(device("be used"))?;
    let make = || waiting.unwrap_or_else(|| contents::prepare(any, client.gpus.block_pool()));
    let blocks = restore_memory::has_contents(image, state).then(make);
    check_gpus(client, state)?;
    confine(client, state)?;
    client.gpus.expect_placements(&state.placements);
    client.turns.follow(state.history);
    open_contexts(client, state)?;
    Ok(blocks)
}

/// The program keeps to its slice, in a context of its own too.
fn confine(client: &Client, state: &State) -> Result<()> {
    let regions = &client.gpus.regions;
    match (state.slice, client.gpus.is_shared()) {
        (None, false) => {}
        (Some(slice), false) => regions.confine(slice),
        (Some(slice), true) if regions.slice() == Some(slice) => {}
        (found, true) => {
            let [found, expected] = [found, regions.slice()]
                .map(|slice| slice.map_or("no".to_string(), |slice| slice.number().to_string()));
            let text = format!(
                "its program has address slice {found}, and the shared context has {expected} for it"
            );
            return Err(Error::Refused(text));
        }
    }
    Ok(())
}

/// The bytes of buffers, by the names of their parts.
fn buffers(state: &State) -> HashMap<String, u64> {
    state.backed().map(|buffer| (buffer_part(buffer.address), buffer.bytes)).collect()
}

/// The encoded state of the image.
fn read_state(image: &Image) -> Result<Vec<u8>> {
    let part = image.part(PartKind::WorkerState, STATE_PART).ok_or_else(|| {
        Error::State("the image has no part worker-state; it holds no GPU half".to_string())
    })?;
    if part.bytes > MOST_BYTES {
        return Err(Error::State(format!("it claims to have {} bytes", part.bytes)));
    }
    let mut bytes = vec![0; part.bytes as usize];
    image.read_part(part, 0, &mut bytes)?;
    Ok(bytes)
}

fn check_gpus(client: &Client, state: &State) -> Result<()> {
    let used = state.devices.iter().enumerate().filter(|(_, row)| row.context.is_some());
    for (index, row) in used {
        let found = client.gpus.info(index);
        if found.is_none_or(|info| info.kind != row.kind || info.name != row.model) {
            return Err(Error::Gpu {
                expected: format!("{} as its GPU {index}", row.model),
                found: found.map_or("no such GPU".to_string(), |info| info.name.clone()),
            });
        }
    }
    Ok(())
}

fn open_contexts(client: &mut Client, state: &State) -> Result<()> {
    for (index, row) in state.devices.iter().enumerate() {
        let Some(context) = &row.context else { continue };
        client.open(index).map_err(device("make a context"))?;
        for (limit, value) in &context.limits {
            let gpu = client.on(index).map_err(device("be used"))?;
            gpu.set_limit(*limit, *value).map_err(device(format!("set limit {limit} to {value}")))?;
        }
        client.context_mut(index).map_err(device("be used"))?.limits = context.limits.clone();
    }
    Ok(())
}

/// The multiprocessors that the program has divided off, which streams are made on again.
fn parts(client: &mut Client, state: &State) -> Result<()> {
    for row in &state.parts {
        let gpu = client.on(row.device).map_err(device("be used"))?;
        let Some(found) = gpu.units() else {
            let text = "its program has green contexts, and the multiprocessors cannot be divided here: restore it without \
                        --share, on a driver that has them (CUDA 12.5)";
            return Err(Error::Refused(text.to_string()));
        };
        if found != row.units {
            let [had, has] = [row.units, found].map(|units| {
                format!("{} units of {} and {}", units.count, units.multiprocessors, units.rest)
            });
            let text = format!(
                "its program has green contexts of a GPU with {had} multiprocessors, and this one has {has}; restore it \
                 on a GPU like the first"
            );
            return Err(Error::Refused(text));
        }
        let handle = gpu.part_create(row.set).map_err(device("divide its multiprocessors"))?;
        let part = PartObject { device: row.device, units: row.set, handle, meeting: EventJoin::default() };
        client.parts.insert(row.id, part).map_err(device("number a green context as before"))?;
    }
    Ok(())
}

/// The program's clocks go on.
fn clocks(client: &mut Client, state: &State) -> Result<()> {
    for (index, row) in state.devices.iter().enumerate() {
        let Some(context) = &row.context else { continue };
        let gpu = client.on(index).map_err(device("be used"))?;
        let anchor = || {
            let event = gpu.event_create(0)?;
            gpu.event_record(event, Stream::LEGACY, 0)?;
            gpu.event_synchronize(event)?;
            Ok(event)
        };
        let event = anchor().map_err(device("tell the time"))?;
        let anchor = Some(Mark { event, time: context.clock });
        client.context_mut(index).map_err(device("be used"))?.anchor = anchor;
    }
    Ok(())
}

fn events(client: &mut Client, state: &State) -> Result<()> {
    for row in &state.events {
        let gpu = client.on(row.device).map_err(device("be used"))?;
        let handle = gpu.event_create(row.flags & !INTERPROCESS).map_err(device("make an event"))?;
        let event = EventObject {
            device: row.device,
            flags: row.flags,
            handle,
            recorded: row.time.is_some(),
            restored: row.time,
        };
        client.events.insert(row.id, event).map_err(device("number an event as before"))?;
    }
    Ok(())
}

/// Whether a fault can be mended at any time after the restore: all that the program can change lies in buffers and
/// globals of one device.
fn can_share(client: &Client, state: &State) -> bool {
    let contexts = client.contexts.iter().flatten().count();
    contexts == 1 && state.physical.is_empty() && state.pinned.is_empty()
}

/// Graphs and their instances, none of which the device has yet: it gets them when they are used next, and instances that
/// nobody launches while the program rests.
fn graphs(client: &mut Client, state: &State, in_own_part: Graphs) -> Result<()> {
    let number = |code| device("number a graph as before")(code);
    for row in state.graphs.iter().chain(&in_own_part.graphs) {
        let (within, recipe) = (state.inside.get(&row.id).copied(), row.recipe.clone());
        let graph = GraphObject { device: row.device, built: None, recipe, within };
        client.graphs.insert(row.id, graph).map_err(number)?;
    }
    client.graph_launches = (state.execs.len() + in_own_part.execs.len()) as u64;
    let execs = state.execs.iter().chain(&in_own_part.execs);
    for (row, used) in execs.zip((1..=client.graph_launches).rev()) {
        let (flags, recipe) = (row.flags, row.recipe.clone());
        let exec = ExecObject { device: row.device, handle: None, flags, recipe, is_stale: true, used };
        client.execs.insert(row.id, exec).map_err(number)?;
        client.unmade.push_back(row.id);
    }
    Ok(())
}

/// Maps board and rings, which are as new, and gives each thread its streams.
fn join_files(
    dispatcher: &mut Dispatcher,
    state: &State,
    mut own_streams: OwnStreams,
    again: bool,
) -> Result<()> {
    let shared = |error: rekindle_ring::SharedError| Error::Refused(error.to_string());
    let file = |dispatcher: &Dispatcher, name: &str| {
        let path = dispatcher.client.run_file(name);
        path.ok_or_else(|| Error::State(format!("it names a file {name:?} in the run directory")))
    };
    if state.board.is_empty() {
        return Ok(());
    }
    dispatcher.client.uncollected = uncollected::of(&state.uncollected);
    for row in &state.threads {
        let ring = Ring::open(&file(dispatcher, &row.name)?).map_err(shared)?;
        uncollected::put_back(ring, row.index, &state.uncollected)?;
        dispatcher.add_ring(row.index, row.name.clone(), ring);
        if let Some(thread) = dispatcher.client.threads.last_mut() {
            for stream in own_streams.remove(&row.index).unwrap_or_default() {
                let length = thread.streams.len().max(stream.device + 1);
                thread.streams.resize(length, None);
                thread.streams[stream.device] = Some(stream);
            }
        }
    }
    let board = BoardMapping::open(&file(dispatcher, &state.board)?).map_err(shared)?;
    for (index, row) in state.devices.iter().enumerate() {
        if let Some(context) = row.context.as_ref().filter(|context| context.error != 0 && !again) {
            board.set_error(index, context.error);
        }
    }
    board.set_worker(Liveness::Alive);
    dispatcher.client.take_board(board);
    Ok(())
}
