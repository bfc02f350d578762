//! What the result codes mean, one sentence each, for `cuGetErrorString`.

use crate::result::*;

impl CuResult {
    /// A sentence about this code; `None` for a code that the header does not have. NUL-terminated forms are made by
    /// the client.
    pub fn description(self) -> Option<&'static str> {
        let name = self.name()?;
        Some(match self {
            CUDA_SUCCESS => "the call worked",
            CUDA_ERROR_INVALID_VALUE => "an argument is outside of what the function accepts",
            CUDA_ERROR_OUT_OF_MEMORY => "not enough memory is free",
            CUDA_ERROR_NOT_INITIALIZED => "the driver has not been initialised in this process",
            CUDA_ERROR_DEINITIALIZED => "the driver is shutting down",
            CUDA_ERROR_STUB_LIBRARY => "the program runs with the driver's stub library",
            CUDA_ERROR_DEVICE_UNAVAILABLE => "the device cannot be used now",
            CUDA_ERROR_NO_DEVICE => "there is no device that can run CUDA",
            CUDA_ERROR_INVALID_DEVICE => "there is no device with this number",
            CUDA_ERROR_INVALID_IMAGE => "the code is not something that the device can load",
            CUDA_ERROR_INVALID_CONTEXT => "there is no valid current context",
            CUDA_ERROR_MAP_FAILED => "a mapping could not be made",
            CUDA_ERROR_UNMAP_FAILED => "a mapping could not be undone",
            CUDA_ERROR_ALREADY_MAPPED => "the resource is mapped already",
            CUDA_ERROR_NO_BINARY_FOR_GPU => "the code holds nothing for this device",
            CUDA_ERROR_NOT_MAPPED => "the resource is not mapped",
            CUDA_ERROR_ECC_UNCORRECTABLE => "memory had an error that could not be corrected",
            CUDA_ERROR_UNSUPPORTED_LIMIT => "the device does not have this limit",
            CUDA_ERROR_CONTEXT_ALREADY_IN_USE => "the context is in use by another thread",
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => "the devices cannot reach each other's memory",
            CUDA_ERROR_INVALID_PTX => "the PTX could not be compiled",
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND => "there is no PTX compiler",
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "the PTX is of a version that this driver does not know",
            CUDA_ERROR_INVALID_SOURCE => "the kernel source is invalid",
            CUDA_ERROR_FILE_NOT_FOUND => "the file was not found",
            CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND => "a symbol of a shared library was not found",
            CUDA_ERROR_SHARED_OBJECT_INIT_FAILED => "a shared library could not be initialised",
            CUDA_ERROR_OPERATING_SYSTEM => "a call of the operating system failed",
            CUDA_ERROR_INVALID_HANDLE => "a handle names nothing that exists",
            CUDA_ERROR_ILLEGAL_STATE => "a resource is not in a state that allows this",
            CUDA_ERROR_NOT_FOUND => "the name was not found",
            CUDA_ERROR_NOT_READY => "work that was asked about has not finished",
            CUDA_ERROR_ILLEGAL_ADDRESS => "a kernel used an address that it may not use",
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => "the launch needs more resources than the device has",
            CUDA_ERROR_LAUNCH_TIMEOUT => "a kernel took longer than is allowed",
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => "access to the peer's memory is enabled already",
            CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => "access to the peer's memory has not been enabled",
            CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE => "the device's primary context is active already",
            CUDA_ERROR_CONTEXT_IS_DESTROYED => "the current context has been destroyed",
            CUDA_ERROR_ASSERT => "a device-side assertion failed",
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => "the host memory is registered already",
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => "the host memory is not registered",
            CUDA_ERROR_HARDWARE_STACK_ERROR => "a kernel damaged or exceeded its stack",
            CUDA_ERROR_ILLEGAL_INSTRUCTION => "a kernel ran an illegal instruction",
            CUDA_ERROR_MISALIGNED_ADDRESS => {
                "a kernel used an address that is not aligned as its access needs"
            }
            CUDA_ERROR_INVALID_ADDRESS_SPACE => "a kernel used an address of the wrong state space",
            CUDA_ERROR_INVALID_PC => "a kernel jumped to an address that holds no code",
            CUDA_ERROR_LAUNCH_FAILED => "a kernel failed while it ran",
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
                "a cooperative launch has more blocks than fit at once"
            }
            CUDA_ERROR_NOT_PERMITTED => "this is not permitted here",
            CUDA_ERROR_NOT_SUPPORTED => "this is not supported",
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => "this is not allowed while the stream is being captured",
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => "an earlier error has made the stream's capture invalid",
            CUDA_ERROR_STREAM_CAPTURE_MERGE => "this would merge two captures",
            CUDA_ERROR_STREAM_CAPTURE_UNMATCHED => "the stream's capture was not begun on this stream",
            CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
                "a captured stream was not joined to the one that began the capture"
            }
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION => {
                "captured work would depend on work outside of the capture"
            }
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                "the default stream would depend on a stream that is being captured"
            }
            CUDA_ERROR_CAPTURED_EVENT => "the event was recorded in a stream that is being captured",
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => "the capture was begun by another thread",
            CUDA_ERROR_TIMEOUT => "the time limit has passed",
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => "the executable graph cannot be updated this way",
            CUDA_ERROR_INVALID_CLUSTER_SIZE => "the cluster size is invalid",
            CUDA_ERROR_UNKNOWN => "an error without a known cause",
            _ => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_description_and_others_have_none() {
        assert!(RESULTS.iter().all(|(code, _)| code.description().is_some_and(|text| !text.is_empty())));
        assert_eq!(CuResult(12345).description(), None);
    }
}
