//! What is wrong with CRIU's images in a directory, and how long it takes to see.
//!
//! soundness IMAGES [PAGE-FILES] [TIMES]

use std::path::PathBuf;
use std::time::Instant;

use rekindle_sandbox::soundness::faults;

fn main() {
    let mut words = std::env::args().skip(1);
    let Some(images) = words.next().map(PathBuf::from) else {
        eprintln!("soundness IMAGES [PAGE-FILES] [TIMES]");
        std::process::exit(2);
    };
    let page_files = words.next().map(PathBuf::from);
    let times = words.next().and_then(|times| times.parse().ok()).unwrap_or(1);
    let mut found = Vec::new();
    for _ in 0..times {
        let began = Instant::now();
        found = faults(&images, page_files.as_deref());
        println!("{}", began.elapsed().as_micros());
    }
    for fault in &found {
        eprintln!("{fault}");
    }
    std::process::exit(i32::from(!found.is_empty()));
}
