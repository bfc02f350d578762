//! Modules in the order in which they were loaded, what was looked up in them, and their globals' contents.

use std::collections::HashMap;
use std::path::Path;

use rekindle_device::{Code, GpuKind, Loaded};
use rekindle_store::{Image, PartKind};

use super::block::Block;
use super::error::{Error, Result, device};
use super::state::{CodeState, FunctionState, ModuleState, State, globals_part};
use crate::code::LoadedCode;
use crate::engine::{Engine, FunctionObject, GlobalGiven, ModuleObject};

/// Globals are filled through a block of this size.
const BLOCK: usize = 2 << 20;

/// Something that may have decided where globals lie, so that order matters.
enum Moment<'s> {
    Load(usize),
    Unload(usize),
    Function(&'s FunctionState),
    Global(usize, &'s GlobalGiven),
}

pub(super) fn modules(engine: &mut Engine, image: &Image, state: &State) -> Result<()> {
    let mut moments: Vec<(u64, Moment<'_>)> = Vec::new();
    for (n, module) in state.modules.iter().enumerate() {
        moments.push((module.loaded_at, Moment::Load(n)));
        moments.extend(module.unloaded_at.map(|at| (at, Moment::Unload(n))));
        moments.extend(module.given.iter().map(|given| (given.at, Moment::Global(n, given))));
    }
    moments.extend(state.functions.iter().map(|function| (function.at, Moment::Function(function))));
    moments.sort_by_key(|(at, _)| *at);
    // Modules that were unloaded have no id; they are kept apart until their moment comes.
    let mut passing: HashMap<usize, ModuleObject> = HashMap::new();
    for (_, moment) in moments {
        match moment {
            Moment::Load(n) => {
                let row = &state.modules[n];
                let module = load(engine, image, row)?;
                match row.id {
                    Some(id) => {
                        engine.modules.insert(id, module).map_err(device("number a module as before"))?
                    }
                    None => {
                        passing.insert(n, module);
                    }
                }
            }
            Moment::Unload(n) => {
                if let Some(module) = passing.remove(&n) {
                    let gpu = engine.on(module.device).map_err(device("be used"))?;
                    gpu.module_unload(module.handle).map_err(device("unload a module"))?;
                    engine.unloaded.push(module);
                }
            }
            Moment::Function(row) => function(engine, row)?,
            Moment::Global(n, given) => {
                let module = match state.modules[n].id {
                    Some(id) => engine.modules.get(id).map_err(device("find a module"))?,
                    None => match passing.get(&n) {
                        Some(module) => module,
                        None => continue,
                    },
                };
                check_global(engine, module, given)?;
            }
        }
    }
    contents(engine, image, state)
}

fn load(engine: &mut Engine, image: &Image, row: &ModuleState) -> Result<ModuleObject> {
    let code = match &row.code {
        CodeState::Part(name) => {
            let part = image.part(PartKind::Module, name);
            let part = part.ok_or_else(|| Error::State(format!("the image has no module {name}")))?;
            let mut bytes = vec![0; part.bytes as usize];
            image.read_part(part, 0, &mut bytes)?;
            LoadedCode::Owned(Code::new(bytes))
        }
        CodeState::File { path, offset, bytes, identity } => {
            let mapped = engine.code.map(Path::new(path), *offset, *bytes);
            let mapped = mapped.map_err(|source| Error::Io { action: "map", path: path.clone(), source })?;
            if mapped.identity() != identity {
                return Err(Error::Code {
                    path: path.clone(),
                    expected: identity.clone(),
                    found: mapped.identity().to_string(),
                });
            }
            LoadedCode::Mapped(mapped)
        }
    };
    let gpu = engine.on(row.device).map_err(device("be used"))?;
    let mut options = row.options.clone();
    if gpu.info().kind == GpuKind::Emulated
        && let Some(first) = row.contents.iter().map(|global| global.address).min()
    {
        options.push((rekindle_emulated::OPTION_MODULE_ADDRESS, first & !0xfff));
    }
    let loaded = gpu.module_load(code.code(), row.kind, &options);
    let Loaded { module: handle, .. } = loaded.map_err(|error| Error::Device {
        action: format!("load a module again ({})", error.log.trim()),
        code: error.code,
    })?;
    Ok(ModuleObject {
        device: row.device,
        kind: row.kind,
        options: row.options.clone(),
        code,
        handle,
        loaded_at: row.loaded_at,
        unloaded_at: row.unloaded_at,
        globals: row.given.clone(),
    })
}

fn function(engine: &mut Engine, row: &FunctionState) -> Result<()> {
    let module = engine.modules.get(row.module).map_err(device("find a module"))?;
    let (index, module) = (module.device, module.handle);
    let gpu = engine.on(index).map_err(device("be used"))?;
    let again = || {
        let handle = gpu.function(module, &row.name)?;
        for (attribute, value) in &row.attributes {
            gpu.set_function_attribute(handle, *attribute, *value)?;
        }
        if let Some(config) = row.cache {
            gpu.set_function_cache(handle, config)?;
        }
        Ok(handle)
    };
    let handle = again().map_err(device(format!("find kernel {} again", row.name)))?;
    let function = FunctionObject {
        device: index,
        module: row.module,
        name: row.name.clone(),
        handle,
        at: row.at,
        attributes: row.attributes.clone(),
        cache: row.cache,
    };
    engine.functions.insert(row.id, function).map_err(device("number a kernel as before"))
}

/// An address that the program holds must still be the global's.
fn check_global(engine: &Engine, module: &ModuleObject, given: &GlobalGiven) -> Result<()> {
    let gpu = &engine.context(module.device).map_err(device("be used"))?.device;
    let found = gpu.global(module.handle, &given.name);
    let (address, _) = found.map_err(device(format!("find the global {} again", given.name)))?;
    if address == given.address {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the program holds the address {:#x} of its global {}, and the GPU now puts it at {address:#x}; \
         nothing else can be done with this image on this worker",
        given.address, given.name
    )))
}

/// Fills globals and constants.
fn contents(engine: &mut Engine, image: &Image, state: &State) -> Result<()> {
    let mut blocks: Vec<Option<Block>> = engine.slots.iter().map(|_| None).collect();
    for row in state.modules.iter().filter(|row| !row.contents.is_empty()) {
        let Some(id) = row.id else { continue };
        let name = globals_part(row.loaded_at);
        let part = image.part(PartKind::GpuBuffer, &name);
        let part = part.ok_or_else(|| Error::State(format!("the image has no part {name}")))?;
        engine.bind(row.device).map_err(device("be used"))?;
        let gpu = engine.context(row.device).map_err(device("be used"))?.device.clone();
        let module = engine.modules.get(id).map_err(device("find a module"))?.handle;
        let block = match &mut blocks[row.device] {
            Some(block) => block,
            none => {
                none.insert(Block::new(gpu.clone(), BLOCK).map_err(device("pin a block of host memory"))?)
            }
        };
        let mut at = 0;
        for global in &row.contents {
            let found = gpu.global(module, &global.name);
            let (address, bytes) = found.map_err(device(format!("find the global {} again", global.name)))?;
            if bytes != global.bytes {
                let text = format!("the global {} has {bytes} bytes and had {}", global.name, global.bytes);
                return Err(Error::Refused(text));
            }
            let mut done = 0;
            while done < bytes {
                let count = (bytes - done).min(block.capacity() as u64);
                image.read_part(part, at, block.bytes(count as usize))?;
                let put = block.put(address + done, count as usize);
                put.map_err(device(format!("fill the global {}", global.name)))?;
                (done, at) = (done + count, at + count);
            }
        }
    }
    Ok(())
}
