//! Code that a device loads a kernel at a time, with its globals wherever a buffer lies.

use std::ops::Range;

use crate::{Code, FunctionInfo, Result};

/// Code that was taken apart once ([`crate::Device::prepare`]).
pub trait PreparedCode: Send + Sync {
    /// Bytes of a buffer that holds all globals; 0 where there are none.
    fn globals_bytes(&self) -> u64;
    /// What the buffer's address must be a multiple of.
    fn globals_alignment(&self) -> u64;
    /// Where a global lies in the buffer, and its bytes.
    fn global(&self, name: &str) -> Option<(u64, u64)>;
    /// The buffer's first bytes if it lies at `address`; what follows is zeros.
    fn initial(&self, address: u64) -> Vec<u8>;
    /// User constants, of which each piece has a bank for itself.
    fn constants(&self) -> Option<Constants> {
        None
    }
    fn kernels(&self) -> Vec<String>;
    /// What is known of a kernel before anybody loads it or sets anything; none where loading it must tell.
    fn info(&self, _kernel: &str) -> Option<FunctionInfo> {
        None
    }
    /// What [`crate::Device::module_load`] takes to have this kernel, the globals lying at `globals`.
    fn piece(&self, kernel: &str, globals: u64) -> Result<Piece>;
}

/// User constants of prepared code.
pub struct Constants {
    /// Where the buffer of globals has what the program reads and writes of them.
    pub range: Range<u64>,
    /// One of them, by which a piece's bank is found.
    pub name: String,
}

/// One kernel of prepared code.
pub struct Piece {
    pub code: Code,
    pub options: Vec<(i32, u64)>,
}
