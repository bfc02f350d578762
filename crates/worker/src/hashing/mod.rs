//! BLAKE3 of device memory, on the device.
//!
//! A GPU hashes about eighty times as fast as a processor's cores together, which are then free to copy. The device
//! does the leaves and the lower part of BLAKE3's tree ([`kernel`]); what is left, sixteen values for a chunk of 2 MB, is
//! joined here. So a chunk's name stays its BLAKE3 hash, whoever has computed it.
//!
//! The kernel is loaded when the context is made, before anything of the program's: in every worker it takes the same
//! room in the driver's heaps, and globals of the program's modules keep their addresses.

mod kernel;

use std::sync::Arc;

use blake3::hazmat::{ChainingValue, Mode, merge_subtrees_non_root, merge_subtrees_root};
use rekindle_cuda::CuResult;
use rekindle_device::{Code, Device, Function, GpuKind, Launch, LoadError, ModuleKind, Result, Stream};
use rekindle_store::ContentHash;

/// Overrides where hashes are computed: `on` for the device, `off` for the processor.
const VARIABLE: &str = "REKINDLE_GPU_HASH";

/// Bytes whose chaining value the device writes.
pub(crate) const SUBTREE: u64 = (kernel::LEAVES * kernel::LEAF) as u64;
/// Bytes of a chaining value.
pub(crate) const VALUE: usize = 32;

/// Why a device computes no hashes.
#[derive(Debug, thiserror::Error)]
enum HasherError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Function(#[from] CuResult),
}

/// Hashes on one device.
pub(crate) struct Hasher {
    device: Arc<dyn Device>,
    function: Function,
}

impl Hasher {
    /// The same kernel, launched as a client of its context does.
    pub(crate) fn through(&self, view: Arc<dyn Device>) -> Hasher {
        Hasher { device: view, function: self.function }
    }

    /// Loads the kernel; the device's context is current. None where the processor is to hash: by default on a GPU in
    /// software, and where the kernel does not load.
    pub(crate) fn open(device: Arc<dyn Device>) -> Option<Arc<Hasher>> {
        let real = device.info().kind == GpuKind::Nvidia;
        let wanted = std::env::var(VARIABLE).map_or(real, |wanted| wanted == "on");
        if !wanted {
            return None;
        }
        match Hasher::load(device) {
            Ok(hasher) => Some(Arc::new(hasher)),
            Err(problem) => {
                log::warn!("hashes are computed by the processor: {problem}");
                None
            }
        }
    }

    fn load(device: Arc<dyn Device>) -> std::result::Result<Hasher, HasherError> {
        let mut text = kernel::text().into_bytes();
        text.push(0);
        let loaded = device.module_load(Code::new(text), ModuleKind::Module, &[]);
        let module = loaded?.module;
        let function = device.function(module, kernel::NAME)?;
        Ok(Hasher { device, function })
    }

    /// Whether inputs of so many bytes can be hashed: at least two whole subtrees.
    pub(crate) fn takes(bytes: u64) -> bool {
        bytes >= 2 * SUBTREE && bytes.is_multiple_of(SUBTREE)
    }

    /// Enqueues the hashing of the input at `address`; its chaining values go to `values`, registered host memory or
    /// device memory, [`VALUE`] bytes for every [`SUBTREE`].
    pub(crate) fn enqueue(&self, address: u64, bytes: u64, values: u64, stream: Stream) -> Result<()> {
        self.enqueue_all(address, bytes, bytes, values, stream)
    }

    /// As [`Hasher::enqueue`], of inputs of `input` bytes that lie one behind the other and take so many `bytes` together.
    pub(crate) fn enqueue_all(
        &self,
        address: u64,
        bytes: u64,
        input: u64,
        values: u64,
        stream: Stream,
    ) -> Result<()> {
        let blocks = (input / SUBTREE) as u32;
        let grid = [(bytes / SUBTREE) as u32, 1, 1];
        let launch = Launch { grid, block: [kernel::LEAVES, 1, 1], ..Launch::default() };
        let mut parameters = [0; 20];
        parameters[..8].copy_from_slice(&address.to_le_bytes());
        parameters[8..16].copy_from_slice(&values.to_le_bytes());
        parameters[16..].copy_from_slice(&blocks.to_le_bytes());
        self.device.launch(self.function, &launch, stream, &parameters)
    }

