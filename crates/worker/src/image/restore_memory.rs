//! Buffers and pinned memory at the addresses that they had.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

use rekindle_cuda::CUDA_ERROR_OUT_OF_MEMORY;
use rekindle_device::{Access, Memory};
use rekindle_protocol::fault;
use rekindle_store::{Image, Part, PartKind};

use super::LeftMemory;
use super::contents::PartLocation;
use super::declared::PresentMemory;
use super::error::{Error, Result, device};
use super::hidden::Hidden;
use super::save_memory::Window;
use super::state::{ContentState, MappingState, PhysicalState, State, buffer_part, physical_part};
use crate::client::Client;
use crate::ipc::PhysicalArrival;
use crate::memory::{Content, Mapping, Physical, Reservation, Slab, map_pinned};

/// Makes every handle, or takes what was left of it, and maps it; contents come later. With `hidden` none is mapped, and
/// all are put there; but for those that can be `shared`, which are mapped with their contents. That there is room
/// was checked before, and can have changed since.
pub(super) fn place(
    client: &mut Client,
    state: &State,
    left: &LeftMemory,
    hidden: Option<&mut Vec<Hidden>>,
    (shared, declared): (&HashMap<String, OwnedFd>, &PresentMemory),
) -> Result<()> {
    let mut on = 0;
    place_all(client, state, left, hidden, &mut on, (shared, declared)).map_err(|error| match error {
        Error::Device { action, code: CUDA_ERROR_OUT_OF_MEMORY } => {
            let (free, total) = client.memory_space(on).unwrap_or_default();
            Error::Taken { action, free: free >> 20, total: total >> 20 }
        }
        other => other,
    })
}

