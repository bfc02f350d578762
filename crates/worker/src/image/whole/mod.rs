//! Modules that are whole, and streams: made again in the order in which the program did it.
//!
//! The globals of such a module lie in heaps of the driver, in blocks that streams take room in too. They come out at the
//! addresses that the program knows if the same is asked for in the same order, loads, look-ups, unloads and streams, and
//! the heaps themselves lie where they lay (`Platform::expect_placements`). Work, copies, events and registered memory
//! take no such room. Of an image without such modules all that is left is its streams.

mod module;

use std::collections::HashMap;

use rekindle_protocol::operation::Id;
use rekindle_store::Image;

use super::error::{Result, device};
use super::restore_code::piece;
use super::state::{FunctionState, ModuleState, State, StreamState};
use crate::client::{Client, GlobalGiven, ModuleObject, StreamObject};
use module::{check_global, contents, function, load, whole};

enum Moment<'s> {
    Load(usize),
    Unload(usize),
    Function(&'s FunctionState),
    /// A kernel of a module in pieces.
    Piece(&'s FunctionState),
    Global(usize, &'s GlobalGiven),
    Stream(&'s StreamState),
    /// A thread's default stream: the thread's number, the device.
    OwnStream(u32, usize),
}

/// The default streams of threads, by the threads' numbers.
pub(super) type OwnStreams = HashMap<u32, Vec<StreamObject>>;

/// Modules, functions and streams as they were, then the contents of globals.
pub(super) fn replay(client: &mut Client, image: &Image, state: &State) -> Result<OwnStreams> {
    let mut own_streams = OwnStreams::new();
    // Modules that were unloaded have no id; they are kept apart until their moment comes.
    let mut passing: HashMap<usize, ModuleObject> = HashMap::new();
    for (at, moment) in moments(state) {
        match moment {
            Moment::Load(n) => {
                let row = &state.modules[n];
                let module = load(client, image, (state, row))?;
                match row.id {
                    Some(id) => {
                        client.modules.insert(id, module).map_err(device("number a module as before"))?
                    }
                    None => {
                        passing.insert(n, module);
                    }
                }
            }
            Moment::Unload(n) => {
                if let Some(module) = passing.remove(&n) {
                    let gpu = client.on(module.device).map_err(device("be used"))?;
                    let handle = whole(&module)?;
                    gpu.module_unload(handle).map_err(device("unload a module"))?;
                    client.unloaded.push(module);
                }
            }
            Moment::Function(row) => function(client, row)?,
            Moment::Piece(row) => piece(client, row)?,
            Moment::Global(n, given) => {
                let module = match state.modules[n].id {
                    Some(id) => client.modules.get(id).map_err(device("find a module"))?,
                    None => match passing.get(&n) {
                        Some(module) => module,
                        None => continue,
                    },
                };
                check_global(client, module, given)?;
            }
            Moment::Stream(row) => {
                let part = row.id.and_then(|id| state.part_of(id));
                let made = stream(client, row, part)?;
                match row.id {
                    Some(id) => {
                        client.streams.insert(id, made).map_err(device("number a stream as before"))?
                    }
                    None => client.former_streams.push(made),
                }
            }
            Moment::OwnStream(thread, index) => {
                let row = StreamState { id: None, device: index, flags: 0, priority: 0, at };
                let made = stream(client, &row, None)?;
                own_streams.entry(thread).or_default().push(made);
            }
        }
    }
    for at in 0..client.former_streams.len() {
        let former = client.former_streams[at];
        let gpu = client.on(former.device).map_err(device("be used"))?;
        gpu.stream_destroy(former.handle).map_err(device("destroy a stream"))?;
    }
    contents(client, image, state)?;
    Ok(own_streams)
}

fn moments(state: &State) -> Vec<(u64, Moment<'_>)> {
    let mut moments: Vec<(u64, Moment<'_>)> = Vec::new();
    let until = state.ordered_until().unwrap_or_default();
    let is_whole = |module: &ModuleState| state.pieces_of(module).is_none();
    for (n, module) in state.modules.iter().enumerate().filter(|(_, module)| is_whole(module)) {
        moments.push((module.loaded_at, Moment::Load(n)));
        moments.extend(module.unloaded_at.map(|at| (at, Moment::Unload(n))));
        moments.extend(module.given.iter().map(|given| (given.at, Moment::Global(n, given))));
    }
    for function in &state.functions {
        match state.pieces.contains_key(&function.module) {
            false => moments.push((function.at, Moment::Function(function))),
            true if (1..=until).contains(&function.at) => {
                moments.push((function.at, Moment::Piece(function)))
            }
            true => {}
        }
    }
    moments.extend(state.streams.iter().map(|stream| (stream.at, Moment::Stream(stream))));
    for thread in &state.threads {
        let own = |(device, at): &(usize, u64)| (*at, Moment::OwnStream(thread.index, *device));
        moments.extend(thread.streams.iter().map(own));
    }
    moments.sort_by_key(|(at, _)| *at);
    moments
}

fn stream(client: &mut Client, row: &StreamState, part: Option<Id>) -> Result<StreamObject> {
    let StreamState { device: index, flags, priority, at, .. } = *row;
    let on = part.map(|part| client.parts.get(part).map(|part| part.handle)).transpose();
    let on = on.map_err(device("find a green context"))?;
    let gpu = client.on(index).map_err(device("be used"))?;
    let handle = match on {
        Some(part) => gpu.stream_create_on(part, priority),
        None => gpu.stream_create(flags, priority),
    };
    let handle = handle.map_err(device("make a stream"))?;
    Ok(StreamObject { device: index, flags, priority, handle, busy: false, issued: 0, at, part })
}

#[cfg(test)]
mod tests {
    use rekindle_device::ModuleKind;

    use super::*;
    use crate::client::GlobalsBuffer;
    use crate::image::state::{CodeState, GlobalContent, ModuleState, ThreadState};

    #[test]
    fn everything_happens_in_its_old_order() {
        let module = |loaded_at, unloaded_at, given| ModuleState {
            id: None,
            device: 0,
            kind: ModuleKind::Library,
            options: Vec::new(),
            code: CodeState::Part(String::new()),
            loaded_at,
            unloaded_at,
            given,
            contents: Vec::new(),
        };
        let given = GlobalGiven { name: "g".to_string(), address: 1, bytes: 1, at: 4 };
        let stream = |id, at| StreamState { id, device: 0, flags: 0, priority: 0, at };
        let state = State {
            modules: vec![module(6, None, Vec::new()), module(2, Some(7), vec![given])],
            streams: vec![stream(Some(9), 5), stream(None, 1)],
            threads: vec![ThreadState { index: 3, name: String::new(), streams: vec![(0, 3)] }],
            ..State::default()
        };
        let order: Vec<_> = moments(&state)
            .into_iter()
            .map(|(at, moment)| match moment {
                Moment::Load(n) => (at, "load", n as u64),
                Moment::Unload(n) => (at, "unload", n as u64),
                Moment::Function(_) | Moment::Piece(_) => (at, "function", 0),
                Moment::Global(n, _) => (at, "global", n as u64),
                Moment::Stream(row) => (at, "stream", row.id.map_or(0, u64::from)),
                Moment::OwnStream(thread, _) => (at, "own stream", u64::from(thread)),
            })
            .collect();
        let expected = [
            (1, "stream", 0),
            (2, "load", 1),
            (3, "own stream", 3),
            (4, "global", 1),
            (5, "stream", 9),
            (6, "load", 0),
            (7, "unload", 1),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn pieces_have_a_turn_as_long_as_addresses_depend_on_it() {
        let module = |id, loaded_at, globals: u64| ModuleState {
            id: Some(id),
            device: 0,
            kind: ModuleKind::Library,
            options: Vec::new(),
            code: CodeState::Part(String::new()),
            loaded_at,
            unloaded_at: None,
            given: Vec::new(),
            contents: (0..globals)
                .map(|at| GlobalContent { name: "g".into(), address: at, bytes: 1 })
                .collect(),
        };
        let function = |id, module, at| FunctionState {
            id,
            module,
            name: "f".to_string(),
            at,
            attributes: Vec::new(),
            cache: None,
        };
        let turns = |globals| {
            let state = State {
                modules: vec![module(1, 1, 0), module(2, 4, globals), module(3, 8, 0)],
                // Pieces, one of them not loaded; kernels of modules that are whole.
                functions: [(1, 1, 2), (2, 1, 0), (3, 2, 6), (4, 1, 5), (5, 1, 7), (6, 3, 9), (7, 1, 10)]
                    .map(|(id, module, at)| function(id, module, at))
                    .into(),
                pieces: [(1, GlobalsBuffer::default())].into(),
                ..State::default()
            };
            moments(&state).into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(
            turns(1),
            [2, 4, 5, 6, 8, 9],
            "the last that has a say is a kernel of the module with a global"
        );
        assert_eq!(turns(0), [4, 6, 8, 9], "none has");
    }
}
