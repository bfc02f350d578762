//! What a program has while CRIU restores it, and not once it runs: one processor for all of it, and that before others.
//!
//! CRIU has given each thread its own priority before it leads them through their last system calls. On a machine with other
//! work each of these steps would wait for a processor: vLLM's threads took a quarter of a second.

use std::fs;
use std::path::Path;

use nix::unistd::Pid;
use rekindle_parallel::Urgent;

use super::one_processor::OneProcessor;
use crate::attributes::Attributes;
use crate::process;

/// Ends when the program is about to run: then its threads get what they had.
pub struct Haste<'a> {
    one_processor: Option<OneProcessor>,
    threads: Vec<Urgent>,
    attributes: Option<&'a Attributes>,
}

impl<'a> Haste<'a> {
    /// For a restore from these images. Several processes come back beside each other, on all processors.
    pub fn begin(images: &Path, criu: Pid, attributes: &'a Attributes) -> Haste<'a> {
        let is_alone = processes(images) == 1;
        let one_processor = is_alone.then(|| OneProcessor::take([criu.as_raw()])).flatten();
        Haste { one_processor, threads: Vec::new(), attributes: Some(attributes) }
    }

    /// All threads are there, and have their own priorities.
    pub fn complete(&mut self) {
        let own = std::process::id() as i32;
        let others = process::all().into_iter().filter(|pid| *pid != own);
        let threads: Vec<_> = others.flat_map(process::threads).collect();
        self.one_processor =
            self.one_processor.take().or_else(|| OneProcessor::take(threads.iter().copied()));
        self.threads = threads.into_iter().filter_map(Urgent::of).collect();
    }

    /// What could not be had is told in sentences. Nothing happens a second time.
    pub fn end(&mut self) -> Vec<String> {
        self.one_processor.take().into_iter().for_each(OneProcessor::give_back);
        self.threads.clear();
        self.attributes.take().into_iter().flat_map(Attributes::set).collect()
    }
}

/// Of how many processes these images are.
fn processes(images: &Path) -> usize {
    let files = fs::read_dir(images).into_iter().flatten().flatten();
    files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"mm-")).count()
}
