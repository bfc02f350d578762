//! Functions in Rust: `scale` multiplies an array on the GPU, `total` adds what another function has put there.
//!
//! Kernels and memory are cudarc's; any crate that speaks to the driver will do.

use std::sync::Arc;

use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use rekindle_function::{Array, Call, Error, Function, Result, Scope, Value, functions};

const PTX: &str = include_str!("scale.ptx");
const DTYPE: &str = "float32";

functions! { c"scale" => Scale, c"total" => Total }

fn failed(error: DriverError) -> Error {
    Error::new("GpuError", error.to_string())
}

/// cudarc's, for the instance's own stream.
fn stream(context: &Arc<CudaContext>, scope: &Scope<'_>) -> Result<Arc<CudaStream>> {
    context.bind_to_thread().map_err(failed)?;
    // SAFETY: the stream lives for as long as the instance, which this is the own of.
    Ok(unsafe { context.wrap_borrowed_stream(scope.raw_stream() as CUstream) })
}

/// The GPU, as all functions here have it.
fn context() -> Result<Arc<CudaContext>> {
    let context = CudaContext::new(0).map_err(failed)?;
    // SAFETY: memory of an instance is used by its own stream alone.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}

/// `scale(array, factor)`; with `keep=True` the result stays on the GPU, and a reference is returned.
struct Scale {
    context: Arc<CudaContext>,
    kernel: CudaFunction,
}

impl Function for Scale {
    type Instance = Arc<CudaStream>;

    fn setup(_: &Scope<'_>) -> Result<Scale> {
        let context = context()?;
        let module = context.load_module(Ptx::from_src(PTX)).map_err(failed)?;
        let kernel = module.load_function("scale").map_err(failed)?;
        Ok(Scale { context, kernel })
    }

    fn enter(&self, scope: &Scope<'_>) -> Result<Arc<CudaStream>> {
        stream(&self.context, scope)
    }

    fn call<'m>(&self, stream: &mut Arc<CudaStream>, call: &Call<'m>) -> Result<Value<'m>> {
        let (array, factor) = (call.array(0)?, call.real(1)? as f32);
        let elements = array.elements::<f32>()?;
        if elements.is_empty() {
            return Err(Error::new("ValueError", "the array is empty; give one with elements"));
        }
        let count = elements.len() as u32;
        let input = stream.clone_htod(&elements[..]).map_err(failed)?;
        let mut output = stream.alloc_zeros::<f32>(elements.len()).map_err(failed)?;
        let mut launch = stream.launch_builder(&self.kernel);
        launch.arg(&mut output).arg(&input).arg(&factor).arg(&count);
        // SAFETY: both buffers have so many elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }.map_err(failed)?;
        if matches!(call.keyword("keep"), Some(Value::Boolean(true))) {
            let address = {
                use cudarc::driver::DevicePtr;
                output.device_ptr(stream).0
            };
            return Ok(call.put(address, DTYPE, &array.shape, rekindle_function::EXPIRY)?.into());
        }
        let scaled = stream.clone_dtoh(&output).map_err(failed)?;
        call.synchronize()?;
        Ok(Array::of(&scaled, &array.shape).into())
    }
}

/// `total(reference)`: the sum of an array that was put, here or in Python.
struct Total {
    context: Arc<CudaContext>,
}

impl Function for Total {
    type Instance = Arc<CudaStream>;

    fn setup(_: &Scope<'_>) -> Result<Total> {
        Ok(Total { context: context()? })
    }

    fn enter(&self, scope: &Scope<'_>) -> Result<Arc<CudaStream>> {
        stream(&self.context, scope)
    }

    fn call<'m>(&self, stream: &mut Arc<CudaStream>, call: &Call<'m>) -> Result<Value<'m>> {
        let reference = call.reference(0)?;
        if reference.dtype != DTYPE {
            return Err(Error::argument(format!(
                "the reference is of {}; give one of {DTYPE}",
                reference.dtype
            )));
        }
        let mapped = call.get(reference)?;
        let mut elements = vec![0_f32; (mapped.range.bytes / 4) as usize];
        // SAFETY: so many bytes are mapped there.
        unsafe {
            cudarc::driver::result::memcpy_dtoh_async(&mut elements, mapped.range.address, stream.cu_stream())
        }
        .map_err(failed)?;
        call.synchronize()?;
        Ok(elements.iter().copied().map(f64::from).sum::<f64>().into())
    }
}
