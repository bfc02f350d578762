//! The code of modules, and those in pieces as they were.

use std::path::Path;
use std::sync::OnceLock;

use rekindle_device::{Function, KernelSettings};
use rekindle_store::Image;

use super::code_parts::{self, CodeParts};
use super::error::{Error, Result, device};
use super::kernels;
use super::state::{CodeState, FunctionState, ModuleState, State};
use crate::client::{Body, Client, FunctionObject, ModuleObject, ModuleWriteSets, Pieces};
use crate::code::LoadedCode;

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

/// What the program had set for a kernel.
pub(super) fn settings(row: &FunctionState) -> KernelSettings {
    KernelSettings { attributes: row.attributes.clone(), cache: row.cache }
}

/// Without a handle it is loaded when it is first used.
pub(super) fn insert(client: &mut Client, row: &FunctionState, handle: Option<Function>) -> Result<()> {
    let function = FunctionObject {
        device: client.modules.get(row.module).map_err(device("find a module"))?.device,
        module: row.module,
        name: row.name.clone(),
        handle,
        bank: None,
        used: 0,
        at: row.at,
        settings: settings(row),
        write_set: OnceLock::new(),
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
        write_sets: ModuleWriteSets::of(code.clone()),
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
    client.repeat(row.id, row.at).map_err(device(format!("load kernel {} again", row.name)))
}

/// All modules in pieces and their kernels, of which nothing is loaded: bytes of the kernels that are there to be loaded.
pub(super) fn pieces(client: &mut Client, image: &Image, state: &State, parts: &CodeParts) -> Result<u64> {
    for row in state.modules.iter().filter(|row| state.pieces_of(row).is_some()) {
        let Some(id) = row.id else { continue };
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
        insert(client, row, None)?;
    }
    client.constants_told |= !state.constants_told.is_empty();
    kernels::bring(client, state, parts)
}
