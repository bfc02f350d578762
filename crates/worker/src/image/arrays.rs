//! Arrays, textures and surfaces in an image: a part with the contents of each array, its levels one after the other, rows
//! without gaps.
//!
//! They come back before the program goes on. Textures and surfaces get the numbers that they had, or the restore is refused.

use rekindle_cuda::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_OUT_OF_MEMORY};
use rekindle_device::{Array, ArrayCopy, ArrayDescription, ArrayLevel, CopyEnd, Device, Stream, View};
use rekindle_protocol::operation::Id;
use rekindle_store::{Image, Part, PartKind, Staging};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::block::{Block, Blocks, Gpu};
use super::contents::{BLOCK, Gpus};
use super::error::{Error, Result, device};
use super::save_memory;
use super::state::State;
use crate::client::{ArrayObject, Client, Maker, Missed, ViewObject, renumber};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ArrayState {
    pub id: Id,
    pub device: usize,
    pub description: ArrayDescription,
}

/// A texture or surface, in the order in which they were made.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ViewState {
    pub device: usize,
    pub number: u64,
    pub view: View<Id>,
}

fn array_part(id: Id) -> String {
    format!("array-{id}")
}

/// What fits a block, of one level of an array.
struct Piece {
    level: u32,
    y: u64,
    z: u64,
    /// Bytes of a row, rows, slices.
    extent: [u64; 3],
}

impl Piece {
    fn bytes(&self) -> u64 {
        self.extent.into_iter().product()
    }

    /// Between the array and memory in which it lies without gaps.
    fn ends(&self, description: &ArrayDescription, array: Array, address: u64) -> [CopyEnd<Array>; 2] {
        let level = description.levels.map(|_| self.level);
        let [row, rows, _] = self.extent;
        let linear = CopyEnd::Linear { address, pitch: row, slice: row * rows };
        [linear, CopyEnd::Array { at: ArrayLevel { array, level }, x: 0, y: self.y, z: self.z }]
    }

    fn copy(&self, gpu: &Gpu, to: CopyEnd<Array>, from: CopyEnd<Array>) -> rekindle_device::Result<()> {
        let [width, height, depth] = self.extent;
        let stream = gpu.streams.first().copied().unwrap_or(Stream::LEGACY);
        gpu.device.bind()?;
        gpu.device.copy_array(&ArrayCopy { to, from, width, height, depth }, stream)?;
        gpu.device.stream_synchronize(stream)
    }
}

/// All of an array in pieces of so many bytes at most; a row is never cut.
fn pieces(description: &ArrayDescription, most: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for level in description.all_levels() {
        let [row, rows, slices] = description.extent(level);
        let whole = (most / (row * rows).max(1)).min(slices);
        if whole > 0 {
            for z in (0..slices).step_by(whole as usize) {
                pieces.push(Piece { level, y: 0, z, extent: [row, rows, whole.min(slices - z)] });
            }
            continue;
        }
        let some = (most / row.max(1)).max(1);
        for z in 0..slices {
            for y in (0..rows).step_by(some as usize) {
                pieces.push(Piece { level, y, z, extent: [row, some.min(rows - y), 1] });
            }
        }
    }
    pieces
}

/// One block, which holds at least a row of each of these.
fn block_for<'d>(client: &Client, all: impl Iterator<Item = &'d ArrayDescription>) -> Result<Blocks> {
    let rows = all.map(|description| description.extent(0)[0]);
    let widest = rows.max().unwrap_or(0).next_multiple_of(4096).max(BLOCK as u64);
    let any = client.any_device().map_err(device("be used"))?;
    Blocks::new(any, widest as usize, 1).map_err(device("pin a block of host memory"))
}

fn no_block() -> Error {
    Error::State("there is no block of host memory to copy arrays through".to_string())
}

fn gpu_of(gpus: &Gpus, index: usize) -> Result<&Gpu> {
    let found = gpus.get(index).and_then(Option::as_ref);
    found.ok_or_else(|| Error::State(format!("an array is on device {index}, which has no context")))
}

/// Describes arrays, textures and surfaces, and writes the contents of the arrays.
pub(super) fn save(client: &Client, staging: &Staging, state: &mut State) -> Result<Vec<Part>> {
    if let Some(sentence) = client.stale_view() {
        return Err(Error::Refused(sentence));
    }
    state.views = client
        .views
        .iter()
        .map(|&ViewObject { device, number, view }| ViewState { device, number, view })
        .collect();
    let mut parts = Vec::new();
    if client.arrays.is_empty() {
        return Ok(parts);
    }
    let gpus = save_memory::gpus(client);
    let mut blocks = block_for(client, client.arrays.values().map(|array| &array.description))?;
    let mut blocks = blocks.split();
    let block = blocks.first_mut().ok_or_else(no_block)?;
    for (&id, array) in &client.arrays {
        let &ArrayObject { device: index, description, handle } = array;
        state.arrays.push(ArrayState { id, device: index, description });
        let gpu = gpu_of(&gpus, index)?;
        let attributes = json!({ "device": index, "holds": "array" });
        let writer = staging.part(PartKind::GpuBuffer, &array_part(id), attributes, description.bytes())?;
        let mut at = 0;
        for piece in pieces(&description, block.capacity() as u64) {
            let [linear, of_array] = piece.ends(&description, handle, block.room() as u64);
            let copied = piece.copy(gpu, linear, of_array);
            copied.map_err(device(format!("copy array {id} out")))?;
            let bytes = piece.bytes();
            writer.write_at(at, read(block, bytes)?)?;
            at += bytes;
        }
        parts.push(writer.finish()?);
    }
    Ok(parts)
}

