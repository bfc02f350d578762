//! The primary context of a GPU: making it, learning what only it tells, and making it a thread's current one.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use rekindle_device::{DeviceInfo, Result};

use crate::device::NvidiaDevice;
use crate::driver::{Driver, call};
use crate::imported::Imported;
use crate::memory::properties;
use crate::modules::Modules;

/// `CUlimit` values of CUDA 13.0's header.
const LIMITS: std::ops::Range<u32> = 0..10;

thread_local! {
    /// The context that `bind` made current on this thread.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

impl NvidiaDevice {
    /// Makes the primary context (or joins it) and learns what only a context tells. The GPUs of these ordinals have access to
    /// its memory, too.
    pub fn open(driver: Arc<Driver>, mut info: DeviceInfo, reached_by: Vec<i32>) -> Result<NvidiaDevice> {
        let mut ordinal = 0;
        let mut context = 0;
        let (mut least, mut greatest) = (0, 0);
        let mut granularity = 0;
        // SAFETY: each writes one value, or reads the properties during the call. The context is never released.
        unsafe {
            call!(driver, cuDeviceGet(&mut ordinal, info.index as i32))?;
            call!(driver, cuDevicePrimaryCtxRetain(&mut context, ordinal))?;
            bind(&driver, context)?;
            call!(driver, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
            call!(driver, cuMemGetAllocationGranularity(&mut granularity, &properties(ordinal), 0))?;
        }
        info.stream_priorities = (least, greatest);
        info.limits = LIMITS
            .filter_map(|limit| {
                let mut value = 0;
                // SAFETY: writes one value; a limit that this GPU lacks is refused.
                let code = unsafe { (driver.functions.cuCtxGetLimit)(&mut value, limit) };
                code.is_success().then_some((limit, value as u64))
            })
            .collect();
        let modules = Modules::new(driver.clone(), info.compute_capability);
        Ok(NvidiaDevice {
            driver,
            context,
            info,
            ordinal,
            reached_by,
            granularity: granularity as u64,
            modules,
            imported: Imported::default(),
            division: OnceLock::new(),
        })
    }
}

/// Makes the context current on this thread.
pub fn bind(driver: &Driver, context: u64) -> Result<()> {
    if CURRENT.get() != context {
        // SAFETY: a context that was retained and is never released.
        unsafe { call!(driver, cuCtxSetCurrent(context)) }?;
        CURRENT.set(context);
    }
    Ok(())
}
