//! Host memory that program and worker share at one address.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rekindle_device::DEVICE_RANGE;

/// A mapped file of the run directory. Unmapped when dropped; the device must have let go of it by then.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
    /// The device that it was registered with.
    pub device: usize,
}

impl Pinned {
    /// The memory's bytes.
    ///
    /// # Safety
    /// Neither the program nor a device writes to them while the slice is used.
    pub(crate) unsafe fn contents(&self) -> &[u8] {
        // SAFETY: the mapping is `bytes` long and lives until drop; nobody writes, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes as usize) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let (address, bytes) = (self.address as *mut libc::c_void, self.bytes as usize);
        // SAFETY: exactly what `map_pinned` mapped; no reference into it outlives `self`.
        unsafe {
            if is_reserved(self.address) {
                // The addresses stay the device's, and nobody else's.
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
                libc::mmap(address, bytes, libc::PROT_NONE, flags, -1, 0);
            } else {
                libc::munmap(address, bytes);
            }
        }
    }
}

/// Whether addresses are the device's, reserved for the program: memory of the host lies there if the program has mapped it so.
fn is_reserved(address: u64) -> bool {
    DEVICE_RANGE.contains(&address)
}

/// Maps a pinned file at the program's address. In addresses of the device's, of which nothing was mapped, it takes their place: a
/// driver registers it there as it does elsewhere.
pub(crate) fn map_pinned(
    directory: &Path,
    name: &str,
    address: u64,
    bytes: u64,
    device: usize,
) -> io::Result<Pinned> {
    if !is_plain_name(name) || bytes == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::options().read(true).write(true).open(directory.join(name))?;
    let found = file.metadata()?.len();
    if found < bytes {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the pinned file {name} has {found} bytes where {bytes} were expected"),
        ));
    }
    let place = if is_reserved(address) { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: a new mapping of a file that is long enough; NOREPLACE leaves alone whatever lies there already, and nothing but a
    // reservation lies at addresses of the device's that are not mapped.
    let base = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | place,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if base as u64 != address {
        // SAFETY: a kernel without NOREPLACE put the mapping elsewhere; it is ours alone.
        unsafe { libc::munmap(base, bytes as usize) };
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(Pinned { name: name.to_string(), address, bytes, device })
}

/// Whether a name that the program sent names a file of the run directory itself.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}
