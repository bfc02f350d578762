//! Why the emulated GPUs cannot be made.

/// Each message says what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{0}` has no `=`: set the emulated GPU as in `devices=2,memory=8G,bandwidth=12G`")]
    Pair(String),
    #[error(
        "`{0}` is not a setting of the emulated GPU: use devices, memory, bandwidth, multiprocessors, green, threads, common or \
         context"
    )]
    Key(String),
    #[error("the emulated GPU's `{key}` is `{found}`; it must be {expected}")]
    Value { key: String, found: String, expected: String },
    #[error("the emulated GPU {number} is named twice; name each once")]
    Twice { number: u32 },
    #[error(
        "what processes have of the emulated GPU's memory cannot be noted: {0}; give a `common` directory that can be written to"
    )]
    Common(std::io::Error),
    #[error(
        "a context takes {needed} MB of the emulated GPU's memory and {free} MB are free; free some, or make \
         `context` smaller"
    )]
    NoRoom { needed: u64, free: u64 },
    #[error(
        "no free addresses for the module memory of emulated GPU {index} in {range:#x?}: {cause}; start it in a \
         process that maps nothing there"
    )]
    Arena { index: u32, range: std::ops::Range<u64>, cause: std::io::Error },
    #[error(
        "this process may not copy its own memory with process_vm_readv: {0}; allow that call where the emulated GPU \
         runs (seccomp profile of the container)"
    )]
    Copies(std::io::Error),
    #[error(
        "cannot start the emulated GPU's thread `{name}`: {cause}; raise the limit on threads (ulimit -u)"
    )]
    Thread { name: String, cause: std::io::Error },
}
