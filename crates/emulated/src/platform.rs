//! The emulated machine: some devices that share one space of addresses and one output.

use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use rekindle_cuda::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM,
    CUDA_ERROR_OUT_OF_MEMORY,
};
use rekindle_device::{Device, DeviceInfo, GpuKind, Platform, Result};

use crate::config::MOST_DEVICES;
use crate::context::Contexts;
use crate::device::EmulatedDevice;
use crate::output::Output;
use crate::space::Space;
use crate::{Config, Error, access, attributes};

/// `cuDriverGetVersion`: CUDA 13.0.
const VERSION: i32 = 13000;

struct EmulatedPlatform {
    config: Config,
    devices: Vec<DeviceInfo>,
    space: Arc<Space>,
    output: Arc<Output>,
    contexts: Arc<Contexts>,
    open: Mutex<Vec<Option<Arc<EmulatedDevice>>>>,
}

/// Makes the emulated machine; what kernels print goes to this process's standard output.
pub fn platform(config: &Config) -> std::result::Result<Arc<dyn Platform>, Error> {
    platform_with_output(config, Box::new(std::io::stdout()))
}

/// As [`platform`], with what kernels print going elsewhere. Texts are written whole and in order, at the end of the
/// kernel that printed them at the latest.
pub fn platform_with_output(
    config: &Config,
    output: Box<dyn Write + Send>,
) -> std::result::Result<Arc<dyn Platform>, Error> {
    config.check()?;
    access::probe().map_err(Error::Copies)?;
    rekindle_ptx::install_fault_handler();
    Ok(Arc::new(EmulatedPlatform {
        config: config.clone(),
        devices: (0..config.devices).map(|index| attributes::info(index, config)).collect(),
        space: Arc::default(),
        output: Arc::new(Output::new(output)),
        contexts: Arc::default(),
        open: Mutex::new(vec![None; config.devices as usize]),
    }))
}

impl Platform for EmulatedPlatform {
    fn kind(&self) -> GpuKind {
        GpuKind::Emulated
    }

    fn driver_version(&self) -> i32 {
        VERSION
    }

    fn driver_name(&self) -> String {
        concat!("emulated ", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    fn open(&self, index: usize) -> Result<Arc<dyn Device>> {
        let mut open = self.open.lock();
        let slot = open.get_mut(index).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        if let Some(device) = slot {
            return Ok(Arc::clone(device) as Arc<dyn Device>);
        }
        let info = self.devices[index].clone();
        let (space, output) = (Arc::clone(&self.space), Arc::clone(&self.output));
        let made = EmulatedDevice::new(info, &self.config, space, output, &self.contexts);
        let device = Arc::new(made.map_err(|error| {
            log::error!("{error}");
            match error {
                Error::NoRoom { .. } => CUDA_ERROR_OUT_OF_MEMORY,
                _ => CUDA_ERROR_OPERATING_SYSTEM,
            }
        })?);
        *slot = Some(Arc::clone(&device));
        Ok(device)
    }

    /// All of the machine's: their memory is the host's.
    fn reaches(&self, _index: usize) -> Vec<[u8; 16]> {
        (0..MOST_DEVICES).map(attributes::uuid).collect()
    }

    fn process_lock(&self, _pid: i32, _timeout_ms: u32) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn process_checkpoint(&self, _pid: i32) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn process_restore(&self, _pid: i32) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn process_unlock(&self, _pid: i32) -> Result<()> {
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
}
