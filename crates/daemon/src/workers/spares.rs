//! Workers that nobody has yet: where they listen, and where they log. They end with this daemon unless a sandbox
//! [takes](super::Worker::take) them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Address, OnEnd, Purpose, Start, Worker};
use crate::error::Result;
use crate::host::places::{Places, private_directory};

/// How their logs begin.
const LOG_STEM: &str = "pool-";

pub struct Spares {
    /// `rekindled` itself, which workers are made of.
    program: PathBuf,
    places: Places,
}

impl Spares {
    /// Clears away what a daemon that was killed has left.
    pub fn open(places: &Places, program: PathBuf) -> Arc<Spares> {
        let spares = Spares { program, places: places.clone() };
        spares.clear();
        Arc::new(spares)
    }

    /// Starts one on this GPU. What it leaves is removed when it ends while nobody has it, before `on_end`.
    pub fn start(&self, gpu: &str, on_end: OnEnd) -> Result<Arc<Worker>> {
        let directory = self.places.pool();
        private_directory(&directory, true)?;
        let id = self.places.new_id()?;
        let log = self.places.logs().join(format!("{LOG_STEM}{id}.log"));
        let address = Address { number: 0, socket: directory.join(format!("{id}.sock")), log };
        let left = [address.socket.clone(), address.log.clone()];
        let start = Start {
            program: &self.program,
            address,
            gpu,
            output: Path::new("/dev/null"),
            purpose: Purpose::Spare,
            data: self.places.data_socket(),
        };
        let on_end: OnEnd = Box::new(move |worker| {
            for path in left {
                let _ = std::fs::remove_file(path);
            }
            on_end(worker);
        });
        Worker::start(&start, on_end)
    }

    /// Where workers find the memory daemon.
    pub fn data(&self) -> PathBuf {
        self.places.data_socket()
    }

    /// Removes the places of all.
    pub fn clear(&self) {
        let _ = std::fs::remove_dir_all(self.places.pool());
        for entry in std::fs::read_dir(self.places.logs()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(LOG_STEM) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
