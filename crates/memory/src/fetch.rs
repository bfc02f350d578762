//! An object's bytes, in parallel ranges, all of the same version.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectMeta};
use rekindle_protocol::data::{Problem, ProblemKind, Version};
use rekindle_protocol::fault;
use tokio::task::JoinSet;

use crate::objects::Object;
use crate::store::{self, ObjectLocation};
use crate::transport::Landing;

/// What is asked for at once.
const PIECE: u64 = 8 << 20;
/// So many are under way together.
const TOGETHER: usize = 16;
/// Of a piece, as soon as so much more is there, it is said to be: who copies it elsewhere does that meanwhile.
const STEP: u64 = 2 << 20;

/// The version that a store speaks of.
pub fn version_of(meta: &ObjectMeta) -> Version {
    let written = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
    Version { bytes: meta.size, tag: meta.e_tag.clone(), written }
}

/// Whether a store speaks of this version. Answers about ranges do not say the time as exactly everywhere.
pub fn is_of(version: &Version, meta: &ObjectMeta) -> bool {
    let other = version_of(meta);
    version.bytes == other.bytes
        && match (&version.tag, &other.tag) {
            (Some(own), Some(other)) => own == other,
            _ => version.written / 1_000_000_000 == other.written / 1_000_000_000,
        }
}

/// What the store has now.
pub async fn look(name: &str, location: &ObjectLocation) -> Result<Version, Problem> {
    injected(name, "data-look")?;
    let options = GetOptions { head: true, ..GetOptions::default() };
    let found = location.store.get_opts(&location.path, options).await;
    found.map(|found| version_of(&found.meta)).map_err(|error| store::problem(name, &error))
}

/// A range of what the store has now, as far as it goes, and how many bytes that has.
pub async fn read(
    name: &str,
    location: &ObjectLocation,
    offset: u64,
    bytes: u64,
) -> Result<(u64, Vec<u8>), Problem> {
    let range = Some(GetRange::Bounded(offset..offset.saturating_add(bytes)));
    let options = GetOptions { range, ..GetOptions::default() };
    let failed = |error| store::problem(name, &error);
    let found = location.store.get_opts(&location.path, options).await.map_err(failed)?;
    let total = found.meta.size;
    let bytes = found.bytes().await.map_err(failed)?;
    Ok((total, bytes.to_vec()))
}

/// Fills the object's memory, and says what of it is there. Each piece is a task of its own: what takes most time is to copy,
/// and that several processors do together.
pub async fn fetch(name: &str, location: &ObjectLocation, object: &Arc<Object>) -> Result<(), Problem> {
    let (name, bytes): (Arc<str>, _) = (name.into(), object.version.bytes);
    let mut left = (0..bytes.div_ceil(PIECE)).map(|number| number * PIECE);
    let mut under_way = JoinSet::new();
    loop {
        for offset in left.by_ref().take(TOGETHER - under_way.len()) {
            let (name, location, object) = (name.clone(), location.clone(), object.clone());
            let length = PIECE.min(bytes - offset);
            under_way.spawn(async move { piece(&name, &location, &object, offset, length).await });
        }
        let Some(done) = under_way.join_next().await else { return Ok(()) };
        done.unwrap_or_else(|error| {
            let sentence = format!("{name} cannot be read: the task that reads it {error}; load it again");
            Err(Problem::new(ProblemKind::Unavailable, sentence))
        })?;
    }
}

async fn piece(
    name: &str,
    location: &ObjectLocation,
    object: &Arc<Object>,
    offset: u64,
    bytes: u64,
) -> Result<(), Problem> {
    injected(name, "data-piece")?;
    let mut options = GetOptions {
        range: Some(GetRange::Bounded(offset..offset + bytes)),
        if_match: object.version.tag.clone(),
        ..GetOptions::default()
    };
    options.extensions.insert(Landing(object.clone()));
    let failed = |error| store::problem(name, &error);
    let found = location.store.get_opts(&location.path, options).await.map_err(failed)?;
    if !is_of(&object.version, &found.meta) {
        return Err(Problem::new(ProblemKind::Changed, store::changed(name)));
    }
    match found.payload {
        GetResultPayload::File(file, _) => {
            let object = object.clone();
            let read = move || copy(&file, &object, offset, bytes);
            let read = tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other);
            if read.and_then(|read| read).is_err() {
                return Err(short(name));
            }
        }
        GetResultPayload::Stream(mut chunks) => {
            let (mut at, mut told) = (offset, offset);
            while let Some(chunk) = chunks.try_next().await.map_err(failed)? {
                let end = at + chunk.len() as u64;
                if end > offset + bytes {
                    return Err(short(name));
                }
                object.memory.write(at, &chunk).map_err(|error| no_memory(name, &error))?;
                at = end;
                if at - told >= STEP {
                    object.add(told, at - told);
                    told = at;
                }
            }
            if at != offset + bytes {
                return Err(short(name));
            }
            object.add(told, at - told);
        }
    }
    Ok(())
}

/// Copies a range of a file to the same place in memory.
fn copy(file: &File, object: &Object, offset: u64, bytes: u64) -> std::io::Result<()> {
    let mut buffer = vec![0; STEP.min(bytes) as usize];
    for at in (offset..offset + bytes).step_by(STEP as usize) {
        let buffer = &mut buffer[..STEP.min(offset + bytes - at) as usize];
        file.read_exact_at(buffer, at)?;
        object.memory.write(at, buffer)?;
        object.add(at, buffer.len() as u64);
    }
    Ok(())
}

fn no_memory(name: &str, error: &std::io::Error) -> Problem {
    let sentence = format!(
        "there is no memory for {name} ({error}); free some, or start rekindled with less --data-memory"
    );
    Problem::new(ProblemKind::Memory, sentence)
}

fn short(name: &str) -> Problem {
    let sentence = format!(
        "{name} did not give as many bytes as it was said to have; look whether its store works, or whether somebody \
         writes it"
    );
    Problem::new(ProblemKind::Unavailable, sentence)
}

fn injected(name: &str, point: &'static str) -> Result<(), Problem> {
    if !fault::is_set(point) {
        return Ok(());
    }
    // Other tasks go on while this one hangs.
    tokio::task::block_in_place(|| fault::point(point)).map_err(|fault| {
        Problem::new(ProblemKind::Unavailable, format!("{name} cannot be read ({fault}); look at its store"))
    })
}
