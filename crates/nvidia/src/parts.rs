//! Parts of a GPU's multiprocessors: green contexts, which belong to the primary context.
//!
//! All functions, memory and events of the primary context are usable on a green context's streams, with the primary one
//! current. The multiprocessors are split once, into units of the least size, and what is left over.

use rekindle_cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::{Part, Result, Stream, Units};

use crate::device::NvidiaDevice;
use crate::sys::DevResource;

/// `CU_DEV_RESOURCE_TYPE_SM`.
const MULTIPROCESSORS: u32 = 1;
/// The least that a part has, and its steps, from compute capability 9.0 on; older GPUs have smaller ones.
const UNIT: u32 = 8;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which the driver wants.
const DEFAULT_STREAM: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`, as streams of green contexts must be.
const NON_BLOCKING: u32 = 1;

const NOTHING: DevResource = DevResource { kind: 0, padding: [0; 92], multiprocessors: 0, more: [0; 44] };

/// How the multiprocessors of a GPU are divided.
pub struct Division {
    units: Vec<DevResource>,
    /// Those that make no unit.
    rest: Option<DevResource>,
}

impl Division {
    pub fn units(&self) -> Units {
        let multiprocessors = self.units.first().map_or(0, |unit| unit.multiprocessors);
        let rest = self.rest.map_or(0, |rest| rest.multiprocessors);
        Units { count: self.units.len() as u32, multiprocessors, rest }
    }
}

/// An optional driver function; `NOT_SUPPORTED` where the driver lacks it.
macro_rules! ask_newer {
    ($device:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $device.driver.functions.$function {
            // SAFETY: it reads and writes only what it is given here, which outlives the call; handles are live ones of
            // this device.
            Some(function) => $device.driver.check(stringify!($function), unsafe { function($($argument),*) }),
            None => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    };
}

impl NvidiaDevice {
    /// None where the driver or the GPU cannot.
    pub(crate) fn division(&self) -> Option<&Division> {
        self.division.get_or_init(|| self.divide().ok().filter(|made| !made.units.is_empty())).as_ref()
    }

    fn divide(&self) -> Result<Division> {
        if self.driver.functions.cuGreenCtxStreamCreate.is_none() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let (mut all, mut rest) = (NOTHING, NOTHING);
        ask_newer!(self, cuDeviceGetDevResource(self.ordinal, &mut all, MULTIPROCESSORS))?;
        let mut units = vec![NOTHING; Units::MOST as usize];
        let mut count = Units::MOST;
        let split = ask_newer!(
            self,
            cuDevSmResourceSplitByCount(units.as_mut_ptr(), &mut count, &all, &mut rest, 0, UNIT)
        );
        split?;
        units.truncate(count as usize);
        let rest = Some(rest).filter(|rest| rest.kind == MULTIPROCESSORS && rest.multiprocessors > 0);
        Ok(Division { units, rest })
    }

    pub(crate) fn create_part(&self, set: u64) -> Result<Part> {
        let division = self.division().ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        let units = division.units();
        if set == 0 || set & !units.whole() != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let named = division.units.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
        let mut resources: Vec<DevResource> = named.map(|(_, unit)| *unit).collect();
        resources.extend(division.rest.filter(|_| set & units.rest() != 0));
        let (mut description, mut green) = (0, 0);
        let count = resources.len() as u32;
        ask_newer!(self, cuDevResourceGenerateDesc(&mut description, resources.as_ptr(), count))?;
        ask_newer!(self, cuGreenCtxCreate(&mut green, description, self.ordinal, DEFAULT_STREAM))?;
        Ok(Part(green))
    }

    pub(crate) fn destroy_part(&self, part: Part) -> Result<()> {
        ask_newer!(self, cuGreenCtxDestroy(part.0))
    }

    pub(crate) fn create_stream_on(&self, part: Part, priority: i32) -> Result<Stream> {
        let mut stream = 0;
        ask_newer!(self, cuGreenCtxStreamCreate(&mut stream, part.0, NON_BLOCKING, priority))?;
        Ok(Stream(stream))
    }
}
