//! The state of a GPU half without what memory holds: what a worker goes on from that takes the place of one which was lost. The
//! contents are in a base ([`crate::ondemand`]).
//!
//! The program runs, and nothing of it is under way on the GPU.

use std::path::{Path, PathBuf};

use rekindle_cuda::{CUDA_ERROR_UNKNOWN, CuResult};
use rekindle_store::{Staging, Store};

use super::code_pre_copy::CodePreCopy;
use super::error::{Error, Result, device};
use super::graph_part;
use super::kernels;
use super::save::{check_globals, devices, graphs, put_state, streams_and_events};
use super::save_code;
use super::save_memory::{self, MemoryFate, Window};
use super::state::State;
use super::timer::Timer;
use crate::client::Client;

/// Writes it as an image of this name, and says where that lies.
pub(crate) fn save_bare(client: &mut Client, store: &Path, name: &str) -> Result<PathBuf> {
    check_globals(client)?;
    let store = Store::open_transient(store)?;
    let draft = store.begin(name)?;
    let staging = Staging::open(draft.path())?;
    let mut state = State {
        board: client.board_name.clone(),
        history: client.turns.last(),
        placements: client.gpus.placements(),
        slice: client.gpus.regions.slice(),
        ..State::default()
    };
    state.devices = devices(client)?;
    streams_and_events(client, &mut state)?;
    // Threads take it themselves: their rings are where they were.
    state.uncollected.clear();
    let graphs = graph_part::write(&staging, graphs(client, &mut state));
    let kernels = kernels::write(client, &staging, &mut state)?;
    client.trim_all().map_err(device("free what the program has freed"))?;
    save_memory::plan(client, &staging, &mut state, MemoryFate::Elsewhere)?;
    let mut parts = save_code::modules(client, &staging, &mut state, CodePreCopy::default())?;
    parts.extend(kernels.end()?);
    parts.extend(graphs.end()?);
    parts.push(put_state(&staging, &state, &mut Timer::start())?);
    draft.adopt(parts)?;
    Ok(draft.commit()?.path().to_path_buf())
}

/// Memory that the program maps itself, where it can be copied from and to.
#[derive(Default)]
pub(crate) struct Physical(Vec<Window>);

impl Physical {
    pub(crate) fn open(client: &mut Client) -> rekindle_device::Result<Physical> {
        save_memory::map_physical(client).map(Physical).map_err(code_of)
    }

    pub(crate) fn address(&self, serial: u64) -> Option<u64> {
        self.0.iter().find(|window| window.serial == serial).map(|window| window.location.address)
    }

    pub(crate) fn close(self, client: &mut Client) -> rekindle_device::Result<()> {
        save_memory::unmap_windows(client, &self.0).map_err(code_of)
    }
}

fn code_of(error: Error) -> CuResult {
    match error {
        Error::Device { code, .. } => code,
        _ => CUDA_ERROR_UNKNOWN,
    }
}

/// Removes all whose names begin so but these.
pub(crate) fn forget_bare(store: &Path, beginning: &str, but: &[PathBuf]) {
    let removed = Store::open_transient(store).and_then(|store| {
        let names = store.names_with(beginning)?;
        let is_kept =
            |name: &String| but.iter().any(|path| path.file_name().is_some_and(|file| file == name.as_str()));
        let gone: Vec<String> = names.into_iter().filter(|name| !is_kept(name)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        gone.iter().try_for_each(|name| store.remove(name))?;
        store.collect().map(drop)
    });
    if let Err(error) = removed {
        log::debug!("states that nothing is mended with any more stay in {}: {error}", store.display());
    }
}