    /// The hash of the input whose chaining values these are.
    pub(crate) fn finish(values: &[u8]) -> ContentHash {
        let values: Vec<ChainingValue> =
            values.chunks_exact(VALUE).map(|value| std::array::from_fn(|n| value[n])).collect();
        let (left, right) = values.split_at(left_of(values.len()));
        merge_subtrees_root(&join(left), &join(right), Mode::Hash).into()
    }
}

/// BLAKE3's left subtree is the largest power of two that leaves something to the right.
fn left_of(values: usize) -> usize {
    values.div_ceil(2).next_power_of_two()
}

fn join(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [one] => *one,
        _ => {
            let (left, right) = values.split_at(left_of(values.len()));
            merge_subtrees_non_root(&join(left), &join(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_device::Access;
    use rekindle_emulated::Config;

    use super::*;

    /// Where no other test of this process has memory.
    const INPUT: u64 = rekindle_device::PROGRAM_RANGE.end;

    /// The device's hash of `bytes`, for each input of so many of them.
    fn on_device(bytes: &[u8], input: u64, together: bool) -> Vec<ContentHash> {
        let platform = rekindle_emulated::platform(&Config::default()).unwrap();
        let device = platform.open(0).unwrap();
        device.bind().unwrap();
        let room = (bytes.len() as u64 * 2).next_multiple_of(device.granularity());
        device.reserve(INPUT, room).unwrap();
        let memory = device.memory_create(room).unwrap();
        device.map(INPUT, room, memory).unwrap();
        device.protect(INPUT, room, Access::ReadWrite).unwrap();
        let mut host = bytes.to_vec();
        device.host_register(host.as_ptr() as u64, host.len() as u64).unwrap();
        device.copy(INPUT, host.as_ptr() as u64, host.len() as u64, Stream::LEGACY).unwrap();
        let hasher = Hasher::load(device.clone()).unwrap();
        let per_input = input / SUBTREE * VALUE as u64;
        let values = INPUT + bytes.len() as u64;
        match together {
            true => {
                hasher.enqueue_all(INPUT, bytes.len() as u64, input, values, Stream::LEGACY).unwrap();
            }
            false => {
                for n in 0..bytes.len() as u64 / input {
                    hasher.enqueue(INPUT + n * input, input, values + n * per_input, Stream::LEGACY).unwrap();
                }
            }
        }
        device.synchronize().unwrap();
        let count = bytes.len() / SUBTREE as usize * VALUE;
        device.copy(host.as_mut_ptr() as u64, values, count as u64, Stream::LEGACY).unwrap();
        device.synchronize().unwrap();
        let hashes = host[..count].chunks(per_input as usize).map(Hasher::finish).collect();
        device.host_unregister(host.as_ptr() as u64).unwrap();
        hashes
    }

    #[test]
    fn the_device_hashes_as_blake3_does() {
        let mut bytes = vec![0; 6 * SUBTREE as usize];
        blake3::Hasher::new().update(b"seed").finalize_xof().fill(&mut bytes);
        for subtrees in [2, 3, 6] {
            let input = subtrees * SUBTREE;
            let expected: Vec<_> = bytes.chunks(input as usize).map(ContentHash::of).collect();
            for together in [false, true] {
                assert_eq!(on_device(&bytes, input, together), expected, "{subtrees} subtrees, {together}");
            }
        }
    }

    #[test]
    fn what_is_left_is_joined_as_blake3_does() {
        use blake3::hazmat::HasherExt;
        for count in 2..40 {
            let bytes: Vec<u8> = (0..count * SUBTREE as usize).map(|n| (n ^ n >> 9) as u8).collect();
            let value = |(n, bytes): (usize, &[u8])| {
                let mut hasher = blake3::Hasher::new();
                hasher.set_input_offset(n as u64 * SUBTREE);
                hasher.update(bytes).finalize_non_root()
            };
            let values: Vec<u8> = bytes.chunks(SUBTREE as usize).enumerate().flat_map(value).collect();
            assert_eq!(Hasher::finish(&values), ContentHash::of(&bytes), "{count} subtrees");
        }
    }

    #[test]
    fn only_whole_subtrees_are_taken() {
        assert!(Hasher::takes(2 * SUBTREE) && Hasher::takes(2 << 20));
        assert!(!Hasher::takes(SUBTREE) && !Hasher::takes(0) && !Hasher::takes(3 * SUBTREE - 1));
    }
}
