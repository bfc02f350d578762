//! Buffers: where each lies, and its contents.

use std::collections::HashSet;

use rekindle_device::{Access, Device};
use rekindle_store::{Part, PartKind, PartWriter, Staging};
use serde_json::json;

use super::LeftMemory;
use super::block::Gpu;
use super::contents::PartLocation;
use super::error::{Result, device};
use super::runs::Run;
use super::state::{
    BufferState, ContentState, MappingState, PhysicalState, PinnedState, ReservationState, State,
    buffer_part, physical_part,
};
use crate::client::{Client, Context};
use crate::memory::{Content, Mapping};
use crate::ondemand::Spans;

/// What of GPU memory is to be saved where.
pub(super) struct Plan {
    pub work: Vec<(PartLocation, PartWriter)>,
    /// How many of them are buffers; those in windows follow.
    own: usize,
    windows: Vec<Window>,
}

/// What becomes of what memory holds.
pub(super) enum MemoryFate<'l> {
    /// It is saved.
    Saved,
    /// It stays there: descriptors go here.
    Left(&'l mut LeftMemory),
    /// It is kept by other means.
    Elsewhere,
}

/// Describes all of GPU memory, and makes it readable if it is to be saved. What the program has freed was given back.
pub(super) fn plan(
    client: &mut Client,
    staging: &Staging,
    state: &mut State,
    mut kept: MemoryFate<'_>,
) -> Result<Plan> {
    let export =
        |gpu: &dyn Device, memory| gpu.memory_export(memory).map_err(device("leave a buffer behind"));
    let mut work = Vec::new();
    for (index, context) in client.contexts.iter().enumerate() {
        let Some(context) = context else { continue };
        let rows = state.devices.get_mut(index).and_then(|row| row.context.as_mut());
        let Some(rows) = rows else { continue };
        for (&address, buffer) in context.heap.buffers() {
            let (kind, content) = match &buffer.content {
                Content::Large { bytes, .. } => ("allocation", ContentState::Large(*bytes)),
                Content::Slab(slab) => ("small allocations", ContentState::Slab(slab.used().clone())),
            };
            let attributes = json!({ "device": index, "address": format!("{address:#x}"), "holds": kind });
            let name = buffer_part(address);
            match (&mut kept, buffer.memory) {
                (_, None) => drop(state.unbacked.insert(address)),
                (MemoryFate::Elsewhere, _) => {}
                (MemoryFate::Left(left), Some(memory)) => {
                    // What another program has made is had again by the descriptor that it came by.
                    let others = client.data.declared_at(address).and_then(|declared| declared.memory());
                    let memory = match others.map(|memory| memory.try_clone()) {
                        Some(Ok(memory)) => memory,
                        _ => export(&*context.device, memory)?,
                    };
                    left.insert(name, memory);
                }
                (MemoryFate::Saved, Some(_)) => {
                    let writer = staging.part(PartKind::GpuBuffer, &name, attributes, buffer.bytes)?;
                    work.push((PartLocation { device: index, address, bytes: buffer.bytes }, writer));
                }
            }
            rows.buffers.push(BufferState { address, bytes: buffer.bytes, content });
        }
    }
    describe_virtual(client, state);
    if let MemoryFate::Left(left) = &mut kept {
        let own = client.virtual_memory.physical.iter().filter(|(serial, _)| !client.is_of_others(**serial));
        for (&serial, physical) in own {
            let context = client.context(physical.device).map_err(device("be used"))?;
            left.insert(physical_part(serial), export(&*context.device, physical.memory)?);
        }
    }
    if !matches!(kept, MemoryFate::Saved) {
        return Ok(Plan { own: work.len(), work, windows: Vec::new() });
    }
    let own = work.len();
    let windows = map_physical(client)?;
    for window in &windows {
        let attributes = json!({ "device": window.location.device, "holds": "memory that the program maps" });
        let name = physical_part(window.serial);
        let writer = match staging.part(PartKind::GpuBuffer, &name, attributes, window.location.bytes) {
            Ok(writer) => writer,
            Err(error) => {
                unmap_windows(client, &windows)?;
                return Err(error.into());
            }
        };
        let PartLocation { device, address, bytes } = window.location;
        work.push((PartLocation { device, address, bytes }, writer));
    }
    Ok(Plan { work, own, windows })
}

/// Where memory lies that can be copied while the program runs.
pub(super) fn places(client: &Client) -> Vec<PartLocation> {
    let mut places = Vec::new();
    for (device, context) in client.contexts.iter().enumerate() {
        let buffers = context.iter().flat_map(|context| context.heap.buffers());
        let buffers = buffers.filter(|(_, buffer)| buffer.is_backed());
        places.extend(buffers.map(|(&address, buffer)| PartLocation {
            device,
            address,
            bytes: buffer.bytes,
        }));
    }
    let memory = &client.virtual_memory;
    for (&serial, physical) in memory.physical.iter().filter(|(serial, _)| !client.is_of_others(**serial)) {
        let is_it = |mapping: &Mapping| mapping.serial == serial && mapping.access == Access::ReadWrite;
        let mapped = memory.mappings.iter().find(|(_, mapping)| is_it(mapping));
        let location = |address| PartLocation { device: physical.device, address, bytes: physical.bytes };
        places.extend(mapped.map(|(&address, _)| location(address)));
    }
    places
}

impl Plan {
    /// What of it is to be saved. All that is mapped twice is: it may be used by the other address.
    pub(super) fn runs(&self, client: &Client) -> Vec<Run> {
        let mut once = HashSet::new();
        let serials = client.virtual_memory.mappings.values().map(|mapping| mapping.serial);
        let twice: HashSet<u64> = serials.filter(|serial| !once.insert(*serial)).collect();
        let window = |number: usize| self.windows.get(number.checked_sub(self.own)?);
        let is_twice = |number| window(number).is_some_and(|window| twice.contains(&window.serial));
        client.unused.runs(&self.work, is_twice)
    }

