//! Everything through the real programs, in one binary: its tests wait more than they compute, and run side by side.

mod archive;
mod caches;
mod checkpoint;
mod completion;
mod disk;
mod driver;
mod events;
mod exec;
mod gpu;
mod harness;
mod hashing;
mod input;
mod life;
mod logs;
mod pool;
mod run;
mod settings;
mod stats;
mod terminal;