/// `on` is the device that something is placed on.
fn place_all(
    client: &mut Client,
    state: &State,
    left: &LeftMemory,
    mut hidden: Option<&mut Vec<Hidden>>,
    on: &mut usize,
    (shared, declared): (&HashMap<String, OwnedFd>, &PresentMemory),
) -> Result<()> {
    let read_only: HashSet<u64> = client.data.declared().map(|(address, _)| address).collect();
    for (index, row) in state.devices.iter().enumerate() {
        let Some(context) = &row.context else { continue };
        *on = index;
        client.bind(index).map_err(device("be used"))?;
        let heap = client.heap(index).map_err(device("be used"))?;
        for (start, bytes) in &context.regions {
            let end =
                start.checked_add(*bytes).ok_or_else(|| Error::State("a region has no end".to_string()))?;
            heap.reserve(*start..end).map_err(device(format!("reserve the addresses from {start:#x}")))?;
        }
        for (number, buffer) in context.buffers.iter().enumerate() {
            let content = match &buffer.content {
                ContentState::Large(bytes) => Content::Large { bytes: *bytes, freed: false },
                ContentState::Slab(used) => {
                    let slab = Slab::with(buffer.bytes, used.clone());
                    Content::Slab(slab.ok_or_else(|| Error::State("small allocations overlap".to_string()))?)
                }
            };
            let action = format!("place {} bytes at {:#x}", buffer.bytes, buffer.address);
            let part = buffer_part(buffer.address);
            if number > 0 && fault::point("gpu-memory-taken").is_err() {
                return Err(device(action)(CUDA_ERROR_OUT_OF_MEMORY));
            }
            if state.unbacked.contains(&buffer.address) {
                let placed = heap.place_unbacked(buffer.address, buffer.bytes, content);
                placed.map_err(device(action))?;
                continue;
            }
            if let Some((memory, bytes)) = declared.get(&part) {
                let sizes = (*bytes, buffer.bytes);
                let placed = heap.place_declared(buffer.address, sizes, memory.as_fd());
                placed.map_err(device(action))?;
                if let Some(hidden) = &mut hidden {
                    hidden.push(Hidden::new(part, index, None, buffer.bytes));
                }
                continue;
            }
            if let Some(hidden) = &mut hidden {
                let is_read_only = read_only.contains(&buffer.address);
                if let (Some(memory), Content::Large { bytes, .. }, false) =
                    (shared.get(&part), &content, is_read_only)
                {
                    let content = Content::Large { bytes: *bytes, freed: false };
                    match heap.place_shared(buffer.address, buffer.bytes, content, memory.as_fd()) {
                        Ok(()) => {
                            hidden.push(Hidden::new(part, index, None, buffer.bytes));
                            continue;
                        }
                        Err(code) => log::warn!("a buffer is not shared with others: {code}"),
                    }
                }
                let placed = heap.place_unmapped(buffer.address, buffer.bytes, content);
                let mut one = Hidden::new(part, index, Some(placed.map_err(device(action))?), buffer.bytes);
                let access = if is_read_only { Access::Read } else { Access::ReadWrite };
                one.mappings.push((buffer.address, access));
                hidden.push(one);
                continue;
            }
            let from = left.get(&part).map(AsFd::as_fd);
            heap.place(buffer.address, buffer.bytes, content, from).map_err(device(action))?;
        }
    }
    for row in &state.reservations {
        let heap = client.heap(row.device).map_err(device("be used"))?;
        if !heap.take_addresses_at(row.address, row.bytes) {
            return Err(Error::State(format!("the addresses from {:#x} are used twice", row.address)));
        }
        let reservation = Reservation { bytes: row.bytes, device: row.device };
        client.virtual_memory.reservations.insert(row.address, reservation);
    }
    let is_own = |serial: u64| !state.physical_shared.imports.contains_key(&serial);
    for row in state.physical.iter().filter(|row| is_own(row.serial)) {
        *on = row.device;
        let gpu = client.on(row.device).map_err(device("be used"))?;
        let made = match left.get(&physical_part(row.serial)) {
            Some(memory) => gpu.memory_import(memory.as_fd(), row.bytes),
            None => gpu.memory_create(row.bytes),
        };
        let memory = made.map_err(device(format!("make {} bytes of memory", row.bytes)))?;
        let physical = Physical { device: row.device, bytes: row.bytes, memory, id: row.id, mappings: 0 };
        let added = client.virtual_memory.add(physical, Some(row.serial));
        added.map_err(device("number a handle as before"))?;
        if let Some(hidden) = &mut hidden {
            let mut one = Hidden::new(physical_part(row.serial), row.device, Some(memory), row.bytes);
            let mappings = state.mappings.iter().filter(|mapping| mapping.serial == row.serial);
            for mapping in mappings {
                let MappingState { address, bytes, serial, access } = *mapping;
                one.mappings.push((address, access));
                client.virtual_memory.note_mapping(address, Mapping { bytes, serial, access });
            }
            hidden.push(one);
        }
    }
    if hidden.is_some() {
        return Ok(());
    }
    for row in state.mappings.iter().filter(|row| is_own(row.serial)) {
        let mapped = client.map_at(row.address, row.bytes, row.serial, Access::ReadWrite);
        mapped.map_err(device(format!("map {} bytes at {:#x}", row.bytes, row.address)))?;
    }
    Ok(())
}

/// The handles whose memory is other processes', and where the program has mapped them.
pub(super) fn of_others(state: &State) -> Vec<PhysicalArrival> {
    let is_of_others = |row: &&PhysicalState| state.physical_shared.imports.contains_key(&row.serial);
    let describe = |row: &PhysicalState| {
        let PhysicalState { serial, device, bytes, id } = *row;
        let mappings = state.mappings.iter().filter(|mapping| mapping.serial == serial);
        let mappings = mappings.map(|mapping| (mapping.address, mapping.bytes, mapping.access)).collect();
        let physical = Physical { device, bytes, memory: Memory(0), id, mappings: 0 };
        PhysicalArrival { serial, physical, mappings }
    };
    state.physical.iter().filter(is_of_others).map(describe).collect()
}