fn read<'b>(block: &'b mut Block<'_>, bytes: u64) -> Result<&'b mut [u8]> {
    block.bytes(bytes as usize).map_err(device("copy through a block"))
}

/// Makes arrays with their contents, and then textures and surfaces under their numbers. Buffers are in their places.
pub(super) fn restore(client: &mut Client, image: &Image, state: &State) -> Result<()> {
    if !state.arrays.is_empty() {
        let mut blocks = block_for(client, state.arrays.iter().map(|row| &row.description))?;
        fill(client, image, state, &mut blocks)?;
    }
    for index in client.open_devices() {
        views(client, state, index)?;
    }
    Ok(())
}

fn fill(client: &mut Client, image: &Image, state: &State, blocks: &mut Blocks) -> Result<()> {
    let mut blocks = blocks.split();
    let block = blocks.first_mut().ok_or_else(no_block)?;
    for row in &state.arrays {
        one(client, image, row, block).map_err(|error| match error {
            Error::Device { action, code: CUDA_ERROR_OUT_OF_MEMORY } => {
                let (free, total) = client.memory_space(row.device).unwrap_or_default();
                Error::Taken { action, free: free >> 20, total: total >> 20 }
            }
            other => other,
        })?;
    }
    Ok(())
}

fn one(client: &mut Client, image: &Image, row: &ArrayState, block: &mut Block<'_>) -> Result<()> {
    let ArrayState { id, device: index, description } = *row;
    let name = array_part(id);
    let part = image.part(PartKind::GpuBuffer, &name);
    let part = part.ok_or_else(|| Error::State(format!("the image has no part {name}")))?;
    if part.bytes != description.bytes() {
        let text =
            format!("part {name} has {} bytes where {} were expected", part.bytes, description.bytes());
        return Err(Error::State(text));
    }
    let gpu = client.on(index).map_err(device("be used"))?;
    let handle =
        gpu.array_create(&description).map_err(device(format!("make an array of {} bytes", part.bytes)))?;
    let array = ArrayObject { device: index, description, handle };
    client.arrays.insert(id, array);
    let gpus = save_memory::gpus(client);
    let gpu = gpu_of(&gpus, index)?;
    let mut at = 0;
    for piece in pieces(&description, block.capacity() as u64) {
        image.read_part(part, at, read(block, piece.bytes())?)?;
        let [linear, of_array] = piece.ends(&description, handle, block.room() as u64);
        let copied = piece.copy(gpu, of_array, linear);
        copied.map_err(device(format!("fill array {id}")))?;
        at += piece.bytes();
    }
    Ok(())
}

/// A view as the program has it, and as the device makes it.
type Both = (View<Id>, View<Array>);

struct Views<'d>(&'d dyn Device);

impl Maker<Both> for Views<'_> {
    fn make(&mut self, (_, view): &Both) -> rekindle_device::Result<u64> {
        self.0.view_create(view)
    }

    fn destroy(&mut self, (_, view): &Both, number: u64) {
        if let Err(code) = self.0.view_destroy(view.kind(), number) {
            log::warn!("a {} object that was not wanted stays: {code}", view.kind());
        }
    }
}

fn views(client: &mut Client, state: &State, index: usize) -> Result<()> {
    let mut wanted = Vec::new();
    for row in state.views.iter().filter(|row| row.device == index) {
        let made = row
            .view
            .try_map(|id| client.arrays.get(&id).map(|array| array.handle).ok_or(CUDA_ERROR_INVALID_HANDLE));
        let made =
            made.map_err(device(format!("find the array of {} object {}", row.view.kind(), row.number)))?;
        wanted.push((row.number, (row.view, made)));
    }
    let gpu = client.on(index).map_err(device("be used"))?;
    renumber(&wanted, &mut Views(gpu)).map_err(|missed| match missed {
        Missed::Failed(number, (view, _), code) => {
            device(format!("make {} object {number} again", view.kind()))(code)
        }
        Missed::Number(number, (view, _)) => Error::Refused(format!(
            "its kernels know a {} object by its number {number}, which the GPU does not give again: another program that shares \
             the context may have it, or the driver numbers otherwise than it did; restore it in a context of its own, with \
             the driver that the image was taken with",
            view.kind()
        )),
    })?;
    let kept = wanted.into_iter().map(|(number, (view, _))| ViewObject { device: index, number, view });
    client.views.extend(kept);
    Ok(())
}

#[cfg(test)]
mod tests {
    use rekindle_device::ArrayFormat;

    use super::*;

    #[test]
    fn pieces_cover_every_row_once_and_fit() {
        let description = |width, height, depth, levels| ArrayDescription {
            width,
            height,
            depth,
            format: ArrayFormat::U8,
            channels: 4,
            flags: 0,
            levels,
        };
        for (description, most) in [
            (description(16, 0, 0, None), 100),
            (description(16, 9, 0, None), 128),
            (description(16, 9, 7, None), 1200),
            (description(16, 9, 7, None), 200),
            (description(64, 33, 5, Some(7)), 1000),
        ] {
            let all = pieces(&description, most);
            assert!(all.iter().all(|piece| piece.bytes() <= most));
            assert_eq!(all.iter().map(Piece::bytes).sum::<u64>(), description.bytes());
            let mut rows: Vec<(u32, u64, u64)> = Vec::new();
            for piece in &all {
                let [_, height, depth] = piece.extent;
                for z in piece.z..piece.z + depth {
                    rows.extend((piece.y..piece.y + height).map(|y| (piece.level, z, y)));
                }
            }
            assert!(rows.is_sorted() && rows.windows(2).all(|two| two[0] != two[1]));
        }
    }
}
