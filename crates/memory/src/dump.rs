//! What a program has written, put into a store in place of the version that it had, or as a new object.
//!
//! ```text
//!   clouds one PUT on condition of the ETag (Google: of the generation that has it); what is large goes in parts, and is looked at
//!          once more before they are joined
//!   HTTP   one PUT on condition of the ETag (If-Match, If-None-Match)
//!   file   a file beside it, which takes its place
//! ```
//!
//! Whoever reads it has the one or the other, and no mixture. What fails is tried again for a while. A store may have done what
//! it seemed to fail at, so an object that is another one than expected is compared with what was to be written.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use memmap2::MmapOptions;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use object_store::{
    GetOptions, MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use rekindle_protocol::data::{Expected, Problem, ProblemKind, Version};
use rekindle_protocol::fault;
use tokio::task::JoinSet;

use crate::cloud::Cloud;
use crate::fetch;
use crate::store::{self, ObjectLocation, StoreAccess};

/// What is larger goes to clouds in parts.
const LARGEST_WHOLE: u64 = 64 << 20;
/// Bytes of a part at least, how many parts S3 takes at most, and how many are on their way together.
const PART: u64 = 16 << 20;
const MOST_PARTS: u64 = 10_000;
const TOGETHER: usize = 8;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The contents of a file in memory that is sealed at this size.
pub fn map(file: &OwnedFd, bytes: u64) -> std::io::Result<Bytes> {
    let seals = SealFlag::from_bits_retain(fcntl(file, FcntlArg::F_GET_SEALS)?);
    let length = File::from(file.try_clone()?).metadata()?.len();
    if !seals.contains(SealFlag::F_SEAL_SHRINK) || length < bytes || bytes == 0 {
        return Err(std::io::Error::other("what is to be written is not in memory of that size"));
    }
    // SAFETY: the file is at least so long and stays so. Who filled it has told that it is filled.
    Ok(Bytes::from_owner(unsafe { MmapOptions::new().len(bytes as usize).map(file)? }))
}

/// Writes it, and says which version the object is then.
pub async fn put(
    name: &str,
    location: &ObjectLocation,
    contents: &Bytes,
    expected: &Expected,
    patience: Duration,
) -> Result<Version, Problem> {
    let until = Instant::now() + patience;
    loop {
        let problem = match attempt(name, location, contents, expected).await {
            Ok(version) => return Ok(version),
            Err(problem) => problem,
        };
        let is_over = Instant::now() > until;
        match problem.kind {
            ProblemKind::Changed => {
                return match holds(location, contents).await {
                    Some(version) => Ok(version),
                    None => Err(problem),
                };
            }
            ProblemKind::Unavailable if !is_over => {
                log::info!("{}; it is tried again", problem.sentence);
                tokio::time::sleep(PAUSE).await;
            }
            _ => return Err(problem),
        }
    }
}

async fn attempt(
    name: &str,
    location: &ObjectLocation,
    contents: &Bytes,
    expected: &Expected,
) -> Result<Version, Problem> {
    injected(name, "data-put")?;
    check(name, location, expected).await?;
    match &location.way {
        StoreAccess::File(path) => {
            let (path, contents, taken) = (path.clone(), contents.clone(), location.clone());
            let (name, expected) = (name.to_string(), expected.clone());
            // One at a time: what is looked at is what is replaced.
            let _turn = location.replace_lock.lock().await;
            let beside = beside(&path);
            let file = beside.clone();
            let written = tokio::task::spawn_blocking(move || write(&file, &contents)).await;
            let written = written.map_err(std::io::Error::other).and_then(|written| written);
            written.map_err(|error| unwritten(&name, &error))?;
            let checked = check(&name, &taken, &expected).await;
            let placed = checked.and_then(|()| {
                injected(&name, "data-join")?;
                std::fs::rename(&beside, &path).map_err(|error| unwritten(&name, &error))
            });
            if placed.is_err() {
                let _ = std::fs::remove_file(&beside);
            }
            placed?;
        }
        StoreAccess::Http { client, url } => http(name, client, url, contents, expected).await?,
        StoreAccess::Cloud(_) if contents.len() as u64 > LARGEST_WHOLE => {
            in_parts(name, location, contents, expected).await?
        }
        StoreAccess::Cloud(cloud) => {
            let mode = match expected {
                Expected::Missing {} => PutMode::Create,
                Expected::Is(version) => replacing(*cloud, name, location, version).await?,
            };
            let options = PutOptions { mode, ..PutOptions::default() };
            let put =
                location.store.put_opts(&location.path, PutPayload::from(contents.clone()), options).await;
            put.map_err(|error| store::unwritten(name, &error))?;
        }
    }
    let version = look(name, location).await?;
    match version {
        Some(version) if version.bytes == contents.len() as u64 => Ok(version),
        _ => Err(changed(name)),
    }
}

/// On which condition a version is replaced.
async fn replacing(
    cloud: Cloud,
    name: &str,
    location: &ObjectLocation,
    version: &Version,
) -> Result<PutMode, Problem> {
    let Some(tag) = version.tag.clone() else { return Ok(PutMode::Overwrite) };
    if cloud != Cloud::Google {
        return Ok(PutMode::Update(UpdateVersion { e_tag: Some(tag), version: None }));
    }
    // Google has no such condition on an ETag. Each generation has one.
    let found = location.store.head(&location.path).await.map_err(|error| store::problem(name, &error))?;
    if !fetch::is_of(version, &found) {
        return Err(changed(name));
    }
    Ok(PutMode::Update(UpdateVersion { e_tag: None, version: found.version }))
}

