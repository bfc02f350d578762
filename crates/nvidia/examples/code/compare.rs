//! One fatbin: prepared, cut, loaded whole and in pieces, and what the driver says of both.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rekindle_code::{Kernel, Preparation, Prepared, prepare};
use rekindle_device::{
    Code, DEVICE_RANGE, Device, FunctionInfo, Module, ModuleKind, Parameter, Platform, Result,
};
use rekindle_nvidia::{NvidiaPlatform, limits};
use serde_json::json;

use crate::tally::Tally;

pub struct Gpu {
    platform: NvidiaPlatform,
    pub device: Arc<dyn Device>,
}

impl Gpu {
    pub fn open() -> std::result::Result<Gpu, Box<dyn std::error::Error>> {
        let platform = NvidiaPlatform::open()?;
        let device = platform.open(0)?;
        Ok(Gpu { platform, device })
    }

    pub fn capability(&self) -> u32 {
        let (major, minor) = self.device.info().compute_capability;
        major * 10 + minor
    }

    pub fn describe(&self) -> String {
        format!("{}, driver {}", self.device.info().name, self.platform.driver_name())
    }

    /// What fails later fails there.
    pub fn bind(&self) {
        if let Err(code) = self.device.bind() {
            eprintln!("the context cannot be made current: {code}");
        }
    }

    pub fn load(&self, code: &[u8]) -> Result<Module> {
        let loaded = self.device.module_load(Code::new(code.to_vec()), ModuleKind::Library, &[]);
        loaded.map(|loaded| loaded.module).map_err(|error| error.code)
    }
}

