//! The `CUdevice_attribute` values of an emulated GPU: those of a compute capability 9.0 device, as far as this one
//! keeps them.

use rekindle_device::DeviceInfo;

use crate::Config;

pub(crate) const WARP: u32 = 32;
pub(crate) const MAX_THREADS: u32 = 1024;
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
pub(crate) const MAX_GRID: [u32; 3] = [0x7fff_ffff, 0xffff, 0xffff];
/// Shared memory a block has without asking.
pub(crate) const SHARED: u32 = 48 << 10;
/// Shared memory a block can have when its kernel's attribute asks for it.
pub(crate) const SHARED_OPTIN: u32 = 227 << 10;
pub(crate) const SHARED_PER_MULTIPROCESSOR: u32 = 228 << 10;
/// What the system keeps of shared memory for each block.
pub(crate) const SHARED_RESERVED: u32 = 1 << 10;
pub(crate) const REGISTERS: u32 = 65536;
pub(crate) const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
pub(crate) const CLOCK_KHZ: u32 = 1_000_000;
pub(crate) const CAPABILITY: (u32, u32) = (9, 0);
/// Greatest (numerically least) and least stream priority.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);
const CONSTANT: i32 = 64 << 10;

/// Ascending (attribute, value) rows. Those of textures and surfaces are the documented sizes.
fn rows(index: u32, config: &Config) -> Vec<(i32, i32)> {
    let l2 = 50 << 20;
    let mut rows = vec![
        (1, MAX_THREADS as i32),
        (2, MAX_BLOCK[0] as i32),
        (3, MAX_BLOCK[1] as i32),
        (4, MAX_BLOCK[2] as i32),
        (5, MAX_GRID[0] as i32),
        (6, MAX_GRID[1] as i32),
        (7, MAX_GRID[2] as i32),
        (8, SHARED as i32),
        (9, CONSTANT),
        (10, WARP as i32),
        (11, i32::MAX), // pitch
        (12, REGISTERS as i32),
        (13, CLOCK_KHZ as i32),
        (14, 512), // texture alignment
        (15, 1),   // copies overlap kernels
        (16, config.multiprocessors as i32),
        (17, 0), // no time limit on kernels
        (18, 0), // not integrated
        (19, 1), // maps host memory
        (20, 0), // compute mode: default
    ];
    // Texture and surface sizes, 21..=29, 42..=49, 52..=74, 77.
    rows.extend(
        [131_072, 131_072, 65536, 16384, 16384, 16384, 32768, 32768, 2048].into_iter().zip(21..).map(flip),
    );
    rows.extend([
        (30, 512), // surface alignment
        (31, 1),   // concurrent kernels
        (32, 0),   // ECC
        (33, 0xe0 + config.number(index) as i32),
        (34, 0),
        (35, 0),
        (36, 1_000_000), // memory clock, kHz
        (37, 256),
        (38, l2),
        (39, THREADS_PER_MULTIPROCESSOR as i32),
        (40, 2), // copy engines
        (41, 1), // unified addressing
        (42, 32768),
        (43, 2048),
        (44, 1),
        (45, 32768),
        (46, 32768),
        (47, 8192),
        (48, 8192),
        (49, 32768),
        (50, 0), // PCI domain
        (51, 32),
    ]);
    let textures = [
        32768,
        32768,
        2046,
        32768,
        131_072,
        65536,
        16384,
        16384,
        16384,
        32768,
        2048,
        32768,
        32768,
        2048,
        32768,
        32768,
        2046,
        268_435_456,
        131_072,
        65000,
        2_097_120,
        32768,
        32768,
    ];
    rows.extend(textures.into_iter().zip(52..).map(flip));
    rows.extend([
        (75, CAPABILITY.0 as i32),
        (76, CAPABILITY.1 as i32),
        (77, 32768),
        (78, 1), // stream priorities
        (79, 1),
        (80, 1),
        (81, SHARED_PER_MULTIPROCESSOR as i32),
        (82, REGISTERS as i32),
        (83, 1), // managed memory
        (84, 0),
        (85, index as i32),
        (86, 1), // host atomics
        (87, 2), // single to double precision speed
        (88, 0), // pageable memory access
        (89, 0), // concurrent managed access
        (90, 1), // preemption
        (91, 1), // registered memory at the host's address
        (92, 0),
        (93, 0),
        (94, 0),
        (95, 1), // cooperative launch
        (96, 0),
        (97, SHARED_OPTIN as i32),
        (98, 0),
        (99, 1), // host registration
        (100, 0),
        (101, 0),
        (102, 1), // virtual memory management
        (103, 1), // file descriptors
        (104, 0),
        (105, 0),
        (106, BLOCKS_PER_MULTIPROCESSOR as i32),
        (107, 0),
        (108, 0), // persisting L2
        (109, 0),
        (110, 0),
        (111, SHARED_RESERVED as i32),
        (112, 0),
        (113, 1), // read-only registration
        (114, 0),
        (115, 1), // memory pools
        (116, 0),
        (117, 0),
        (118, 0),
        (119, 1), // pools exported as file descriptors
        (120, 1), // cluster launch
        (121, 0),
        (122, 1), // 64-bit stream memory operations
        (123, 1), // wait value NOR
        (124, 0),
        (125, 0), // events between processes
        (126, 1), // memory synchronisation domains
        (127, 0), // tensor maps
        (128, 0),
        (129, 0), // function pointers shared with the host
        (130, 0),
        (131, -1),
        (132, 0), // multicast
        (133, 0), // MPS
        (134, -1),
        (135, 0),
        (136, 0),
        (137, 0),
        (138, 0),
        (139, 0),
        (140, 0),
        (141, 0),
        (142, 0),
        (143, 0),
        (144, 0),
        (145, 0),
        (146, 0),
        (147, 0),
    ]);
    rows
}