/// Gives the program's mappings the protection that they had.
pub(super) fn protect(client: &mut Client, state: &State) -> Result<()> {
    for row in state.mappings.iter().filter(|row| row.access != Access::ReadWrite) {
        let Some(mapping) = client.virtual_memory.mappings.get_mut(&row.address) else { continue };
        mapping.access = row.access;
        let mapping = *mapping;
        let index = client.virtual_memory.device_of(&mapping).unwrap_or_default();
        let gpu = client.on(index).map_err(device("be used"))?;
        gpu.protect(row.address, row.bytes, row.access)
            .map_err(device(format!("protect the mapping at {:#x}", row.address)))?;
    }
    Ok(())
}

/// Maps pinned files where they were. The daemon has filled them.
pub(super) fn pin(client: &mut Client, state: &State) -> Result<()> {
    for row in &state.pinned {
        let mapped = map_pinned(client.run_directory(), &row.name, row.address, row.bytes, row.device);
        let pinned = mapped.map_err(|source| Error::Io {
            action: "map",
            path: format!("{} at {:#x}", row.name, row.address),
            source,
        })?;
        let gpu = client.on(row.device).map_err(device("be used"))?;
        gpu.host_register(row.address, row.bytes)
            .map_err(device(format!("pin {} bytes at {:#x}", row.bytes, row.address)))?;
        client.pinned.push(pinned);
    }
    Ok(())
}

/// Whether the image has contents of any buffer: one that sleeps with its memory left on the GPU has none.
pub(super) fn has_contents(image: &Image, state: &State) -> bool {
    let names = state.backed().map(|buffer| buffer_part(buffer.address));
    let mut names = names.chain(state.physical.iter().map(|row| physical_part(row.serial)));
    names.any(|name| image.part(PartKind::GpuBuffer, &name).is_some())
}

/// Which part goes where: to the program's addresses.
pub(super) fn work<'i>(
    image: &'i Image,
    state: &State,
    windows: &[Window],
    left: &HashSet<String>,
) -> Result<Vec<(PartLocation, &'i Part)>> {
    let mut wanted = wanted(state, windows);
    wanted.retain(|(name, _)| !left.contains(name));
    find_parts(image, wanted)
}

/// Where all of memory is, by the names of its parts: at the program's addresses.
pub(super) fn wanted(state: &State, windows: &[Window]) -> Vec<(String, PartLocation)> {
    let mut wanted = Vec::new();
    for (index, row) in state.devices.iter().enumerate() {
        let buffers = row.context.iter().flat_map(|context| &context.buffers);
        for buffer in buffers.filter(|buffer| !state.unbacked.contains(&buffer.address)) {
            let place = PartLocation { device: index, address: buffer.address, bytes: buffer.bytes };
            wanted.push((buffer_part(buffer.address), place));
        }
    }
    for window in windows {
        let PartLocation { device, address, bytes } = window.location;
        wanted.push((physical_part(window.serial), PartLocation { device, address, bytes }));
    }
    wanted
}

/// Which part goes where: to the windows.
pub(super) fn hidden_work<'i>(image: &'i Image, hidden: &[Hidden]) -> Result<Vec<(PartLocation, &'i Part)>> {
    let place = |one: &Hidden| PartLocation { device: one.device, address: one.window, bytes: one.bytes };
    let mut work = find_parts(image, hidden.iter().map(|one| (one.part.clone(), place(one))).collect())?;
    // What is shared is there already.
    for ((place, _), _) in work.iter_mut().zip(hidden).filter(|(_, one)| one.memory.is_none()) {
        place.bytes = 0;
    }
    Ok(work)
}

fn find_parts(image: &Image, wanted: Vec<(String, PartLocation)>) -> Result<Vec<(PartLocation, &Part)>> {
    let parts: HashMap<&str, &Part> =
        image.parts(PartKind::GpuBuffer).map(|part| (part.name.as_str(), part)).collect();
    let find = |name: String, place: PartLocation| match parts.get(name.as_str()) {
        Some(part) if part.bytes == place.bytes => Ok((place, *part)),
        Some(part) => Err(Error::State(format!(
            "part {name} has {} bytes where {} were expected",
            part.bytes, place.bytes
        ))),
        None => Err(Error::State(format!("the image has no part {name}"))),
    };
    wanted.into_iter().map(|(name, place)| find(name, place)).collect()
}
