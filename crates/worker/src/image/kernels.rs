//! Kernels of modules in pieces: an image has those that were loaded, as they were cut, and after a restore they are loaded
//! beside the program, those first that it will probably launch first.
//!
//! A launch that comes to one before loads it itself, and does not wait for the others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rekindle_device::{Code, KernelSettings, Piece};
use rekindle_store::{Part, PartKind, Staging};
use serde_json::json;

use super::beside::Beside;
use super::code_parts::CodeParts;
use super::error::{Error, Result, device};
use super::state::{KernelState, State};
use crate::client::{Body, Client, Pieces, Turn, load};
use crate::dispatch::Remote;

pub(super) const PART: &str = "kernels";
/// Operations within which a kernel was launched that the next requests will probably launch too.
const RECENT: u64 = 20_000;

/// Notes what is loaded, and what was loaded before an image, and begins to write it to a part.
pub(super) fn write(client: &Client, staging: &Staging, state: &mut State) -> Result<Beside<Option<Part>>> {
    let newest = client.functions.iter().map(|(_, function)| function.used).max().unwrap_or_default();
    let mut found = Vec::new();
    for (_, function) in client.functions.iter() {
        let module = client.modules.get(function.module).map_err(device("find a module"))?;
        let Some(piece) = module.body.pieces().and_then(|pieces| pieces.code(&function.name)) else {
            continue;
        };
        let is_old = function.used.saturating_add(RECENT) < newest;
        // What an image brought and nobody has used since comes last.
        let turn = client.turn(function).map_err(device("find a module"))?;
        let turn = if turn > 0 { turn } else { u64::MAX };
        found.push(((is_old, turn), function.module, &function.name, piece));
    }
    // What was loaded with its module, and not looked up.
    for (module, object) in client.modules.iter() {
        let kernels = object.body.pieces().into_iter().flat_map(Pieces::kernels);
        found.extend(kernels.map(|(name, piece)| ((true, u64::MAX), module, name, piece)));
    }
    found.sort_by_key(|(order, module, name, _)| (*order, *module, *name));
    let (mut known, mut codes) = (HashSet::new(), Vec::new());
    for (_, module, name, piece) in found {
        if known.insert((module, name)) {
            let (name, options) = (name.clone(), piece.options.clone());
            let bytes = piece.code.bytes().len() as u64;
            codes.push(piece.code.clone());
            if piece.is_sharable {
                state.sharable.insert(state.kernels.len());
            }
            state.kernels.push(KernelState { module, name, bytes, options });
        }
    }
    let staging = staging.clone();
    Ok(Beside::begin(move || {
        let contents = codes.iter().map(Code::bytes).collect::<Vec<_>>().concat();
        let part = (!contents.is_empty()).then(|| staging.put(PartKind::Module, PART, json!({}), &contents));
        Ok(part.transpose()?)
    }))
}

/// Gives modules in pieces what the image has of them; so many bytes.
pub(super) fn bring(client: &mut Client, state: &State, parts: &CodeParts) -> Result<u64> {
    if state.kernels.is_empty() {
        return Ok(0);
    }
    let part = parts.get(PART).ok_or_else(|| Error::State(format!("the image has no part {PART}")))?;
    let contents = part.wait().map_err(Error::PendingCode)?;
    let found = contents.bytes().len() as u64;
    let total = state.kernels.iter().try_fold(0u64, |sum, row| sum.checked_add(row.bytes));
    if total != Some(found) {
        let text = format!("the part {PART} has {found} bytes, which are not those of its kernels");
        return Err(Error::State(text));
    }
    let mut at = 0;
    for (number, row) in state.kernels.iter().enumerate() {
        let range = at..at + row.bytes as usize;
        at = range.end;
        let code = Code::new(Slice { contents: contents.clone(), range });
        let is_sharable = state.sharable.contains(&number);
        let piece = Arc::new(Piece { code, options: row.options.clone(), is_sharable });
        let module = client.modules.get_mut(row.module).map_err(device("find a module"))?;
        if let Body::Pieces(pieces) = &mut module.body {
            pieces.bring(&row.name, piece);
        }
    }
    Ok(found)
}

/// Loads them, but for those that were loaded in their turn, on a thread of its own. With several GPUs the program is to run when
/// that has ended.
pub(super) fn load_beside(client: &Client, state: &State, remote: Remote) -> Option<Beside<()>> {
    let functions = client.functions.iter().map(|(_, function)| function);
    let settings: HashMap<_, _> =
        functions.map(|function| ((function.module, &function.name), &function.settings)).collect();
    let mut rows = Vec::new();
    for row in &state.kernels {
        let Ok(module) = client.modules.get(row.module) else { continue };
        let Ok(context) = client.context(module.device) else { continue };
        let Some(piece) = module.body.pieces().and_then(|pieces| pieces.not_loaded(&row.name)) else {
            continue;
        };
        let settings: KernelSettings =
            settings.get(&(row.module, &row.name)).copied().cloned().unwrap_or_default();
        rows.push((context.device.clone(), (row.module, row.name.clone()), piece.clone(), settings));
    }
    if rows.is_empty() {
        return None;
    }
    let turns = client.turns.clone();
    turns.announce(rows.iter().map(|(_, kernel, ..)| kernel.clone()));
    let load = move || {
        for (gpu, kernel, piece, settings) in rows {
            let load = |turn: &mut Turn<'_>| load(turn, &*gpu, (&kernel.1, piece, &settings));
            match gpu.bind().and_then(|()| turns.load_beside(&kernel, load)) {
                Ok(true) => remote.run(move |dispatcher| dispatcher.client.adopt(&*gpu, &kernel)),
                Ok(false) => {}
                // The launch that needs it says so to the program.
                Err(code) => log::warn!("kernel {} was not loaded beside the program: {code}", kernel.1),
            }
        }
        Ok(())
    };
    if client.has_several_gpus() {
        return Some(Beside::begin(load));
    }
    std::thread::spawn(load);
    None
}

/// A piece's bytes among those of all.
struct Slice {
    contents: Code,
    range: std::ops::Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        &self.contents.bytes()[self.range.clone()]
    }
}
