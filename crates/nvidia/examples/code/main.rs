//! Takes apart all code that libraries ship for a GPU, loads the pieces with the driver, and compares.
//!
//! ```text
//! code [--dry] [--seconds N] [--pieces N] [--threads N] [--run CUBIN]... --out JSON LIBRARY...
//! ```
//! Of every cubin: whether it can be prepared, and why not; so many kernels cut out, loaded, and compared with the
//! same kernel of the whole cubin, as the driver describes both; what the notes say of every kernel, compared with
//! what the driver says. With `--run`, the kernels of a cubin are run whole and in pieces before that. `--dry` does without a GPU, as if there were one of compute capability 9.0.

mod compare;
mod execute;
mod library;
mod tally;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use compare::Gpu;
use tally::Tally;

struct Options {
    dry: bool,
    limit: Duration,
    pieces: usize,
    threads: usize,
    run: Vec<PathBuf>,
    out: PathBuf,
    libraries: Vec<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        dry: false,
        limit: Duration::from_secs(120),
        pieces: 2,
        threads: 4,
        libraries: Vec::new(),
        run: Vec::new(),
        out: PathBuf::from("code.json"),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            value.parse::<usize>().map_err(|error| format!("{word} {value}: {error}"))
        };
        match word.as_str() {
            "--run" => options.run.extend(words.next().map(PathBuf::from)),
            "--out" => options.out = words.next().map_or(options.out, PathBuf::from),
            "--dry" => options.dry = true,
            "--seconds" => options.limit = Duration::from_secs(number()? as u64),
            "--pieces" => options.pieces = number()?,
            "--threads" => options.threads = number()?.max(1),
            path => options.libraries.push(PathBuf::from(path)),
        }
    }
    Ok(options)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let started = Instant::now();
    let gpu = if options.dry { None } else { Some(Gpu::open()?) };
    let capability = gpu.as_ref().map_or(90, Gpu::capability);
    let mut libraries = serde_json::Map::new();
    let mut all = Tally::default();
    if let Some(gpu) = &gpu {
        gpu.bind();
        if let Err(error) = execute::execute(gpu, &options.run, &mut all) {
            all.example("run: failed", serde_json::json!(error.to_string()));
        }
    }
    for path in &options.libraries {
        let file = std::fs::File::open(path)?;
        // SAFETY: an installed library is replaced by renaming, not rewritten in place.
        let bytes = unsafe { memmap2::Mmap::map(&file) }?;
        let fatbins = library::fatbins(&bytes);
        let next = AtomicUsize::new(0);
        let tally = Mutex::new(Tally::default());
        std::thread::scope(|scope| {
            for _ in 0..options.threads {
                scope.spawn(|| {
                    let mut own = Tally::default();
                    if let Some(gpu) = &gpu {
                        gpu.bind();
                    }
                    while let Some(fatbin) = fatbins.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if started.elapsed() > options.limit {
                            own.count("out of time");
                            continue;
                        }
                        compare::fatbin(gpu.as_ref(), fatbin, capability, options.pieces, &mut own);
                    }
                    tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(own);
                });
            }
        });
        let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        eprintln!("{:6.1} {name}: {} fatbins", started.elapsed().as_secs_f32(), fatbins.len());
        if !fatbins.is_empty() {
            libraries.insert(name, tally.json());
        }
        all.add(tally);
    }
    let report = serde_json::json!({
        "gpu": gpu.as_ref().map(Gpu::describe),
        "seconds": started.elapsed().as_secs_f64(),
        "all": all.json(),
        "libraries": libraries,
    });
    std::fs::write(&options.out, serde_json::to_string_pretty(&report)?)?;
    Ok(())
}
