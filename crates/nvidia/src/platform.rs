//! The driver as a [`Platform`]: which GPUs there are, their contexts, and the driver's own process checkpoint.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Device, DeviceInfo, GpuKind, Placement, Platform, Result};

use crate::device::NvidiaDevice;
use crate::driver::{Driver, OpenError, call};
use crate::placement;
use crate::sys::{CheckpointLock, CheckpointReserved, CheckpointRestore};

/// The attributes of CUDA 13.0's header; a newer driver's further ones are not a program's of that time.
const ATTRIBUTES: std::ops::RangeInclusive<i32> = 1..=147;
const ATTRIBUTE_CAPABILITY_MAJOR: i32 = 75;
const ATTRIBUTE_CAPABILITY_MINOR: i32 = 76;

/// The machine's NVIDIA driver.
pub struct NvidiaPlatform {
    driver: Arc<Driver>,
    version: i32,
    devices: Vec<DeviceInfo>,
    /// The GPUs that one program has.
    together: Vec<usize>,
    open: Mutex<Vec<Option<Arc<NvidiaDevice>>>>,
}

impl NvidiaPlatform {
    /// Opens and initialises the driver (about 200 ms on one GPU); makes no context.
    pub fn open() -> std::result::Result<NvidiaPlatform, OpenError> {
        placement::start();
        let driver = Driver::open()?;
        let start = |code| OpenError::Start { path: driver.path.clone(), code, description: String::new() };
        let (mut version, mut count) = (0, 0);
        // SAFETY: each writes one integer.
        unsafe {
            call!(&driver, cuDriverGetVersion(&mut version)).map_err(start)?;
            call!(&driver, cuDeviceGetCount(&mut count)).map_err(start)?;
        }
        if count == 0 {
            return Err(OpenError::NoGpu(driver.path));
        }
        let devices =
            (0..count).map(|index| describe(&driver, index)).collect::<Result<Vec<_>>>().map_err(start)?;
        let open = Mutex::new(vec![None; devices.len()]);
        Ok(NvidiaPlatform { driver: Arc::new(driver), version, devices, together: Vec::new(), open })
    }

    /// For a program that has these GPUs: memory of one can be reached by those of them that reach it.
    pub fn of_one_program(self, gpus: &[usize]) -> NvidiaPlatform {
        NvidiaPlatform { together: gpus.to_vec(), ..self }
    }

    /// By which the driver knows a GPU.
    fn ordinal(&self, index: usize) -> Result<i32> {
        let mut ordinal = 0;
        // SAFETY: writes one integer.
        unsafe { call!(&self.driver, cuDeviceGet(&mut ordinal, index as i32)) }.map(|()| ordinal)
    }

    /// Whether one GPU can reach the memory of another one.
    fn can_reach(&self, index: usize, other: usize) -> Result<bool> {
        let mut can = 0;
        let (own, other) = (self.ordinal(index)?, self.ordinal(other)?);
        // SAFETY: as above.
        unsafe { call!(&self.driver, cuDeviceCanAccessPeer(&mut can, own, other)) }?;
        Ok(can != 0)
    }

    /// The ordinals of the program's other GPUs that reach this one's memory.
    fn reached_by(&self, index: usize) -> Result<Vec<i32>> {
        let others = self.together.iter().filter(|other| **other != index);
        let reaching = others.filter(|other| self.can_reach(**other, index) == Ok(true));
        reaching.map(|other| self.ordinal(*other)).collect()
    }

    /// The library in use.
    pub fn library(&self) -> &Path {
        &self.driver.path
    }
}

impl Platform for NvidiaPlatform {
    fn kind(&self) -> GpuKind {
        GpuKind::Nvidia
    }

    fn driver_version(&self) -> i32 {
        self.version
    }

    fn driver_name(&self) -> String {
        let kernel_module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        release(&kernel_module)
            .or_else(|| release(&self.driver.path.file_name()?.to_string_lossy().replace(".so.", " ")))
            .unwrap_or_else(|| format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10))
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn open(&self, index: usize) -> Result<Arc<dyn Device>> {
        let mut open = self.open.lock();
        let place = open.get_mut(index).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        let device = match place {
            Some(device) => device.clone(),
            None => {
                let (driver, info) = (self.driver.clone(), self.devices[index].clone());
                let device = Arc::new(NvidiaDevice::open(driver, info, self.reached_by(index)?)?);
                place.insert(device).clone()
            }
        };
        Ok(device)
    }

    fn reaches(&self, index: usize) -> Vec<[u8; 16]> {
        let is_reached =
            |(other, _): &(usize, &DeviceInfo)| *other == index || self.can_reach(index, *other) == Ok(true);
        self.devices.iter().enumerate().filter(is_reached).map(|(_, info)| info.uuid).collect()
    }

