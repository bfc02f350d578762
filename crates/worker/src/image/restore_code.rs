//! One module, kernel or global as it was; and the contents of globals.

use std::path::Path;

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{Code, Device, Function, GpuKind, Loaded, Module};
use rekindle_store::{Image, PartKind};

use super::ahead::{self, Ahead};
use super::block::{Block, Blocks};
use super::code_parts::{self, CodeParts};
use super::error::{Error, Result, device};
use super::state::{CodeState, FunctionState, ModuleState, State, globals_part};
use super::{kernels, save_memory};
use crate::client::{Body, Client, FunctionObject, GlobalGiven, ModuleObject, Pieces};
use crate::code::LoadedCode;

/// Globals are filled through a block of this size.
const BLOCK: usize = 2 << 20;

/// A module as it was; the one that waits, if it does.
pub(super) fn load(
    client: &mut Client,
    image: &Image,
    (state, row): (&State, &ModuleState),
    ahead: &mut Ahead,
) -> Result<ModuleObject> {
    let waiting = match ahead.is_empty() {
        true => None,
        false => Some(ahead::key(row)?),
    };
    let code = match waiting.as_ref().and_then(|key| ahead.code(key)) {
        Some(code) => code,
        None => code(client, image, row)?,
    };
    let object = |code, handle| ModuleObject {
        body: Body::Whole(handle),
        whole: row.id.and_then(|id| state.whole.get(&id).cloned()),
        device: row.device,
        kind: row.kind,
        options: row.options.clone(),
        code,
        loaded_at: row.loaded_at,
        unloaded_at: row.unloaded_at,
        globals: row.given.clone(),
    };
    if let Some(handle) = waiting.and_then(|key| ahead.take(&key)) {
        return Ok(object(code, handle));
    }
    let gpu = client.on(row.device).map_err(device("be used"))?;
    let mut options = row.options.clone();
    if gpu.info().kind == GpuKind::Emulated
        && let Some(first) = row.contents.iter().map(|global| global.address).min()
    {
        options.push((rekindle_emulated::OPTION_MODULE_ADDRESS, first & !0xfff));
    }
    let Loaded { module: handle, .. } = loaded(gpu, code.code().map_err(Error::State)?, row, &options)?;
    Ok(object(code, handle))
}

pub(super) fn loaded(
    gpu: &dyn Device,
    code: Code,
    row: &ModuleState,
    options: &[(i32, u64)],
) -> Result<Loaded> {
    gpu.module_load(code, row.kind, options).map_err(|error| Error::Device {
        action: format!("load a module again ({})", error.log.trim()),
        code: error.code,
    })
}

