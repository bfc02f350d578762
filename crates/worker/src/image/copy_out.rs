//! Contents of buffers on their way to the store.
//!
//! What the device hashes is hashed first, and copied only if the store does not have it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rekindle_store::{ContentHash, PartWriter};

use super::block::{Block, Blocks, Gpu, Preparing};
use super::contents::{Gpus, PartLocation, Pieces, TURNS, gpu, threads};
use super::error::{Error, Result, device};
use super::guard::Guard;
use super::progress::{Piece, Progress};

/// What there is to know of hashes before.
pub(super) type KnownHashes<'k> = dyn Fn(&PartLocation, Range<u64>) -> Option<ContentHash> + Sync + 'k;
/// A chunk's place in its part, and its hash; without one the processor makes it.
type Chunk = (Range<u64>, Option<ContentHash>);

/// How far a piece has come.
enum Step {
    Begun,
    /// Its hash is on its way.
    Hashed,
    /// It is on its way itself, from the first of these chunks to the last.
    Copied(Vec<Chunk>),
}

/// Bytes of a part, and where they lie.
pub(super) struct Span<'w> {
    pub location: PartLocation,
    /// The first one's place in the part.
    pub from: u64,
    pub writer: &'w PartWriter,
}

/// What is saved, and how much of it was copied.
struct Save<'s> {
    gpus: &'s Gpus,
    spans: &'s [Span<'s>],
    known: &'s KnownHashes<'s>,
    guard: Option<&'s Guard>,
    copied: AtomicU64,
}

