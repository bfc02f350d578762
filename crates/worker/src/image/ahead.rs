//! Modules that are loaded before it is known which image they are for.
//!
//! A worker that waits for anybody loads modules that images have in common, named by what is in them, and a restore takes
//! those that it needs and loads only the others. Nobody may be able to tell: so only a module that is the same whenever
//! and wherever it is loaded is taken for that, and nothing else may depend on whether it is there
//! ([`Platform::modules_stand_alone`](rekindle_device::Platform::modules_stand_alone)). On such a platform those are the
//! modules without globals, which have no addresses. What no restore has taken is unloaded when the worker has a program,
//! and no image has it.
//!
//! Nobody waits for this: an image that it is done from can be removed meanwhile, which ends it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use rekindle_device::{Device, Loaded, Module};
use rekindle_protocol::fault;
use rekindle_protocol::worker::{CommonModule, Surveyed};
use rekindle_store::{Image, PartKind};

use super::course::Course;
use super::error::{Error, Result, device};
use super::restore::{check_gpus, read_state};
use super::restore_code;
use super::state::{CodeState, ModuleState, State};
use crate::client::Client;
use crate::code::LoadedCode;
use crate::dispatch::Dispatcher;

/// Modules that wait, by their keys.
#[derive(Default)]
pub(crate) struct Ahead {
    modules: HashMap<String, Waiting>,
    /// How many a restore has found here.
    found: u64,
}

struct Waiting {
    gpu: Arc<dyn Device>,
    handle: Module,
    code: LoadedCode,
}

impl Ahead {
    /// The code that waits under this key, if it is the image's own and need not be read again.
    pub(super) fn code(&self, key: &str) -> Option<LoadedCode> {
        match &self.modules.get(key)?.code {
            LoadedCode::Owned(code) => Some(LoadedCode::Owned(code.clone())),
            LoadedCode::Mapped(_) | LoadedCode::Pending(_) => None,
        }
    }

    /// The module under this key, which is the caller's from now on.
    pub(super) fn take(&mut self, key: &str) -> Option<Module> {
        let waiting = self.modules.remove(key)?;
        self.found += 1;
        Some(waiting.handle)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    /// How many were found since this was asked.
    pub(super) fn found(&mut self) -> u64 {
        std::mem::take(&mut self.found)
    }

    /// Unloads those with these keys.
    pub(crate) fn forget(&mut self, keys: &[String]) {
        keys.iter().filter_map(|key| self.modules.remove(key)).for_each(Waiting::unload);
    }

    /// Unloads all that nobody has taken, beside what follows.
    pub(crate) fn clear(&mut self) {
        let rest = std::mem::take(&mut self.modules);
        if !rest.is_empty() {
            std::thread::spawn(move || rest.into_values().for_each(Waiting::unload));
        }
    }
}

impl Waiting {
    fn unload(self) {
        let unloaded = self.gpu.bind().and_then(|()| self.gpu.module_unload(self.handle));
        if let Err(code) = unloaded {
            log::warn!("a module that nobody needed stays loaded: {code}");
        }
    }
}

/// Which of the image's modules may be loaded ahead here, and the marks of its [`Course`].
pub(crate) fn survey(dispatcher: &mut Dispatcher, image: &Path) -> Result<Surveyed> {
    let image = Image::open_unheld(image)?;
    let state = State::decode(&read_state(&image)?)?;
    if check_gpus(&dispatcher.client, &state).is_err() {
        return Ok(Surveyed::default());
    }
    let rows = state.modules.iter().filter(|row| stands_alone(&dispatcher.client, &state, row));
    let common = rows.map(|row| Ok(CommonModule { key: key(row)?, bytes: bytes(&image, row)? }));
    Ok(Surveyed { modules: common.collect::<Result<_>>()?, course: Course::of(&state)?.marks() })
}

/// Loads the image's module with this key, if it is not there yet.
pub(crate) fn load_ahead(dispatcher: &mut Dispatcher, image: &Path, wanted: &str) -> Result<()> {
    let Dispatcher { client, ahead, .. } = dispatcher;
    if client.board.is_some() || dispatcher.prepared.is_some() {
        return Err(Error::Refused("this worker is in use; load modules ahead into a new one".to_string()));
    }
    if ahead.modules.contains_key(wanted) {
        return Ok(());
    }
    let image = Image::open_unheld(image)?;
    fault::point("module-ahead").map_err(|fault| Error::Refused(fault.to_string()))?;
    let state = State::decode(&read_state(&image)?)?;
    for row in state.modules.iter().filter(|row| stands_alone(client, &state, row)) {
        if key(row)? != wanted {
            continue;
        }
        let code = restore_code::code(client, &image, row)?;
        if let (LoadedCode::Owned(code), CodeState::Part(name)) = (&code, &row.code)
            && blake3::hash(code.bytes()).to_hex().as_str() != name
        {
            return Err(Error::State(format!("module {name} has contents that its name is not of")));
        }
        let gpu = client.context(row.device).map_err(device("be used"))?.device.clone();
        client.bind(row.device).map_err(device("be used"))?;
        let Loaded { module: handle, .. } =
            restore_code::loaded(&*gpu, code.code().map_err(Error::State)?, row, &row.options)?;
        ahead.modules.insert(wanted.to_string(), Waiting { gpu, handle, code });
        return Ok(());
    }
    Err(Error::State(format!("the image has no module {wanted} that can be loaded ahead")))
}

/// Whether nothing here depends on when it is loaded, in a context that is there in any case.
fn stands_alone(client: &Client, state: &State, row: &ModuleState) -> bool {
    let has_addresses = !row.contents.is_empty() || !row.given.is_empty();
    let may =
        client.gpus.platform.modules_stand_alone() && row.id.is_some() && state.pieces_of(row).is_none();
    may && !has_addresses && client.context(row.device).is_ok()
}

/// Names what is loaded: the code by its contents, and how.
pub(super) fn key(row: &ModuleState) -> Result<String> {
    let told = (row.device, row.kind, &row.options, &row.code);
    let bytes = postcard::to_extend(&told, Vec::new()).map_err(|error| Error::State(error.to_string()))?;
    Ok(blake3::hash(&bytes).to_hex().to_string())
}

fn bytes(image: &Image, row: &ModuleState) -> Result<u64> {
    match &row.code {
        CodeState::File { bytes, .. } => Ok(*bytes),
        CodeState::Part(name) => {
            let part = image.part(PartKind::Module, name);
            Ok(part.ok_or_else(|| Error::State(format!("the image has no module {name}")))?.bytes)
        }
    }
}
