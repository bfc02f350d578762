//! Code that an image has itself, read on several threads beside what else a restore does: a program's modules come to
//! hundreds of megabytes, each byte of which is checked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use rekindle_device::Code;
use rekindle_store::{Image, PartKind};

use super::error::{Error, Result};
use super::state::{CodeState, State};

const MOST_THREADS: usize = 8;

/// By the names of the parts.
type Parts = HashMap<String, Result<Code>>;

pub(super) struct CodeParts(JoinHandle<Parts>);

impl CodeParts {
    /// Begins to read the code of modules in pieces.
    pub(super) fn begin(image: Image, state: &State) -> CodeParts {
        let in_pieces = state.modules.iter().filter(|row| state.pieces_of(row).is_some());
        let mut names: Vec<String> = in_pieces
            .filter_map(|row| match &row.code {
                CodeState::Part(name) => Some(name.clone()),
                CodeState::File { .. } => None,
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        CodeParts(std::thread::spawn(move || read_all(&image, &names)))
    }

    pub(super) fn wait(self) -> Result<Parts> {
        self.0.join().map_err(|_| Error::Refused("a thread that read code panicked".to_string()))
    }
}

fn read_all(image: &Image, names: &[String]) -> Parts {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Parts::new()));
    std::thread::scope(|scope| {
        for _ in 0..(cores / 2).clamp(1, MOST_THREADS).min(names.len()) {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let code = read(image, name);
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), code);
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read(image: &Image, name: &str) -> Result<Code> {
    let part = image.part(PartKind::Module, name);
    let part = part.ok_or_else(|| Error::State(format!("the image has no module {name}")))?;
    let mut bytes = vec![0; part.bytes as usize];
    image.read_part(part, 0, &mut bytes)?;
    Ok(Code::new(bytes))
}