/// What the store has now, if it has the object.
async fn look(name: &str, location: &ObjectLocation) -> Result<Option<Version>, Problem> {
    match fetch::look(name, location).await {
        Ok(version) => Ok(Some(version)),
        Err(problem) if problem.kind == ProblemKind::NotFound => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// Whether the store has what is expected.
async fn check(name: &str, location: &ObjectLocation, expected: &Expected) -> Result<(), Problem> {
    match (look(name, location).await?, expected) {
        (None, Expected::Missing {}) => Ok(()),
        (Some(found), Expected::Is(version)) if found == *version => Ok(()),
        _ => Err(changed(name)),
    }
}

/// Which version the object is, if it holds this.
async fn holds(location: &ObjectLocation, contents: &Bytes) -> Option<Version> {
    let found = location.store.get_opts(&location.path, GetOptions::default()).await.ok()?;
    let version = fetch::version_of(&found.meta);
    if version.bytes != contents.len() as u64 {
        return None;
    }
    let (mut chunks, mut at) = (found.into_stream(), 0);
    while let Some(chunk) = chunks.try_next().await.ok()? {
        if contents.get(at..at + chunk.len())? != &chunk[..] {
            return None;
        }
        at += chunk.len();
    }
    (at == contents.len()).then_some(version)
}

async fn http(
    name: &str,
    client: &reqwest::Client,
    url: &str,
    contents: &Bytes,
    expected: &Expected,
) -> Result<(), Problem> {
    let request = client.put(url).body(contents.clone());
    let request = match expected {
        Expected::Missing {} => request.header("If-None-Match", "*"),
        Expected::Is(Version { tag: Some(tag), .. }) => request.header("If-Match", tag),
        Expected::Is(_) => request,
    };
    let answer = request.send().await.map_err(|error| {
        Problem::new(ProblemKind::Unavailable, unwritten_sentence(name, &store::innermost(&error)))
    })?;
    let status = answer.status();
    match status.as_u16() {
        _ if status.is_success() => Ok(()),
        409 | 412 => Err(changed(name)),
        401 | 403 | 405 => Err(Problem::new(
            ProblemKind::Access,
            format!("{name} may not be written (the server says {status}); have the server allow PUT there"),
        )),
        _ => Err(Problem::new(
            ProblemKind::Unavailable,
            unwritten_sentence(name, &format!("the server says {status}")),
        )),
    }
}

/// Clouds put parts together without a condition, so it is looked at right before.
async fn in_parts(
    name: &str,
    location: &ObjectLocation,
    contents: &Bytes,
    expected: &Expected,
) -> Result<(), Problem> {
    let failed = |error| store::unwritten(name, &error);
    let mut upload = location.store.put_multipart(&location.path).await.map_err(failed)?;
    let sent = send_parts(name, &mut *upload, contents).await;
    let joined = match sent {
        Ok(()) => check(name, location, expected).await.and_then(|()| injected(name, "data-join")),
        Err(problem) => Err(problem),
    };
    match joined {
        Ok(()) => upload.complete().await.map(drop).map_err(failed),
        Err(problem) => {
            if let Err(error) = upload.abort().await {
                log::warn!("parts of {name} stay in its store: {error}");
            }
            Err(problem)
        }
    }
}

async fn send_parts(name: &str, upload: &mut dyn MultipartUpload, contents: &Bytes) -> Result<(), Problem> {
    let total = contents.len() as u64;
    let part = PART.max(total.div_ceil(MOST_PARTS).next_multiple_of(1 << 20));
    let mut under_way = JoinSet::new();
    for at in (0..total).step_by(part as usize) {
        while under_way.len() >= TOGETHER {
            sent(name, under_way.join_next().await)?;
        }
        let piece = contents.slice(at as usize..(at + part).min(total) as usize);
        under_way.spawn(upload.put_part(PutPayload::from(piece)));
    }
    while let Some(done) = under_way.join_next().await {
        sent(name, Some(done))?;
    }
    Ok(())
}

fn sent(
    name: &str,
    done: Option<Result<object_store::Result<()>, tokio::task::JoinError>>,
) -> Result<(), Problem> {
    match done {
        Some(Ok(Err(error))) => Err(store::unwritten(name, &error)),
        Some(Err(error)) => {
            Err(Problem::new(ProblemKind::Unavailable, unwritten_sentence(name, &error.to_string())))
        }
        Some(Ok(Ok(()))) | None => Ok(()),
    }
}

/// Where a file is written before it takes the other's place. There is one for each: what a process that was killed has left
/// is written anew.
fn beside(path: &FilePath) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.rekindle-dump"))
}

fn write(path: &FilePath, contents: &[u8]) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::create_new(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

fn unwritten(name: &str, error: &std::io::Error) -> Problem {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => ProblemKind::Access,
        _ => ProblemKind::Unavailable,
    };
    Problem::new(kind, unwritten_sentence(name, &error.to_string()))
}

fn unwritten_sentence(name: &str, why: &str) -> String {
    format!("{name} cannot be written ({why}); look whether its store works and can be reached from here")
}

fn changed(name: &str) -> Problem {
    let sentence = format!(
        "{name} became another object since it was loaded, and was left as it is; load it again, and write that"
    );
    Problem::new(ProblemKind::Changed, sentence)
}

fn injected(name: &str, point: &'static str) -> Result<(), Problem> {
    fault::point(point)
        .map_err(|fault| Problem::new(ProblemKind::Unavailable, unwritten_sentence(name, &fault.to_string())))
}

/// For files: one is looked at and replaced at a time.
pub type ReplaceLock = Arc<tokio::sync::Mutex<()>>;
