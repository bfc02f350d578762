//! Code that an image has itself, read on several threads beside the restore and the program: a program's modules come to
//! hundreds of megabytes, each byte of which is checked, and after a restore hardly any of it is needed but the kernels
//! that were loaded before.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rekindle_device::Code;
use rekindle_store::{Image, PartKind};

use super::error::{Error, Result};
use super::state::{CodeState, State};
use crate::code::PendingCode;

const MOST_THREADS: usize = 8;

/// By the names of the parts.
#[derive(Default)]
pub(super) struct CodeParts(HashMap<String, Arc<PendingCode>>);

impl CodeParts {
    /// Begins to read `first`, if it is there, and the code of modules in pieces. The image is in use until all is read.
    pub(super) fn begin(image: Image, state: &State, first: &str) -> CodeParts {
        let in_pieces = state.modules.iter().filter(|row| state.pieces_of(row).is_some());
        let mut names: Vec<String> = in_pieces
            .filter_map(|row| match &row.code {
                CodeState::Part(name) => Some(name.clone()),
                CodeState::File { .. } => None,
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        if image.part(PartKind::Module, first).is_some() {
            names.insert(0, first.to_string());
        }
        let wanted: Vec<_> = names.into_iter().map(|name| (name, Arc::<PendingCode>::default())).collect();
        let parts = CodeParts(wanted.iter().cloned().collect());
        if !wanted.is_empty() {
            std::thread::spawn(move || read_all(&image, &wanted));
        }
        parts
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<PendingCode>> {
        self.0.get(name)
    }
}

fn read_all(image: &Image, wanted: &[(String, Arc<PendingCode>)]) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..(cores / 2).clamp(1, MOST_THREADS).min(wanted.len()) {
            scope.spawn(|| {
                while let Some((name, pending)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let code = read(image, name).map_err(Arc::new);
                    if let Err(error) = &code {
                        log::error!("code of the image cannot be read: {error}");
                    }
                    pending.set(code);
                }
            });
        }
    });
}

pub(super) fn read(image: &Image, name: &str) -> Result<Code> {
    let part = image.part(PartKind::Module, name);
    let part = part.ok_or_else(|| Error::State(format!("the image has no module {name}")))?;
    let mut bytes = vec![0; part.bytes as usize];
    image.read_part(part, 0, &mut bytes)?;
    Ok(Code::new(bytes))
}
