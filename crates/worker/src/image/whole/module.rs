//! One module that is whole, or a kernel or global of it, as it was; and the contents of globals.

use rekindle_cuda::CUDA_ERROR_INVALID_VALUE;
use rekindle_device::{GpuKind, Loaded, Module, Placement};
use rekindle_store::{Image, PartKind};

use super::super::block::{Block, Blocks};
use super::super::error::{Error, Result, device};
use super::super::restore_code::{code, insert, settings};
use super::super::save_memory;
use super::super::state::{FunctionState, ModuleState, State, globals_part};
use crate::client::{Body, Client, GlobalGiven, ModuleObject, ModuleWriteSets};

/// Globals are filled through a block of this size.
const BLOCK: usize = 2 << 20;

pub(super) fn load(
    client: &mut Client,
    image: &Image,
    (state, row): (&State, &ModuleState),
) -> Result<ModuleObject> {
    let code = code(client, image, row)?;
    let gpu = client.on(row.device).map_err(device("be used"))?;
    let mut options = row.options.clone();
    if gpu.info().kind == GpuKind::Emulated
        && let Some(first) = row.contents.iter().map(|global| global.address).min()
    {
        options.push((rekindle_emulated::OPTION_MODULE_ADDRESS, first & !0xfff));
    }
    let loaded = gpu.module_load(code.code().map_err(Error::PendingCode)?, row.kind, &options);
    let Loaded { module: handle, .. } = loaded.map_err(|error| Error::Device {
        action: format!("load a module again ({})", error.log.trim()),
        code: error.code,
    })?;
    client.may_print = true;
    Ok(ModuleObject {
        body: Body::Whole(handle),
        whole: row.id.and_then(|id| state.whole.get(&id).cloned()),
        device: row.device,
        kind: row.kind,
        options: row.options.clone(),
        write_sets: ModuleWriteSets::of(code.clone()),
        code,
        loaded_at: row.loaded_at,
        unloaded_at: row.unloaded_at,
        globals: row.given.clone(),
    })
}

pub(super) fn function(client: &mut Client, row: &FunctionState) -> Result<()> {
    let module = client.modules.get(row.module).map_err(device("find a module"))?;
    let (index, module) = (module.device, whole(module)?);
    let gpu = client.on(index).map_err(device("be used"))?;
    let again = || {
        let handle = gpu.function(module, &row.name)?;
        settings(row).all().try_for_each(|setting| setting.apply(gpu, handle))?;
        Ok(handle)
    };
    let handle = again().map_err(device(format!("find kernel {} again", row.name)))?;
    insert(client, row, Some(handle))
}

/// What the driver has of a module that is not in pieces.
pub(super) fn whole(module: &ModuleObject) -> Result<Module> {
    module.body.whole().ok_or(CUDA_ERROR_INVALID_VALUE).map_err(device("find a module"))
}

/// An address that the program holds must still be the global's.
pub(super) fn check_global(client: &Client, module: &ModuleObject, given: &GlobalGiven) -> Result<()> {
    let gpu = &client.context(module.device).map_err(device("be used"))?.device;
    let found = gpu.global(whole(module)?, &given.name);
    let (address, _) = found.map_err(device(format!("find the global {} again", given.name)))?;
    if address == given.address {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the program holds the address {:#x} of its global {}, and the GPU now puts it at {address:#x}; \
         nothing else can be done with this image on this worker",
        given.address, given.name
    )))
}

/// Whether the driver has put code elsewhere than it was: a word of a global that was an address in `then`, heaps of code, and
/// as the module was loaded now is another one in `now`.
fn has_moved(saved: &[u8], loaded: &[u8], then: &[Placement], now: &[Placement]) -> bool {
    let words = |bytes: &[u8]| {
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<_>>()
    };
    let is_in = |heaps: &[Placement], word: &u64| {
        heaps.iter().any(|heap| (heap.address..heap.address + heap.bytes).contains(word))
    };
    words(saved).iter().zip(&words(loaded)).any(|(was, is)| was != is && is_in(then, was) && is_in(now, is))
}

/// Of the driver's heaps those of code.
fn of_code(mut heaps: Vec<Placement>) -> Vec<Placement> {
    heaps.retain(|heap| heap.code);
    heaps
}

/// Fills globals and constants.
pub(super) fn contents(client: &mut Client, image: &Image, state: &State) -> Result<()> {
    if state.modules.iter().all(|row| row.contents.is_empty()) {
        return Ok(());
    }
    let gpus = save_memory::gpus(client);
    let any = client.any_device().map_err(device("be used"))?;
    let mut blocks = Blocks::new(any, BLOCK, 1).map_err(device("pin a block of host memory"))?;
    let mut blocks = blocks.split();
    // An emulated GPU has none.
    let (then, now) = (of_code(state.placements.clone()), of_code(client.gpus.placements()));
    for row in state.modules.iter().filter(|row| !row.contents.is_empty()) {
        let Some(id) = row.id else { continue };
        let name = globals_part(row.loaded_at);
        let part = image.part(PartKind::GpuBuffer, &name);
        let part = part.ok_or_else(|| Error::State(format!("the image has no part {name}")))?;
        client.bind(row.device).map_err(device("be used"))?;
        let module = whole(client.modules.get(id).map_err(device("find a module"))?)?;
        let (Some(block), Some(Some(gpu))) = (blocks.first_mut(), gpus.get(row.device)) else { continue };
        let mut at = 0;
        for global in &row.contents {
            let found = gpu.device.global(module, &global.name);
            let (address, bytes) = found.map_err(device(format!("find the global {} again", global.name)))?;
            if bytes != global.bytes {
                let text = format!("the global {} has {bytes} bytes and had {}", global.name, global.bytes);
                return Err(Error::Refused(text));
            }
            let mut done = 0;
            while done < bytes {
                let count = (bytes - done).min(block.capacity() as u64);
                let fill = |code| device(format!("fill the global {}", global.name))(code);
                let mut loaded = Vec::new();
                if !then.is_empty() {
                    block.fetch(gpu, address + done, count as usize).map_err(fill)?;
                    loaded.extend_from_slice(block.bytes(count as usize).map_err(fill)?);
                }
                let saved = block.bytes(count as usize).map_err(fill)?;
                image.read_part(part, at, saved)?;
                if has_moved(saved, &loaded, &then, &now) {
                    return Err(Error::Refused(format!(
                        "its global {} has addresses of functions, which the GPU now puts elsewhere; nothing else can be done \
                         with this image on this worker",
                        global.name
                    )));
                }
                block.put(gpu, address + done, count as usize).map_err(fill)?;
                (done, at) = (done + count, at + count);
            }
        }
    }
    blocks.iter_mut().try_for_each(Block::wait).map_err(device("fill a global"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_lies_elsewhere_is_seen_by_addresses_of_functions_alone() {
        let heap = |address, code| Placement { address, bytes: 0x1000, code };
        let then = of_code(vec![heap(0x10000, true), heap(0x20000, false)]);
        let now = of_code(vec![heap(0x10000, true), heap(0x30000, true)]);
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        let moved = |was: &[u64], is: &[u64]| has_moved(&bytes(was), &bytes(is), &then, &now);
        assert!(!moved(&[7, 0x10010], &[7, 0x10010]));
        assert!(moved(&[7, 0x10010], &[7, 0x30010]));
        // What the program has written there is no address of code, or was none when the module was loaded.
        assert!(!moved(&[0x20010, 0x10010], &[0x10010, 0]));
    }
}