pub fn fatbin(gpu: Option<&Gpu>, fatbin: &[u8], capability: u32, pieces: usize, tally: &mut Tally) {
    tally.count("fatbins");
    let start = Instant::now();
    let prepared = match prepare(fatbin, capability) {
        Ok(Preparation::Prepared(prepared)) => prepared,
        Ok(Preparation::Whole(whole)) => {
            tally.example(&format!("whole: {}", whole.word()), json!(whole.to_string()));
            return;
        }
        Err(rekindle_code::Error::FatbinCapability { .. }) => {
            tally.count("no code for this GPU");
            return;
        }
        Err(error) => {
            tally.example("cannot be read", json!(error.to_string()));
            return;
        }
    };
    tally.sum("prepare ms", ms(start));
    tally.count("prepared");
    if prepared.globals.bytes > 0 {
        tally.count("prepared, with globals");
        tally.sum("bytes of globals", prepared.globals.bytes as f64);
    }
    tally.sum("kernels", prepared.kernels.len() as f64);
    tally.sum("bytes of cubins", prepared.cubin().len() as f64);
    let whole = gpu.and_then(|gpu| Whole::load(gpu, &prepared, tally));
    for kernel in chosen(&prepared, pieces) {
        let start = Instant::now();
        let piece = match prepared.piece(&kernel.name, DEVICE_RANGE.start) {
            Ok(piece) => piece,
            Err(error) => {
                tally.example("piece: not cut", json!([kernel.name, error.to_string()]));
                continue;
            }
        };
        tally.sum("cut ms", ms(start));
        tally.count("pieces");
        tally.sum("bytes of pieces", piece.len() as f64);
        if let (Some(gpu), Some(whole)) = (gpu, &whole) {
            compare(gpu, whole, kernel, &piece, tally);
        }
    }
    if let (Some(gpu), Some(whole)) = (gpu, whole) {
        whole.compare_notes(gpu, &prepared, tally);
        if gpu.device.module_unload(whole.module).is_err() {
            tally.count("whole: not unloaded");
        }
    }
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// So many kernels, spread over all.
fn chosen(prepared: &Prepared, most: usize) -> impl Iterator<Item = &Kernel> {
    let step = prepared.kernels.len().div_ceil(most.max(1)).max(1);
    prepared.kernels.values().step_by(step).take(most)
}

struct Whole {
    module: Module,
}

impl Whole {
    fn load(gpu: &Gpu, prepared: &Prepared, tally: &mut Tally) -> Option<Whole> {
        let start = Instant::now();
        match gpu.load(prepared.cubin()) {
            Ok(module) => {
                tally.count("whole: loaded");
                // The first look-up is what loads it.
                if let Some(kernel) = prepared.kernels.keys().next()
                    && let Err(code) = gpu.device.function(module, kernel)
                {
                    tally.example("whole: no first kernel", json!([kernel, code.to_string()]));
                }
                tally.sum("whole: load and function ms", ms(start));
                Some(Whole { module })
            }
            Err(code) => {
                tally.example("whole: not loaded", json!(code.to_string()));
                None
            }
        }
    }

    /// Every kernel's notes against what the driver says.
    fn compare_notes(&self, gpu: &Gpu, prepared: &Prepared, tally: &mut Tally) {
        let limits = limits(gpu.device.info());
        let mut same = true;
        for kernel in prepared.kernels.values() {
            let function = gpu.device.function(self.module, &kernel.name);
            let info = match function.and_then(|function| gpu.device.function_info(function)) {
                Ok(info) => info,
                Err(code) => {
                    tally.example("notes: kernel not found", json!([kernel.name, code.to_string()]));
                    continue;
                }
            };
            tally.count("notes: kernels");
            let told = kernel.attributes(&limits);
            for (attribute, (told, said)) in told.iter().zip(&info.attributes).enumerate() {
                match told {
                    None => tally.count(&format!("notes: attribute {attribute} not told")),
                    Some(told) if told == said => {}
                    Some(told) => {
                        same = false;
                        let example = json!({
                            "notes": told, "driver": said, "all": info.attributes, "kernel": format!("{kernel:?}"),
                        });
                        let what = format!("notes: attribute {attribute} differs");
                        if tally.has_room(&what) {
                            keep(prepared, kernel, attribute, tally.seen(&what));
                        }
                        tally.example(&what, example);
                    }
                }
            }
            let parameters = kernel.parameters.as_ref().map(|rows| {
                rows.iter().map(|row| Parameter { offset: row.offset, size: row.bytes }).collect::<Vec<_>>()
            });
            if parameters.as_ref() != Some(&info.parameters) {
                same = false;
                let example = json!([format!("{kernel:?}"), format!("{:?}", info.parameters)]);
                tally.example("notes: parameters differ", example);
            }
        }
        tally.count(if same { "notes: cubins all the same" } else { "notes: cubins with differences" });
    }
}

/// Keeps a piece whose notes say other than the driver, where `REKINDLE_CODE_KEEP` names a folder.
fn keep(prepared: &Prepared, kernel: &Kernel, attribute: usize, number: u64) {
    let Some(folder) = std::env::var_os("REKINDLE_CODE_KEEP") else { return };
    let thread = format!("{:?}", std::thread::current().id()).replace(|c: char| !c.is_ascii_digit(), "");
    let path = Path::new(&folder).join(format!("attribute-{attribute}-{thread}-{number}.cubin"));
    let written = prepared.piece(&kernel.name, 0).map(|piece| std::fs::write(&path, piece));
    if !matches!(written, Ok(Ok(()))) {
        eprintln!("{} was not kept", path.display());
    }
}

/// A piece against the whole, as the driver describes both.
fn compare(gpu: &Gpu, whole: &Whole, kernel: &Kernel, piece: &[u8], tally: &mut Tally) {
    let describe = |module| -> Result<FunctionInfo> {
        gpu.device.function_info(gpu.device.function(module, &kernel.name)?)
    };
    let start = Instant::now();
    let module = match gpu.load(piece) {
        Ok(module) => module,
        Err(code) => {
            tally.example("piece: not loaded", json!([kernel.name, code.to_string(), piece.len()]));
            return;
        }
    };
    let found = gpu.device.function(module, &kernel.name);
    tally.sum("piece: load and function ms", ms(start));
    match found.and_then(|_| Ok((describe(module)?, describe(whole.module)?))) {
        Ok((piece, whole)) if piece == whole => tally.count("piece: same as whole"),
        Ok((piece, whole)) => {
            let example = json!([kernel.name, format!("{piece:?}"), format!("{whole:?}")]);
            tally.example("piece: described otherwise than whole", example);
        }
        Err(code) => tally.example("piece: no kernel", json!([kernel.name, code.to_string()])),
    }
    if gpu.device.module_unload(module).is_err() {
        tally.count("piece: not unloaded");
    }
}