/// Writes what lies at each place to its part; spans begin where a chunk does. Returns how many bytes were copied, and the blocks. If `known` has hashes, a
/// piece may be as large as a block.
pub(super) fn save(
    gpus: &Gpus,
    blocks: Option<Preparing>,
    spans: &[Span<'_>],
    known: Option<&KnownHashes<'_>>,
    stop: &AtomicBool,
) -> Result<(u64, Option<Blocks>)> {
    let sizes: Vec<_> = spans.iter().map(|span| span.location.bytes).collect();
    let chunk = |number: usize| spans[number].writer.chunk_bytes();
    let blocks =
        blocks.map(Preparing::wait).transpose().map_err(device("pin host memory to copy through"))?;
    let block = blocks.as_ref().map_or(0, |blocks| blocks.block_bytes() as u64);
    let piece = |number| if known.is_some() { chunk(number).max(block) } else { chunk(number) };
    let progress = Progress::new(&sizes, |number, at| at + piece(number), &[]);
    let save =
        Save { gpus, spans, known: known.unwrap_or(&|_, _| None), guard: None, copied: AtomicU64::new(0) };
    save.run(blocks.map(Preparing::Ready), &progress, stop)
}

/// How much of it the store does not have; no more is counted than is `enough`. What has no hash yet counts as new.
pub(super) fn new_bytes(spans: &[Span<'_>], known: &KnownHashes<'_>, enough: u64) -> Result<u64> {
    let all = spans
        .iter()
        .flat_map(|span| chunks(span, 0..span.location.bytes, known).map(move |(at, hash)| (span, at, hash)));
    let (all, new) = (all.collect::<Vec<_>>(), AtomicU64::new(0));
    let look = |(): &mut (), number: usize| {
        let (span, at, hash) = &all[number];
        if new.load(Ordering::Relaxed) < enough
            && hash.map(|hash| span.writer.has(span.from + at.start, hash)).transpose()? != Some(true)
        {
            new.fetch_add(at.end - at.start, Ordering::Relaxed);
        }
        Ok::<_, Error>(())
    };
    rekindle_parallel::map(rekindle_parallel::threads_for(all.len()), all.len(), || (), look)?;
    Ok(new.into_inner().min(enough))
}

/// As [`save`], of memory that the program may change once the guard was told that it is copied. Fails where it has changed before.
pub(super) fn save_guarded(
    gpus: &Gpus,
    blocks: Option<Preparing>,
    spans: &[Span<'_>],
    known: &KnownHashes<'_>,
    guard: &Guard,
    stop: &AtomicBool,
) -> Result<(u64, Option<Blocks>)> {
    let save = Save { gpus, spans, known, guard: Some(guard), copied: AtomicU64::new(0) };
    save.run(blocks, guard.progress(), stop)
}

impl Save<'_> {
    fn run(
        self,
        blocks: Option<Preparing>,
        progress: &Progress,
        stop: &AtomicBool,
    ) -> Result<(u64, Option<Blocks>)> {
        let pieces = Pieces::of(progress, stop);
        let Some(mut made) = pieces.blocks(self.gpus, blocks)? else { return Ok((0, None)) };
        // What the program waits for has more threads than what goes on beside it.
        let turns = if self.guard.is_some() { (made.count() / threads()).clamp(1, TURNS) } else { TURNS };
        pieces.on_threads(&mut made, turns, |turns| {
            let mut under_way = VecDeque::with_capacity(turns.len());
            let mut free: Vec<usize> = (0..turns.len()).collect();
            loop {
                while !free.is_empty()
                    && let Some(piece) = pieces.next()?
                {
                    under_way.extend(free.pop().map(|turn| (Step::Begun, piece, turn)));
                }
                let Some((step, piece, turn)) = under_way.pop_front() else { return Ok(()) };
                match self.go_on(step, &piece, &mut turns[turn])? {
                    Some(step) => under_way.push_back((step, piece, turn)),
                    None => free.push(turn),
                }
            }
        })?;
        Ok((self.copied.into_inner(), Some(made)))
    }

    /// Takes the next step with a piece; none if that was the last.
    fn go_on(&self, step: Step, piece: &Piece, block: &mut Block<'_>) -> Result<Option<Step>> {
        let Span { location, from, writer } = &self.spans[piece.number];
        match step {
            Step::Begun => {
                let chunks: Vec<_> =
                    chunks(&self.spans[piece.number], piece.range.clone(), self.known).collect();
                if let [(_, None)] = chunks[..] {
                    let (gpu, address) = (gpu(self.gpus, location)?, location.address + piece.range.start);
                    let looks = block.look(gpu, address, piece.count());
                    if looks.map_err(device("hash a buffer"))? {
                        return Ok(Some(Step::Hashed));
                    }
                }
                self.fetch(chunks, piece, block)
            }
            Step::Hashed => {
                let hash = block.hash().map_err(device("hash a buffer"))?;
                self.fetch(vec![(piece.range.clone(), hash)], piece, block)
            }
            Step::Copied(chunks) => {
                let Some(span) = span_of(&chunks) else { return Ok(None) };
                let bytes = block.bytes((span.end - span.start) as usize);
                let bytes = bytes.map_err(device("copy a buffer out"))?;
                self.note_copied(piece);
                self.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                for (at, hash) in chunks {
                    let bytes = &bytes[(at.start - span.start) as usize..(at.end - span.start) as usize];
                    match hash {
                        Some(hash) if self.guard.is_some() && ContentHash::of(bytes) != hash => {
                            return Err(Error::Overwritten);
                        }
                        Some(hash) => writer.write_chunk(from + at.start, bytes, hash)?,
                        None => writer.write_at(from + at.start, bytes)?,
                    }
                }
                Ok(None)
            }
        }
    }

    fn note_copied(&self, piece: &Piece) {
        if let Some(guard) = self.guard {
            guard.note_copied(piece.number);
        }
    }

    /// Begins to copy what the store does not have.
    fn fetch(&self, mut chunks: Vec<Chunk>, piece: &Piece, block: &mut Block<'_>) -> Result<Option<Step>> {
        let Span { location, from, writer } = &self.spans[piece.number];
        let mut failed = None;
        chunks.retain(|(at, hash)| match hash.map(|hash| writer.enter_known(from + at.start, hash)) {
            None | Some(Ok(false)) => true,
            Some(Ok(true)) => false,
            Some(Err(error)) => {
                failed = Some(error);
                true
            }
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let Some(span) = span_of(&chunks) else {
            self.note_copied(piece);
            return Ok(None);
        };
        let count = (span.end - span.start) as usize;
        let fetched = block.fetch_hashed(gpu(self.gpus, location)?, location.address + span.start, count);
        fetched.map_err(device("copy a buffer out"))?;
        Ok(Some(Step::Copied(chunks)))
    }
}

/// Those of a range of a span, which begins where a chunk does.
fn chunks<'s>(
    span: &'s Span<'_>,
    range: Range<u64>,
    known: &'s KnownHashes<'_>,
) -> impl Iterator<Item = Chunk> + 's {
    let bytes = span.writer.chunk_bytes().max(1);
    range.clone().step_by(bytes as usize).map(move |start| {
        let chunk = start..(start + bytes).min(range.end);
        let hash = known(&span.location, chunk.clone());
        (chunk, hash)
    })
}

fn span_of(chunks: &[Chunk]) -> Option<Range<u64>> {
    Some(chunks.first()?.0.start..chunks.last()?.0.end)
}

/// Copies so much out at once, which may be more than a block holds.
pub(super) fn fetch(
    gpu: &Gpu,
    blocks: &mut Blocks,
    address: u64,
    bytes: u64,
) -> rekindle_device::Result<Vec<u8>> {
    let mut blocks = blocks.split();
    let mut all = Vec::with_capacity(bytes as usize);
    while let Some(block) = blocks.first_mut().filter(|_| (all.len() as u64) < bytes) {
        let count = block.capacity().min(bytes as usize - all.len());
        block.fetch_hashed(gpu, address + all.len() as u64, count)?;
        all.extend_from_slice(block.bytes(count)?);
    }
    Ok(all)
}

/// Where so many bytes of an image were had, of which some were copied.
pub(super) fn origin(bytes: u64, copied: u64) -> BTreeMap<String, u64> {
    let from = [("GPU", copied), ("store", bytes.saturating_sub(copied))];
    from.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| (name.to_string(), bytes)).collect()
}
