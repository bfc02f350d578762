//! What options let choose between.

use clap::ValueEnum;
use rekindle_protocol::daemon::{Level, LoadOrder, Mode};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArgument {
    /// What fits: to start, `sandbox` unless it is known that the program cannot run there; to checkpoint, `driver` for what
    /// Rekindle did not start.
    Auto,
    Sandbox,
    Driver,
}

impl ModeArgument {
    pub fn wanted(self) -> Option<Mode> {
        match self {
            ModeArgument::Auto => None,
            ModeArgument::Sandbox => Some(Mode::Sandbox),
            ModeArgument::Driver => Some(Mode::Driver),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineArgument {
    Podman,
    Containerd,
}

impl EngineArgument {
    pub fn wanted(self) -> String {
        match self {
            EngineArgument::Podman => "podman",
            EngineArgument::Containerd => "containerd",
        }
        .to_string()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArgument {
    /// GPU calls wait until all is loaded.
    None,
    /// As the image has them. GPU calls wait for what they name.
    Default,
    /// As recorded by `rekindle profile` or learned from earlier restores, else as the image has them.
    Profile,
    /// What is needed first comes last; to measure what an order is worth.
    Worst,
}

impl OrderArgument {
    pub fn wanted(self) -> LoadOrder {
        match self {
            OrderArgument::None => LoadOrder::None,
            OrderArgument::Default => LoadOrder::Default,
            OrderArgument::Profile => LoadOrder::Profile,
            OrderArgument::Worst => LoadOrder::Worst,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LevelArgument {
    /// It stays on the GPU; the context goes.
    Gpu,
    /// Into this machine's memory.
    Host,
    /// Below the state directory.
    Disk,
}

impl LevelArgument {
    pub fn wanted(self) -> Level {
        match self {
            LevelArgument::Gpu => Level::Gpu,
            LevelArgument::Host => Level::Host,
            LevelArgument::Disk => Level::Disk,
        }
    }
}