/// The code of a module: what the image has, or a file that is the one it was.
pub(super) fn code(client: &mut Client, image: &Image, row: &ModuleState) -> Result<LoadedCode> {
    Ok(match &row.code {
        CodeState::Part(name) => LoadedCode::Owned(code_parts::read(image, name)?),
        CodeState::File { path, offset, bytes, identity } => {
            let mapped = client.gpus.code().map(Path::new(path), *offset, *bytes);
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
    })
}

pub(super) fn function(client: &mut Client, row: &FunctionState) -> Result<()> {
    let module = client.modules.get(row.module).map_err(device("find a module"))?;
    let (index, module) = (module.device, whole(module)?);
    let gpu = client.on(index).map_err(device("be used"))?;
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
    insert(client, row, Some(handle))
}

/// Without a handle it is loaded when it is first used.
fn insert(client: &mut Client, row: &FunctionState, handle: Option<Function>) -> Result<()> {
    let function = FunctionObject {
        device: client.modules.get(row.module).map_err(device("find a module"))?.device,
        module: row.module,
        name: row.name.clone(),
        handle,
        bank: None,
        used: 0,
        at: row.at,
        attributes: row.attributes.clone(),
        cache: row.cache,
    };
    client.functions.insert(row.id, function).map_err(device("number a kernel as before"))
}

/// A module in pieces, of which nothing is loaded: its globals are among the buffers.
pub(super) fn in_pieces((state, row): (&State, &ModuleState), code: LoadedCode) -> ModuleObject {
    let globals = state.pieces_of(row).unwrap_or_default();
    let told = row.id.is_some_and(|id| state.constants_told.contains(&id));
    ModuleObject {
        device: row.device,
        kind: row.kind,
        options: row.options.clone(),
        code,
        body: Body::Pieces(Pieces::restored(globals, told)),
        loaded_at: row.loaded_at,
        unloaded_at: None,
        globals: Vec::new(),
        whole: None,
    }
}

/// A kernel of a module in pieces, loaded in its turn, since it shapes the addresses of others.
pub(super) fn piece(client: &mut Client, row: &FunctionState) -> Result<()> {
    insert(client, row, None)?;
    client.kernel(row.id).map_err(device(format!("load kernel {} again", row.name)))?;
    client.functions.get_mut(row.id).map_err(device("find a kernel"))?.at = row.at;
    Ok(())
}

/// All modules in pieces and their kernels that had no turn.
/// Bytes of the kernels that are there to be loaded.
pub(super) fn pieces(client: &mut Client, image: &Image, state: &State, parts: &CodeParts) -> Result<u64> {
    for row in state.modules.iter().filter(|row| state.pieces_of(row).is_some()) {
        let Some(id) = row.id.filter(|id| client.modules.is_free(*id)) else { continue };
        let code = match &row.code {
            CodeState::Part(name) => match parts.get(name) {
                Some(pending) => LoadedCode::Pending(pending.clone()),
                None => code(client, image, row)?,
            },
            CodeState::File { .. } => code(client, image, row)?,
        };
        let module = in_pieces((state, row), code);
        client.modules.insert(id, module).map_err(device("number a module as before"))?;
    }
    let kernels = state.functions.iter().filter(|row| state.pieces.contains_key(&row.module));
    for row in kernels {
        if client.functions.is_free(row.id) {
            insert(client, row, None)?;
        }
    }
    client.constants_told |= !state.constants_told.is_empty();
    kernels::bring(client, state, parts)
}

/// What the driver has of a module that is not in pieces.
pub(super) fn whole(module: &ModuleObject) -> Result<Module> {
    module.body.whole().ok_or(CUDA_ERROR_INVALID_VALUE).map_err(device("find a module"))
}

/// An address that the program holds must still be the global's.
pub(super) fn check_global(client: &Client, module: &ModuleObject, given: &GlobalGiven) -> Result<()> {
    let gpu = &client.context(module.device).map_err(device("be used"))?.device;
    let found = gpu.global(whole(module)?, &given.name);
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
pub(super) fn contents(client: &mut Client, image: &Image, state: &State) -> Result<()> {
    if state.modules.iter().all(|row| row.contents.is_empty()) {
        return Ok(());
    }
    let gpus = save_memory::gpus(client);
    let any = client.any_device().map_err(device("be used"))?;
    let mut blocks = Blocks::new(any, BLOCK, 1).map_err(device("pin a block of host memory"))?;
    let mut blocks = blocks.split();
    for row in state.modules.iter().filter(|row| !row.contents.is_empty()) {
        let Some(id) = row.id else { continue };
        let name = globals_part(row.loaded_at);
        let part = image.part(PartKind::GpuBuffer, &name);
        let part = part.ok_or_else(|| Error::State(format!("the image has no part {name}")))?;
        client.bind(row.device).map_err(device("be used"))?;
        let module = whole(client.modules.get(id).map_err(device("find a module"))?)?;
        let (Some(block), Some(Some(gpu))) = (blocks.first_mut(), gpus.get(row.device)) else { continue };
        let mut at = 0;
        for global in &row.contents {
            let found = gpu.device.global(module, &global.name);
            let (address, bytes) = found.map_err(device(format!("find the global {} again", global.name)))?;
            if bytes != global.bytes {
                let text = format!("the global {} has {bytes} bytes and had {}", global.name, global.bytes);
                return Err(Error::Refused(text));
            }
            let mut done = 0;
            while done < bytes {
                let count = (bytes - done).min(block.capacity() as u64);
                let fill = |code| device(format!("fill the global {}", global.name))(code);
                image.read_part(part, at, block.bytes(count as usize).map_err(fill)?)?;
                block.put(gpu, address + done, count as usize).map_err(fill)?;
                (done, at) = (done + count, at + count);
            }
        }
    }
    blocks.iter_mut().try_for_each(Block::wait).map_err(device("fill a global"))
}