    fn process_lock(&self, pid: i32, timeout_ms: u32) -> Result<()> {
        let arguments = CheckpointLock { timeout_ms, reserved0: 0, reserved1: [0; 7] };
        let lock = self.driver.functions.cuCheckpointProcessLock.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: reads the arguments during the call.
        self.driver.check("cuCheckpointProcessLock", unsafe { lock(pid, &arguments) })
    }

    fn process_checkpoint(&self, pid: i32) -> Result<()> {
        let checkpoint =
            self.driver.functions.cuCheckpointProcessCheckpoint.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: reads the arguments during the call.
        let code = unsafe { checkpoint(pid, &CheckpointReserved::default()) };
        self.driver.check("cuCheckpointProcessCheckpoint", code)
    }

    fn process_restore(&self, pid: i32) -> Result<()> {
        let arguments = CheckpointRestore { pairs: 0, pair_count: 0, reserved: [0; 44], reserved1: 0 };
        let restore = self.driver.functions.cuCheckpointProcessRestore.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: reads the arguments during the call; no GPU pairs are given.
        self.driver.check("cuCheckpointProcessRestore", unsafe { restore(pid, &arguments) })
    }

    fn process_unlock(&self, pid: i32) -> Result<()> {
        let unlock = self.driver.functions.cuCheckpointProcessUnlock.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: reads the arguments during the call.
        let code = unsafe { unlock(pid, &CheckpointReserved::default()) };
        self.driver.check("cuCheckpointProcessUnlock", code)
    }

    fn placements(&self) -> Vec<Placement> {
        placement::given()
    }

    fn expect_placements(&self, earlier: &[Placement]) {
        placement::expect(earlier);
    }

    fn renew_placements(&self) {
        placement::renew();
    }
}

/// What is known of a GPU before it has a context; stream priorities and limits are those of every recent GPU.
fn describe(driver: &Driver, index: i32) -> Result<DeviceInfo> {
    let mut ordinal = 0;
    let (mut name, mut bus) = ([0u8; 256], [0u8; 32]);
    let mut uuid = [0u8; 16];
    let mut memory = 0;
    // SAFETY: each writes no more than the buffer whose length it is given, or one value.
    unsafe {
        call!(driver, cuDeviceGet(&mut ordinal, index))?;
        call!(driver, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, ordinal))?;
        call!(driver, cuDeviceGetPCIBusId(bus.as_mut_ptr().cast(), bus.len() as i32, ordinal))?;
        call!(driver, cuDeviceGetUuid_v2(&mut uuid, ordinal))?;
        call!(driver, cuDeviceTotalMem_v2(&mut memory, ordinal))?;
    }
    let attributes: Vec<_> = ATTRIBUTES
        .filter_map(|attribute| {
            let mut value = 0;
            // SAFETY: writes one integer; an unknown attribute is refused.
            let code = unsafe { (driver.functions.cuDeviceGetAttribute)(&mut value, attribute, ordinal) };
            code.is_success().then_some((attribute, value))
        })
        .collect();
    let mut info = DeviceInfo {
        kind: GpuKind::Nvidia,
        index: index as u32,
        name: text(&name),
        uuid,
        pci_bus_id: text(&bus),
        total_memory: memory as u64,
        compute_capability: (0, 0),
        attributes,
        stream_priorities: (0, -5),
        limits: Vec::new(),
    };
    let part = |attribute| info.attribute(attribute).unwrap_or(0) as u32;
    info.compute_capability = (part(ATTRIBUTE_CAPABILITY_MAJOR), part(ATTRIBUTE_CAPABILITY_MINOR));
    Ok(info)
}

/// A text that ends at the first NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The first word such as `580.159.04`.
pub fn release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        let parts: Vec<_> = word.split('.').collect();
        parts.len() >= 2 && parts[0].len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    text.split_whitespace().find(is_release).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_either_kernel_module_s_text() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n\
                      GCC version:  gcc version 12.2.0";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build";
        assert_eq!(release(closed).as_deref(), Some("535.54.03"));
        assert_eq!(release(open).as_deref(), Some("580.159.04"));
        assert_eq!(release("libcuda 580.159.04").as_deref(), Some("580.159.04"));
        assert_eq!(release("GCC version: 12.2.0"), None);
    }

    #[test]
    fn texts_end_at_their_nul() {
        assert_eq!(text(b"NVIDIA H200\0\0junk"), "NVIDIA H200");
        assert_eq!(text(b"full"), "full");
    }
}
