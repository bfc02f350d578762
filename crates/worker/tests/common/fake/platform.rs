//! The platform of the one fake GPU, and what it is told to do wrong.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rekindle_device::*;

use super::FakeDevice;

/// Tells a running fake what to do wrong.
#[derive(Default)]
pub struct Knobs {
    /// Bytes of memory; more is out of memory.
    pub memory: AtomicU64,
    /// Bytes of it that are in use.
    pub used: AtomicU64,
    /// The code that every call that is waited for answers with, once a kernel has failed.
    pub sticky: AtomicI32,
    /// Events come before that: they are done, and other calls have the code.
    pub events_first: AtomicBool,
    /// Moves the first module's globals, as another driver would.
    pub arena_shift: AtomicU64,
}

pub struct FakePlatform {
    info: Vec<DeviceInfo>,
    device: Mutex<Option<Arc<FakeDevice>>>,
    knobs: Arc<Knobs>,
}

impl FakePlatform {
    pub fn new(knobs: Arc<Knobs>) -> FakePlatform {
        if knobs.memory.load(Ordering::Relaxed) == 0 {
            knobs.memory.store(1 << 30, Ordering::Relaxed);
        }
        let info = DeviceInfo {
            kind: GpuKind::Nvidia,
            index: 0,
            name: "Fake GPU".to_string(),
            uuid: [7; 16],
            pci_bus_id: String::new(),
            total_memory: 1 << 30,
            compute_capability: (9, 0),
            attributes: Vec::new(),
            stream_priorities: (0, -5),
            limits: Vec::new(),
        };
        FakePlatform { info: vec![info], device: Mutex::default(), knobs }
    }
}

impl Platform for FakePlatform {
    fn kind(&self) -> GpuKind {
        GpuKind::Nvidia
    }
    fn driver_version(&self) -> i32 {
        13000
    }
    fn driver_name(&self) -> String {
        "fake".to_string()
    }
    fn devices(&self) -> &[DeviceInfo] {
        &self.info
    }
    fn open(&self, _: usize) -> Result<Arc<dyn Device>> {
        let mut device = self.device.lock().unwrap();
        let device = device.get_or_insert_with(|| FakeDevice::new(self.info[0].clone(), self.knobs.clone()));
        Ok(device.clone())
    }
    fn process_lock(&self, _: i32, _: u32) -> Result<()> {
        Ok(())
    }
    fn process_checkpoint(&self, _: i32) -> Result<()> {
        Ok(())
    }
    fn process_restore(&self, _: i32) -> Result<()> {
        Ok(())
    }
    fn process_unlock(&self, _: i32) -> Result<()> {
        Ok(())
    }
}
