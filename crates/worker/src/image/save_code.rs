//! Modules: their code, their globals, and what was looked up in them.

use rekindle_device::Global;
use rekindle_store::{Part, PartKind, Staging};
use serde_json::json;

use super::block::{Block, Blocks, Gpu};
use super::code_pre_copy::CodePreCopy;
use super::error::{Error, Result, device};
use super::save_memory;
use super::state::{CodeState, FunctionState, GlobalContent, ModuleState, State, globals_part};
use crate::client::{Client, ModuleObject};
use crate::code::LoadedCode;

/// Globals are fetched through a block of this size.
const BLOCK: usize = 2 << 20;

pub(super) fn modules(
    client: &mut Client,
    staging: &Staging,
    state: &mut State,
    mut code: CodePreCopy,
) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let gpus = save_memory::gpus(client);
    let mut blocks = None;
    let loaded: Vec<u32> = client.modules.iter().map(|(id, _)| id).collect();
    for id in loaded {
        let index = client.modules.get(id).map_err(device("find a module"))?.device;
        let gpu = client.context(index).map_err(device("be used"))?.device.clone();
        client.bind(index).map_err(device("be used"))?;
        let module = client.modules.get(id).map_err(device("find a module"))?;
        let globals = match module.body.whole() {
            Some(handle) => gpu.globals(handle).map_err(device("list a module's globals"))?,
            // They are buffers.
            None => Vec::new(),
        };
        let mut row = describe(module, Some(id), staging, &mut code)?;
        if !globals.is_empty() {
            let blocks = match &mut blocks {
                Some(blocks) => blocks,
                none => {
                    none.insert(Blocks::new(gpu, BLOCK, 1).map_err(device("pin a block of host memory"))?)
                }
            };
            let mut block = blocks.split();
            let (Some(block), Some(Some(gpu))) = (block.first_mut(), gpus.get(index)) else { continue };
            parts.push(contents(staging, &globals, row.loaded_at, index, gpu, block)?);
        }
        row.contents = globals
            .into_iter()
            .map(|Global { name, address, bytes, .. }| GlobalContent { name, address, bytes })
            .collect();
        let module = client.modules.get(id).map_err(device("find a module"))?;
        if let Some(pieces) = module.body.pieces() {
            state.pieces.insert(id, pieces.globals);
            state.constants_told.extend(pieces.constants_told.then_some(id));
        }
        state.whole.extend(module.whole.clone().map(|word| (id, word)));
        state.modules.push(row);
    }
    for module in &client.unloaded {
        state.modules.push(describe(module, None, staging, &mut code)?);
    }
    let described = client.functions.iter().map(|(id, function)| {
        Ok(FunctionState {
            id,
            module: function.module,
            name: function.name.clone(),
            at: client.turn(function).map_err(device("find a module"))?,
            attributes: function.settings.attributes.clone(),
            cache: function.settings.cache,
        })
    });
    state.functions = described.collect::<Result<_>>()?;
    let named = state.modules.iter().filter_map(|row| match &row.code {
        CodeState::Part(name) => Some(name.clone()),
        CodeState::File { .. } => None,
    });
    parts.extend(code.parts(staging, named));
    Ok(parts)
}

fn describe(
    module: &ModuleObject,
    id: Option<u32>,
    staging: &Staging,
    ahead: &mut CodePreCopy,
) -> Result<ModuleState> {
    let code = match &module.code {
        LoadedCode::Mapped(mapped) => CodeState::File {
            path: mapped.path().to_string_lossy().into_owned(),
            offset: mapped.offset,
            bytes: mapped.bytes,
            identity: mapped.identity().to_string(),
        },
        given => CodeState::Part(ahead.name(staging, &given.code().map_err(Error::PendingCode)?)?),
    };
    Ok(ModuleState {
        id,
        device: module.device,
        kind: module.kind,
        options: module.options.clone(),
        code,
        loaded_at: module.loaded_at,
        unloaded_at: module.unloaded_at,
        given: module.globals.clone(),
        contents: Vec::new(),
    })
}

/// One part with all globals of a module, one after the other.
fn contents(
    staging: &Staging,
    globals: &[Global],
    loaded_at: u64,
    index: usize,
    gpu: &Gpu,
    block: &mut Block<'_>,
) -> Result<Part> {
    let total = globals.iter().map(|global| global.bytes).sum();
    let attributes = json!({ "device": index, "globals": globals.len() });
    let writer = staging.part(PartKind::GpuBuffer, &globals_part(loaded_at), attributes, total)?;
    let mut at = 0;
    for global in globals {
        let mut done = 0;
        while done < global.bytes {
            let count = (global.bytes - done).min(block.capacity() as u64);
            let bytes = block
                .fetch(gpu, global.address + done, count as usize)
                .and_then(|()| block.bytes(count as usize))
                .map_err(|code| Error::Device { action: format!("read the global {}", global.name), code })?;
            writer.write_at(at, bytes)?;
            (done, at) = (done + count, at + count);
        }
    }
    Ok(writer.finish()?)
}