    /// The addresses by which the program comes to each part of the work.
    pub(super) fn buffers(&self, client: &Client) -> Spans {
        let of_buffers = self.work.iter().map(|(location, _)| *location).enumerate();
        let range = |location: PartLocation| location.address..location.address + location.bytes;
        let mut spans: Vec<_> = of_buffers.take(self.own).map(|(number, at)| (range(at), number)).collect();
        for (number, window) in self.windows.iter().enumerate() {
            let mappings = client.virtual_memory.mappings.iter();
            let mapped = mappings.filter(|(_, mapping)| mapping.serial == window.serial);
            spans.extend(mapped.map(|(at, mapping)| (*at..at + mapping.bytes, self.own + number)));
        }
        Spans::new(Vec::new(), spans)
    }
}

/// Undoes what [`plan`] has changed, and returns the parts if all were saved.
pub(super) fn finish(client: &mut Client, plan: Plan, saved: Result<()>) -> Result<Vec<Part>> {
    unmap_windows(client, &plan.windows)?;
    saved?;
    plan.work.into_iter().map(|(_, writer)| Ok(writer.finish()?)).collect()
}

/// Returns when the devices have done all that they had to do.
pub(super) fn wait(client: &mut Client) -> Result<()> {
    client.open_devices().try_for_each(|index| {
        client.bind(index).and_then(|()| client.on(index)?.synchronize()).map_err(device("do its work"))
    })
}

/// The devices whose contexts are open, by the program's numbers.
pub(super) fn gpus(client: &Client) -> Vec<Option<Gpu>> {
    let gpu = |context: &Context| Gpu {
        device: context.device.clone(),
        streams: context.gpu.copies.clone(),
        hasher: context.gpu.hasher.clone(),
        link: context.gpu.link.clone(),
    };
    client.contexts.iter().map(|context| context.as_ref().map(gpu)).collect()
}

fn describe_virtual(client: &Client, state: &mut State) {
    let memory = &client.virtual_memory;
    for (&serial, physical) in &memory.physical {
        let (device, bytes, id) = (physical.device, physical.bytes, physical.id);
        state.physical.push(PhysicalState { serial, device, bytes, id });
    }
    for (&address, reservation) in &memory.reservations {
        let (bytes, device) = (reservation.bytes, reservation.device);
        state.reservations.push(ReservationState { address, bytes, device });
    }
    for (&address, mapping) in &memory.mappings {
        let (bytes, serial, access) = (mapping.bytes, mapping.serial, mapping.access);
        state.mappings.push(MappingState { address, bytes, serial, access });
    }
    for pinned in &client.pinned {
        let name = pinned.name.clone();
        let (address, bytes, device) = (pinned.address, pinned.bytes, pinned.device);
        state.pinned.push(PinnedState { name, address, bytes, device });
    }
}

/// Where a handle of the program's own can be copied from or to.
pub(super) struct Window {
    pub serial: u64,
    pub location: PartLocation,
    /// Mapped for the copy only.
    temporary: bool,
}

/// Finds an accessible mapping of each handle whose contents are this process's, or makes one.
pub(super) fn map_physical(client: &mut Client) -> Result<Vec<Window>> {
    let memory = &client.virtual_memory;
    let mut windows: Vec<Window> = Vec::new();
    for (&serial, physical) in memory.physical.iter().filter(|(serial, _)| !client.is_of_others(**serial)) {
        let (device, bytes) = (physical.device, physical.bytes);
        let mapped = memory
            .mappings
            .iter()
            .find(|(_, mapping)| mapping.serial == serial && mapping.access == Access::ReadWrite);
        let (address, temporary) = mapped.map_or((0, true), |(address, _)| (*address, false));
        windows.push(Window { serial, location: PartLocation { device, address, bytes }, temporary });
    }
    for at in 0..windows.len() {
        if !windows[at].temporary {
            continue;
        }
        match open_window(client, &windows[at]) {
            Ok(address) => windows[at].location.address = address,
            Err(error) => {
                windows.truncate(at);
                unmap_windows(client, &windows)?;
                return Err(error);
            }
        }
    }
    Ok(windows)
}

fn open_window(client: &mut Client, window: &Window) -> Result<u64> {
    let PartLocation { device: index, bytes, .. } = window.location;
    let memory = client.virtual_memory.physical.get(&window.serial).map(|physical| physical.memory);
    let memory = memory.ok_or_else(|| super::Error::State("a handle is missing".to_string()))?;
    let heap = client.heap(index).map_err(device("be used"))?;
    let granularity = heap.granularity();
    let address = heap.take_addresses(bytes, granularity, 0).map_err(device("reserve addresses"))?;
    let gpu = client.on(index).map_err(device("be used"))?;
    let mapped =
        gpu.map(address, bytes, memory).and_then(|()| gpu.protect(address, bytes, Access::ReadWrite));
    mapped.map_err(device("map a buffer"))?;
    Ok(address)
}

pub(super) fn unmap_windows(client: &mut Client, windows: &[Window]) -> Result<()> {
    for Window { location, .. } in windows.iter().filter(|window| window.temporary) {
        let gpu = client.on(location.device).map_err(device("be used"))?;
        gpu.unmap(location.address, location.bytes).map_err(device("unmap a buffer"))?;
        let heap = client.heap(location.device).map_err(device("be used"))?;
        heap.give_addresses(location.address, location.bytes);
    }
    Ok(())
}
