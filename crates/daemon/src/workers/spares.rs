//! Workers that nobody has yet: where they listen, and where they log. They end with this daemon unless a sandbox
//! [takes](super::Worker::take) them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Address, OnEnd, Purpose, Start, Worker};
use crate::error::Result;
use crate::host::paths::{Paths, private_directory};

/// How their logs begin.
const LOG_STEM: &str = "pool-";

pub struct Spares {
    /// `rekindled` itself, which workers are made of.
    program: PathBuf,
    paths: Paths,
}

impl Spares {
    /// Clears away what a daemon that was killed has left.
    pub fn open(paths: &Paths, program: PathBuf) -> Arc<Spares> {
        let spares = Spares { program, paths: paths.clone() };
        spares.clear();
        Arc::new(spares)
    }

    /// Starts one on this GPU.
    pub fn start(&self, gpu: &str, on_end: OnEnd) -> Result<Arc<Worker>> {
        let (address, on_end) = self.place(on_end)?;
        let start = Start {
            program: &self.program,
            address,
            gpu,
            output: Path::new("/dev/null"),
            purpose: Purpose::Spare,
            data: self.data(),
            links: self.links(),
        };
        Worker::start(&start, on_end)
    }

    /// A place for one. What it leaves there is removed when it ends while nobody has it, before `on_end`.
    pub fn place(&self, on_end: OnEnd) -> Result<(Address, OnEnd)> {
        let directory = self.paths.pool();
        private_directory(&directory, true)?;
        let id = self.paths.new_id()?;
        let log = self.paths.logs().join(format!("{LOG_STEM}{id}.log"));
        let address = Address { number: 0, socket: directory.join(format!("{id}.sock")), log };
        let left = [address.socket.clone(), address.log.clone()];
        let on_end: OnEnd = Box::new(move |worker| {
            for path in left {
                let _ = std::fs::remove_file(path);
            }
            on_end(worker);
        });
        Ok((address, on_end))
    }

    /// Where workers find the memory daemon.
    pub fn data(&self) -> PathBuf {
        self.paths.data_socket()
    }

    /// Where the pages are by which workers share links.
    pub fn links(&self) -> PathBuf {
        self.paths.links()
    }

    /// Removes the places of all.
    pub fn clear(&self) {
        let _ = std::fs::remove_dir_all(self.paths.pool());
        for entry in std::fs::read_dir(self.paths.logs()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(LOG_STEM) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
