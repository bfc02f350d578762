//! How fast a store writes and reads one large GPU buffer here:
//! `cargo run --release -p rekindle-store --example throughput -- DIRECTORY [GIB]`.
//! DIRECTORY must not exist yet and is removed again.

use std::path::Path;
use std::time::Instant;

use rekindle_store::{ContentHash, PartKind, Store};
use serde_json::Value;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().ok_or("which directory?")?;
    let gib: usize = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let root = Path::new(&root);
    let mut data = vec![0; gib << 30];
    blake3::Hasher::new().finalize_xof().fill(&mut data);
    let gigabytes = data.len() as f64 / 1e9;
    let measure = |what: &str, begun: Instant| {
        let seconds = begun.elapsed().as_secs_f64();
        println!("{what:38} {:8.1} ms {:8.2} GB/s", seconds * 1e3, gigabytes / seconds);
    };

    let store = Store::open(root)?;
    for name in ["new contents", "the same contents again"] {
        let draft = store.begin(name)?;
        let begun = Instant::now();
        draft.put(PartKind::GpuBuffer, "buffer", Value::Null, &data)?;
        measure(&format!("put, {name}"), begun);
        let begun = Instant::now();
        draft.commit()?;
        measure("  and commit", begun);
    }
    let image = store.image("new contents")?;
    let part = image.part(PartKind::GpuBuffer, "buffer").ok_or("the part is gone")?;
    let mut threads = 1;
    let most = std::thread::available_parallelism()?.get();
    while threads <= most {
        data.fill(1);
        let begun = Instant::now();
        image.read_part_parallel(part, &mut data, threads)?;
        measure(&format!("read and check, threads: {threads}"), begun);
        let begun = Instant::now();
        image.check_parts(&[part], threads)?;
        measure(&format!("check only, threads: {threads}"), begun);
        threads *= 2;
    }
    drop(image);
    let mut copy = vec![1; data.len()];
    let share = data.len() / most;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (from, to) in data.chunks(share).zip(copy.chunks_mut(share)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
    measure(&format!("for comparison: copy, threads: {most}"), begun);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for span in data.chunks(share) {
            scope.spawn(|| {
                span.chunks(2 << 20).for_each(|chunk| {
                    std::hint::black_box(ContentHash::of(chunk));
                })
            });
        }
    });
    measure(&format!("for comparison: hash, threads: {most}"), begun);
    let begun = Instant::now();
    std::fs::remove_dir_all(root)?;
    measure("remove", begun);
    Ok(())
}
