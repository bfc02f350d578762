//! What is wrong with code that cannot be read.

/// Why bytes are no code that can be prepared. Each says what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the cubin is not an ELF file as expected: {0}")]
    Elf(String),
    #[error("the cubin is for machine {found}; {expected} (CUDA) was expected")]
    Machine { found: u16, expected: u16 },
    #[error("section {name} of the cubin aligns to {found} bytes; a power of two up to {most} was expected")]
    Alignment { name: String, found: u64, most: u64 },
    #[error(
        "sections {first} and {second} of the cubin lie over each other; each was expected in a place of its own"
    )]
    Overlap { first: String, second: String },
    #[error("symbol {index} of the cubin lies in section {section}; the cubin has {count} sections")]
    SymbolSection { index: usize, section: u32, count: usize },
    #[error("symbol {name} ends at byte {end} of section {section}, which has {bytes}")]
    SymbolEnd { name: String, section: String, end: u64, bytes: u64 },
    #[error("a relocation in {section} is for byte {offset} of {target}, which has {bytes}")]
    RelocationOffset { section: String, target: String, offset: u64, bytes: u64 },
    #[error("{section} names symbol {symbol}; the cubin has {count} symbols")]
    NoSymbol { section: String, symbol: u32, count: usize },
    #[error("{section} is for section {target}; the cubin has {count} sections")]
    NoSection { section: String, target: u32, count: usize },
    #[error("{section} has {found} bytes, which is no whole number of entries of {entry}")]
    Entries { section: String, found: usize, entry: usize },
    #[error("the note at byte {at} of {section} does not end inside it")]
    Note { section: String, at: usize },
    #[error("the globals of the cubin take more than {most} bytes together")]
    GlobalsSize { most: u64 },
    #[error("the cubin has no kernel {0}")]
    NoKernel(String),
    #[error("the fatbin ends after {found} bytes, and its header says {expected}")]
    FatbinEnd { found: usize, expected: u64 },
    #[error("the fatbin's entry at byte {at} does not end inside it")]
    FatbinEntry { at: usize },
    #[error("the fatbin's entry says that it has {found} bytes unpacked; at most {most} were expected")]
    FatbinSize { found: u64, most: u64 },
    #[error("the fatbin's entry cannot be unpacked: {0}")]
    FatbinPacked(String),
    #[error("the fatbin has no cubin for a GPU of compute capability {major}.{minor}")]
    FatbinCapability { major: u32, minor: u32 },
}

pub type Result<T> = std::result::Result<T, Error>;
