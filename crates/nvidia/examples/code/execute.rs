//! The kernels of a cubin run whole and in pieces; results and globals are compared.

use std::path::PathBuf;

use memmap2::MmapMut;
use rekindle_code::{Preparation, Prepared, prepare};
use rekindle_device::{Access, DEVICE_RANGE, Launch, Module, Result, Stream};
use serde_json::json;

use crate::compare::Gpu;
use crate::tally::Tally;

const THREADS: u32 = 64;
const RESULT_BYTES: u64 = THREADS as u64 * 8;
const DYNAMIC_SHARED: u32 = THREADS * 8;
/// Results lie here, a module's globals behind them.
const RESULTS: u64 = DEVICE_RANGE.start;

/// The driver gives a place that is asked for where it is large.
const REGION: u64 = 1 << 40;

/// What a kernel left behind.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    results: Vec<u8>,
    /// By name; those that hold addresses differ by what they point to and are left out.
    globals: Vec<(String, Vec<u8>)>,
}

/// Device memory at `RESULTS`, with as much of the host's, known to the GPU.
struct Room<'a> {
    gpu: &'a Gpu,
    host: MmapMut,
    bytes: u64,
    globals: u64,
}

impl<'a> Room<'a> {
    fn new(gpu: &'a Gpu, bytes: u64) -> std::result::Result<Room<'a>, Box<dyn std::error::Error>> {
        let device = &gpu.device;
        let step = device.granularity();
        let bytes = (RESULT_BYTES.next_multiple_of(4096) + bytes).next_multiple_of(step);
        device.reserve(RESULTS, REGION)?;
        let memory = device.memory_create(bytes)?;
        device.map(RESULTS, bytes, memory)?;
        device.protect(RESULTS, bytes, Access::ReadWrite)?;
        let host = MmapMut::map_anon(bytes as usize)?;
        device.host_register(host.as_ptr() as u64, bytes)?;
        Ok(Room { gpu, host, bytes, globals: RESULTS + RESULT_BYTES.next_multiple_of(4096) })
    }

    fn fill(&mut self, initial: &[u8]) -> Result<()> {
        self.host.fill(0);
        let start = (self.globals - RESULTS) as usize;
        self.host[start..start + initial.len()].copy_from_slice(initial);
        self.gpu.device.copy(RESULTS, self.host.as_ptr() as u64, self.bytes, Stream::LEGACY)?;
        self.gpu.device.synchronize()
    }

    fn read(&mut self, address: u64, bytes: u64) -> Result<Vec<u8>> {
        self.gpu.device.copy(self.host.as_ptr() as u64, address, bytes, Stream::LEGACY)?;
        self.gpu.device.synchronize()?;
        Ok(self.host[..bytes as usize].to_vec())
    }

    fn launch(&self, module: Module, kernel: &str) -> Result<()> {
        let function = self.gpu.device.function(module, kernel)?;
        let launch =
            Launch { grid: [1; 3], block: [THREADS, 1, 1], shared: DYNAMIC_SHARED, ..Launch::default() };
        self.gpu.device.launch(function, &launch, Stream::LEGACY, &RESULTS.to_le_bytes())?;
        self.gpu.device.synchronize()
    }

    fn outcome(&mut self, prepared: &Prepared, place: impl Fn(&str, u64) -> Result<u64>) -> Result<Outcome> {
        let results = self.read(RESULTS, RESULT_BYTES)?;
        let mut globals = Vec::new();
        let written = |name: &str| !name.starts_with('$') && !["inner", "chain"].contains(&name);
        for global in prepared.globals.all.iter().filter(|global| written(&global.name)) {
            let address = place(&global.name, global.offset)?;
            globals.push((global.name.clone(), self.read(address, global.bytes)?));
        }
        Ok(Outcome { results, globals })
    }
}

pub fn execute(
    gpu: &Gpu,
    cubins: &[PathBuf],
    tally: &mut Tally,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for path in cubins {
        match prepare(&std::fs::read(path)?, gpu.capability())? {
            Preparation::Prepared(prepared) => all.push(prepared),
            Preparation::Whole(whole) => return Err(format!("{}: {whole}", path.display()).into()),
        }
    }
    let Some(most) = all.iter().map(|prepared| prepared.globals.bytes).max() else { return Ok(()) };
    let mut room = Room::new(gpu, most)?;
    for prepared in &all {
        let initial = prepared.globals.initial(room.globals);
        for kernel in prepared.kernels.keys() {
            let whole = whole(gpu, &mut room, prepared, kernel)?;
            room.fill(&initial)?;
            let code = prepared.piece(kernel, room.globals)?;
            match piece(gpu, &mut room, prepared, kernel, &code) {
                Ok(outcome) if outcome == whole => tally.count("run: same"),
                Ok(outcome) => {
                    let example = json!([kernel, format!("{outcome:?}"), format!("{whole:?}")]);
                    tally.example("run: differs", example);
                }
                Err(code) => tally.example("run: failed", json!([kernel, code.to_string()])),
            }
        }
    }
    Ok(())
}

fn whole(gpu: &Gpu, room: &mut Room<'_>, prepared: &Prepared, kernel: &str) -> Result<Outcome> {
    room.fill(&[])?;
    let module = gpu.load(prepared.cubin())?;
    room.launch(module, kernel)?;
    let device = gpu.device.clone();
    let outcome = room.outcome(prepared, |name, _| Ok(device.global(module, name)?.0))?;
    gpu.device.module_unload(module)?;
    Ok(outcome)
}

fn piece(gpu: &Gpu, room: &mut Room<'_>, prepared: &Prepared, kernel: &str, code: &[u8]) -> Result<Outcome> {
    let module = gpu.load(code)?;
    room.launch(module, kernel)?;
    let start = room.globals;
    let outcome = room.outcome(prepared, |_, offset| Ok(start + offset))?;
    gpu.device.module_unload(module)?;
    Ok(outcome)
}
