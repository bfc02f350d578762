//! Code that a device loads a kernel at a time, with its globals wherever a buffer lies.

use crate::{Code, Result};

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
    fn kernels(&self) -> Vec<String>;
    /// What [`crate::Device::module_load`] takes to have this kernel, the globals lying at `globals`.
    fn piece(&self, kernel: &str, globals: u64) -> Result<Piece>;
}

/// One kernel of prepared code.
pub struct Piece {
    pub code: Code,
    pub options: Vec<(i32, u64)>,
}