fn flip((value, attribute): (i32, i32)) -> (i32, i32) {
    (attribute, value)
}

/// An identifier that stays the same for an index, so that a program finds "its" GPU again after a restore.
pub(crate) fn uuid(index: u32) -> [u8; 16] {
    let mut uuid = *b"rekindle-emu\0\0\0\0";
    uuid[6] = 0x40 | uuid[6] & 0x0f;
    uuid[8] = 0x80 | uuid[8] & 0x3f;
    uuid[12..].copy_from_slice(&index.to_be_bytes());
    uuid
}

pub(crate) const LIMIT_STACK: u32 = 0;
pub(crate) const LIMIT_HEAP: u32 = 2;

pub(crate) fn info(index: u32, config: &Config) -> DeviceInfo {
    DeviceInfo {
        kind: rekindle_device::GpuKind::Emulated,
        index,
        name: format!("Rekindle Emulated GPU, {} SMs", config.multiprocessors),
        uuid: uuid(config.number(index)),
        pci_bus_id: format!("0000:{:02X}:00.0", 0xe0 + config.number(index)),
        total_memory: config.memory,
        compute_capability: CAPABILITY,
        attributes: rows(index, config),
        stream_priorities: PRIORITIES,
        limits: vec![
            (LIMIT_STACK, 1024),
            (1, 8 << 20),
            (LIMIT_HEAP, 8 << 20),
            (3, 2),
            (4, 2048),
            (5, 64),
            (6, 0),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_of_the_header_has_one_value() {
        let info = info(1, &Config::default());
        let found: Vec<i32> = info.attributes.iter().map(|row| row.0).collect();
        assert_eq!(found, (1..=147).collect::<Vec<_>>());
        assert_eq!(info.attribute(10), Some(32));
        assert_eq!(info.attribute(97), Some(227 << 10));
        assert_ne!(info.uuid, uuid(0));
        let second = Config { numbers: vec![1], ..Config::default() };
        assert_eq!(super::info(0, &second).uuid, info.uuid);
    }
}
