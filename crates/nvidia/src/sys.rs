//! The driver's C interface as CUDA 13.0's header declares it: a table of functions found by their exact exported
//! names, and the structs that they take.
//!
//! Every handle (`CUstream`, `CUfunction`, …) and every `CUdeviceptr` is a `u64` here: on the 64-bit targets that the
//! driver exists for, pointers and `u64` are passed alike. Nothing links against CUDA.

#![allow(non_snake_case, reason = "functions have the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;
use rekindle_cuda::CuResult;
use rekindle_cuda::types::GraphExecUpdateResultInfo;

const _: () = assert!(size_of::<usize>() == 8, "the driver's handles are 64-bit");

/// The oldest driver that exports every function that is not optional: CUDA 12.4.
pub const MINIMUM_DRIVER: &str = "550.54 (CUDA 12.4)";

pub type HostFn = unsafe extern "C" fn(*mut c_void);

macro_rules! functions {
    (
        required { $(fn $name:ident($($argument:ty),*);)* }
        optional { $(fn $optional:ident($($optional_argument:ty),*);)* }
    ) => {
        /// The driver's functions. They stay valid as long as the process lives: the library is never unloaded.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> CuResult,)*
            $(pub $optional: Option<unsafe extern "C" fn($($optional_argument),*) -> CuResult>,)*
        }

        impl Functions {
            /// Finds every function; on failure the name that `library` lacks.
            pub fn find(library: &Library) -> Result<Functions, &'static str> {
                $(
                    // SAFETY: the signature is the header's for this exported name.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> CuResult>(stringify!($name))
                    };
                )*
                $(
                    // SAFETY: as above.
                    let $optional = unsafe {
                        library.get::<unsafe extern "C" fn($($optional_argument),*) -> CuResult>(stringify!($optional))
                    };
                )*
                Ok(Functions {
                    $($name: *$name.map_err(|_| stringify!($name))?,)*
                    $($optional: $optional.ok().map(|function| *function),)*
                })
            }
        }
    };
}

functions! {
    required {
        fn cuInit(c_uint);
        fn cuDriverGetVersion(*mut c_int);
        fn cuGetErrorString(CuResult, *mut *const c_char);
        fn cuDeviceGet(*mut c_int, c_int);
        fn cuDeviceGetCount(*mut c_int);
        fn cuDeviceGetName(*mut c_char, c_int, c_int);
        fn cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
        fn cuDeviceTotalMem_v2(*mut usize, c_int);
        fn cuDeviceGetAttribute(*mut c_int, c_int, c_int);
        fn cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
        fn cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
        fn cuDevicePrimaryCtxRetain(*mut u64, c_int);
        fn cuCtxSetCurrent(u64);
        fn cuCtxSynchronize();
        fn cuCtxGetLimit(*mut usize, c_uint);
        fn cuCtxSetLimit(c_uint, usize);
        fn cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);

        fn cuMemGetInfo_v2(*mut usize, *mut usize);
        fn cuMemGetAllocationGranularity(*mut usize, *const AllocationProperties, c_uint);
        fn cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
        fn cuMemAddressFree(u64, usize);
        fn cuMemCreate(*mut u64, usize, *const AllocationProperties, u64);
        fn cuMemRelease(u64);
        fn cuMemMap(u64, usize, usize, u64, u64);
        fn cuMemUnmap(u64, usize);
        fn cuMemSetAccess(u64, usize, *const AccessDescription, usize);
        fn cuMemExportToShareableHandle(*mut c_int, u64, c_uint, u64);
        fn cuMemImportFromShareableHandle(*mut u64, usize, c_uint);
        fn cuMemHostRegister_v2(u64, usize, c_uint);
        fn cuMemHostUnregister(u64);
        fn cuMemHostGetDevicePointer_v2(*mut u64, u64, c_uint);

        fn cuModuleLoadDataEx(*mut u64, *const c_void, c_uint, *mut c_int, *mut u64);
        fn cuModuleUnload(u64);
        fn cuModuleGetFunction(*mut u64, u64, *const c_char);
        fn cuModuleGetFunctionCount(*mut c_uint, u64);
        fn cuModuleEnumerateFunctions(*mut u64, c_uint, u64);
        fn cuModuleGetGlobal_v2(*mut u64, *mut usize, u64, *const c_char);
        fn cuLibraryLoadData(
            *mut u64, *const c_void, *mut c_int, *mut u64, c_uint, *mut c_int, *mut u64, c_uint
        );
        fn cuLibraryUnload(u64);
        fn cuLibraryGetKernel(*mut u64, u64, *const c_char);
        fn cuLibraryGetKernelCount(*mut c_uint, u64);
        fn cuLibraryEnumerateKernels(*mut u64, c_uint, u64);
        fn cuLibraryGetGlobal(*mut u64, *mut usize, u64, *const c_char);
        fn cuKernelGetFunction(*mut u64, u64);
        fn cuKernelGetName(*mut *const c_char, u64);
        fn cuFuncGetName(*mut *const c_char, u64);
        fn cuFuncGetAttribute(*mut c_int, c_int, u64);
        fn cuFuncSetAttribute(u64, c_int, c_int);
        fn cuFuncSetCacheConfig(u64, c_int);
        fn cuFuncGetParamInfo(u64, usize, *mut usize, *mut usize);
        fn cuLinkCreate_v2(c_uint, *mut c_int, *mut u64, *mut u64);
        fn cuLinkAddData_v2(
            u64, c_uint, *const c_void, usize, *const c_char, c_uint, *mut c_int, *mut u64
        );
        fn cuLinkComplete(u64, *mut *const u8, *mut usize);
        fn cuLinkDestroy(u64);
        fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(*mut c_int, u64, c_int, usize, c_uint);
        fn cuOccupancyAvailableDynamicSMemPerBlock(*mut usize, u64, c_int, c_int);
        fn cuOccupancyMaxActiveClusters(*mut c_int, u64, *const LaunchConfig);
        fn cuOccupancyMaxPotentialClusterSize(*mut c_int, u64, *const LaunchConfig);

        fn cuStreamCreateWithPriority(*mut u64, c_uint, c_int);
        fn cuStreamDestroy_v2(u64);
        fn cuStreamQuery(u64);
        fn cuStreamSynchronize(u64);
        fn cuStreamWaitEvent(u64, u64, c_uint);
        fn cuEventCreate(*mut u64, c_uint);
        fn cuEventDestroy_v2(u64);
        fn cuEventRecordWithFlags(u64, u64, c_uint);
        fn cuEventQuery(u64);
        fn cuEventSynchronize(u64);
        fn cuEventElapsedTime(*mut f32, u64, u64);

        fn cuLaunchKernel(
            u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, *mut *mut c_void, *const *const c_void
        );
        fn cuLaunchKernelEx(*const LaunchConfig, u64, *mut *mut c_void, *const *const c_void);
        fn cuLaunchHostFunc(u64, HostFn, *mut c_void);
        fn cuMemcpyAsync(u64, u64, usize, u64);
        fn cuMemcpy3DAsync_v2(*const Memcpy3D, u64);
        fn cuMemsetD8Async(u64, u8, usize, u64);
        fn cuMemsetD16Async(u64, u16, usize, u64);
        fn cuMemsetD32Async(u64, u32, usize, u64);
        fn cuMemsetD2D8Async(u64, usize, u8, usize, usize, u64);
        fn cuMemsetD2D16Async(u64, usize, u16, usize, usize, u64);
        fn cuMemsetD2D32Async(u64, usize, u32, usize, usize, u64);
        fn cuStreamWaitValue32_v2(u64, u64, u32, c_uint);
        fn cuStreamWaitValue64_v2(u64, u64, u64, c_uint);
        fn cuStreamWriteValue32_v2(u64, u64, u32, c_uint);
        fn cuStreamWriteValue64_v2(u64, u64, u64, c_uint);

        fn cuArray3DCreate_v2(*mut u64, *const ArrayDescriptor);
        fn cuArrayDestroy(u64);
        fn cuMipmappedArrayCreate(*mut u64, *const ArrayDescriptor, c_uint);
        fn cuMipmappedArrayGetLevel(*mut u64, u64, c_uint);
        fn cuMipmappedArrayDestroy(u64);
        fn cuTexObjectCreate(
            *mut u64, *const ResourceDescriptor, *const TextureDescriptor, *const ResourceViewDescriptor
        );
        fn cuTexObjectDestroy(u64);
        fn cuSurfObjectCreate(*mut u64, *const ResourceDescriptor);
        fn cuSurfObjectDestroy(u64);

        fn cuStreamBeginCapture_v2(u64, c_uint);
        fn cuStreamEndCapture(u64, *mut u64);
        fn cuStreamGetCaptureInfo_v2(u64, *mut c_uint, *mut u64, *mut u64, *mut *const u64, *mut usize);
        fn cuGraphCreate(*mut u64, c_uint);
        fn cuGraphDestroy(u64);
        fn cuGraphDestroyNode(u64);
        fn cuGraphAddKernelNode_v2(*mut u64, u64, *const u64, usize, *const KernelNode);
        fn cuGraphKernelNodeSetAttribute(u64, c_uint, *const LaunchValue);
        fn cuGraphAddMemcpyNode(*mut u64, u64, *const u64, usize, *const Memcpy3D, u64);
        fn cuGraphAddMemsetNode(*mut u64, u64, *const u64, usize, *const MemsetNode, u64);
        fn cuGraphAddEmptyNode(*mut u64, u64, *const u64, usize);
        fn cuGraphAddChildGraphNode(*mut u64, u64, *const u64, usize, u64);
        fn cuGraphAddHostNode(*mut u64, u64, *const u64, usize, *const HostNode);
        fn cuGraphAddEventRecordNode(*mut u64, u64, *const u64, usize, u64);
        fn cuGraphAddEventWaitNode(*mut u64, u64, *const u64, usize, u64);
        fn cuGraphAddBatchMemOpNode(*mut u64, u64, *const u64, usize, *const BatchNode);
        fn cuGraphConditionalHandleCreate(*mut u64, u64, u64, c_uint, c_uint);
        fn cuGraphAddNode(*mut u64, u64, *const u64, usize, *mut AnyNode);
        fn cuUserObjectCreate(*mut u64, *mut c_void, HostFn, c_uint, c_uint);
        fn cuUserObjectRelease(u64, c_uint);
        fn cuGraphRetainUserObject(u64, u64, c_uint, c_uint);
        fn cuGraphGetNodes(u64, *mut u64, *mut usize);
        fn cuGraphNodeGetType(u64, *mut c_uint);
        fn cuGraphInstantiateWithFlags(*mut u64, u64, u64);
        fn cuGraphExecUpdate_v2(u64, u64, *mut GraphExecUpdateResultInfo);
        fn cuGraphLaunch(u64, u64);
        fn cuGraphExecDestroy(u64);
    }
    optional {
        // CUDA 12.5.
        fn cuDeviceGetDevResource(c_int, *mut DevResource, c_uint);
        fn cuDevSmResourceSplitByCount(
            *mut DevResource, *mut c_uint, *const DevResource, *mut DevResource, c_uint, c_uint
        );
        fn cuDevResourceGenerateDesc(*mut u64, *const DevResource, c_uint);
        fn cuGreenCtxCreate(*mut u64, u64, c_int, c_uint);
        fn cuGreenCtxDestroy(u64);
        fn cuGreenCtxStreamCreate(*mut u64, u64, c_uint, c_int);
        // CUDA 12.8.
        fn cuCheckpointProcessLock(c_int, *const CheckpointLock);
        fn cuCheckpointProcessCheckpoint(c_int, *const CheckpointReserved);
        fn cuCheckpointProcessRestore(c_int, *const CheckpointRestore);
        fn cuCheckpointProcessUnlock(c_int, *const CheckpointReserved);
        // Answer NOT_SUPPORTED on GPUs older than compute capability 9.0.
        fn cuTensorMapEncodeTiled(
            *mut TensorMap, c_uint, u32, u64, *const u64, *const u64, *const u32, *const u32,
            c_uint, c_uint, c_uint, c_uint
        );
        fn cuTensorMapReplaceAddress(*mut TensorMap, u64);
        // CUDA 13.0.
        fn cuGetExportTable(*mut *const FeatureTable, *const [u8; 16]);
        fn cuDeviceGetHostAtomicCapabilities(*mut c_uint, *const c_uint, c_uint, c_int);
        fn cuTensorMapEncodeIm2col(
            *mut TensorMap, c_uint, u32, u64, *const u64, *const u64, *const c_int, *const c_int, u32, u32,
            *const u32, c_uint, c_uint, c_uint, c_uint
        );
    }
}

impl Functions {
    /// The driver's sentence about a result code.
    pub fn describe(&self, code: CuResult) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: writes a pointer to a static string, or null for a code that the driver does not know.
        let known = unsafe { (self.cuGetErrorString)(code, &mut text) };
        if !known.is_success() || text.is_null() {
            return None;
        }
        // SAFETY: the driver's strings are static and end in NUL.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// `CUmemLocationType` and `CUmemAccess_flags` are `c_uint` enums; 1 is a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    pub kind: c_uint,
    pub id: c_int,
}

pub const LOCATION_DEVICE: c_uint = 1;
pub const ALLOCATION_PINNED: c_uint = 1;
pub const HANDLE_POSIX_FD: c_uint = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
pub struct AllocationProperties {
    pub kind: c_uint,
    pub handle_types: c_uint,
    pub location: Location,
    pub win32: u64,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct AccessDescription {
    pub location: Location,
    pub flags: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    pub id: c_uint,
    pub pad: [u8; 4],
    pub value: LaunchValue,
}

/// `CUlaunchAttributeValue`: 64 bytes, aligned as its widest member.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct LaunchValue(pub [u8; 64]);

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub stream: u64,
    pub attributes: *const LaunchAttribute,
    pub count: c_uint,
}

/// The keys of a launch's `extra` array.
pub const LAUNCH_END: usize = 0;
pub const LAUNCH_BUFFER: usize = 1;
pub const LAUNCH_SIZE: usize = 2;

pub const MEMORY_ARRAY: c_uint = 3;
pub const MEMORY_UNIFIED: c_uint = 4;

/// One side of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Default)]
pub struct MemcpySide {
    pub x: usize,
    pub y: usize,
    pub z: usize,
    pub lod: usize,
    pub kind: c_uint,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub reserved: u64,
    pub pitch: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Default)]
pub struct Memcpy3D {
    pub from: MemcpySide,
    pub to: MemcpySide,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
pub struct ArrayDescriptor {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: c_uint,
    pub channels: c_uint,
    pub flags: c_uint,
}

/// `CUDA_RESOURCE_DESC`. The union's fields are those of its largest member in use, `pitch2D`: the others begin as it does,
/// but for `linear`, whose size lies where `width` is.
#[repr(C)]
#[derive(Default)]
pub struct ResourceDescriptor {
    pub kind: c_uint,
    /// `CUarray`, `CUmipmappedArray` or `CUdeviceptr`.
    pub handle: u64,
    pub format: c_uint,
    pub channels: c_uint,
    pub width: usize,
    pub height: usize,
    pub pitch: usize,
    pub rest: [u64; 11],
    pub flags: c_uint,
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
pub struct TextureDescriptor {
    pub address_modes: [c_uint; 3],
    pub filter: c_uint,
    pub flags: c_uint,
    pub anisotropy: c_uint,
    pub mipmap_filter: c_uint,
    pub level_bias: f32,
    pub level_clamp: [f32; 2],
    pub border: [f32; 4],
    pub reserved: [c_int; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`.
#[repr(C)]
pub struct ResourceViewDescriptor {
    pub format: c_uint,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub levels: [c_uint; 2],
    pub layers: [c_uint; 2],
    pub reserved: [c_uint; 16],
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub struct KernelNode {
    pub function: u64,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub parameters: *mut *mut c_void,
    pub extra: *const *const c_void,
    pub kernel: u64,
    pub context: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
pub struct MemsetNode {
    pub address: u64,
    pub pitch: usize,
    pub value: c_uint,
    pub element: c_uint,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
pub struct HostNode {
    pub function: HostFn,
    pub data: *mut c_void,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
pub struct BatchNode {
    pub context: u64,
    pub count: c_uint,
    pub operations: *const BatchOperation,
    pub flags: c_uint,
}

/// `CUstreamBatchMemOpParams`, a union of 48 bytes: the operation's number in the low half of the first word. Waits and
/// writes then have an address, a value, flags and an alias; others have their flags in the high half of the first word.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOperation(pub [u64; 6]);

/// `CUgraphNodeParams`: the type, and a union.
#[repr(C)]
pub struct AnyNode {
    pub kind: c_uint,
    pub reserved: [c_int; 3],
    pub inner: NodeUnion,
    pub last_reserved: i64,
}

/// The union of `CUgraphNodeParams`, of 29 words, as a conditional node has it.
#[repr(C)]
pub struct NodeUnion {
    pub handle: u64,
    /// `CUgraphConditionalNodeType`.
    pub kind: c_uint,
    pub size: c_uint,
    /// The driver puts the place of an array of its own here.
    pub bodies: *const u64,
    pub context: u64,
    pub rest: [u64; 25],
}

pub const NODE_CONDITIONAL: c_uint = 13;

const _: () = assert!(
    size_of::<HostNode>() == 16
        && size_of::<BatchNode>() == 32
        && size_of::<NodeUnion>() == 29 * 8
        && size_of::<AnyNode>() == 256
);

/// `CUdevResource` of version 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DevResource {
    pub kind: c_uint,
    pub padding: [u8; 92],
    /// `CUdevSmResource`, as far as every version has it.
    pub multiprocessors: c_uint,
    pub more: [u8; 44],
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
pub struct CheckpointLock {
    pub timeout_ms: c_uint,
    pub reserved0: c_uint,
    pub reserved1: [u64; 7],
}

/// `CUcheckpointCheckpointArgs` and `CUcheckpointUnlockArgs`.
#[repr(C)]
#[derive(Default)]
pub struct CheckpointReserved(pub [u64; 8]);

/// `CUcheckpointRestoreArgs`.
#[repr(C)]
pub struct CheckpointRestore {
    pub pairs: u64,
    pub pair_count: c_uint,
    pub reserved: [u8; 44],
    pub reserved1: u64,
}

/// `CUtensorMap`.
#[repr(C, align(128))]
pub struct TensorMap(pub [u8; 128]);

/// A private table of the driver's, which cuSPARSELt asks what the device has.
#[repr(C)]
pub struct FeatureTable {
    pub bytes: usize,
    pub has: unsafe extern "C" fn(device: c_int, feature: c_uint, reserved: *const c_void) -> c_int,
}

pub const FEATURES: [u8; 16] =
    [0xcd, 0x3e, 0xa2, 0xc6, 0x70, 0x76, 0xdb, 0x4b, 0x88, 0x2e, 0x52, 0xae, 0x6c, 0x2d, 0x86, 0xf7];

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Sizes and offsets that a C compiler gives CUDA 13.0's header on x86-64.
    #[test]
    fn structs_lie_as_in_the_header() {
        assert_eq!(size_of::<AllocationProperties>(), 32);
        assert_eq!(offset_of!(AllocationProperties, location), 8);
        assert_eq!(offset_of!(AllocationProperties, usage), 26);
        assert_eq!(size_of::<AccessDescription>(), 12);
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(offset_of!(LaunchAttribute, value), 8);
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(offset_of!(LaunchConfig, stream), 32);
        assert_eq!(offset_of!(LaunchConfig, count), 48);
        assert_eq!(size_of::<Memcpy3D>(), 200);
        assert_eq!(offset_of!(Memcpy3D, to), 88);
        assert_eq!(offset_of!(MemcpySide, device), 48);
        assert_eq!(offset_of!(MemcpySide, pitch), 72);
        assert_eq!(offset_of!(Memcpy3D, width), 176);
        assert_eq!(size_of::<ArrayDescriptor>(), 40);
        assert_eq!(offset_of!(ArrayDescriptor, flags), 32);
        assert_eq!(size_of::<ResourceDescriptor>(), 144);
        assert_eq!(offset_of!(ResourceDescriptor, handle), 8);
        assert_eq!(offset_of!(ResourceDescriptor, format), 16);
        assert_eq!(offset_of!(ResourceDescriptor, width), 24);
        assert_eq!(offset_of!(ResourceDescriptor, pitch), 40);
        assert_eq!(offset_of!(ResourceDescriptor, flags), 136);
        assert_eq!(size_of::<TextureDescriptor>(), 104);
        assert_eq!(offset_of!(TextureDescriptor, border), 40);
        assert_eq!(size_of::<ResourceViewDescriptor>(), 112);
        assert_eq!(offset_of!(ResourceViewDescriptor, levels), 32);
        assert_eq!(offset_of!(ResourceViewDescriptor, layers), 40);
        assert_eq!(size_of::<KernelNode>(), 72);
        assert_eq!(offset_of!(KernelNode, parameters), 40);
        assert_eq!(offset_of!(KernelNode, context), 64);
        assert_eq!(size_of::<MemsetNode>(), 40);
        assert_eq!(size_of::<DevResource>(), 144);
        assert_eq!(offset_of!(DevResource, multiprocessors), 96);
        assert_eq!(size_of::<CheckpointLock>(), 64);
        assert_eq!(size_of::<CheckpointReserved>(), 64);
        assert_eq!(size_of::<CheckpointRestore>(), 64);
        assert_eq!(offset_of!(CheckpointRestore, reserved1), 56);
        assert_eq!((size_of::<TensorMap>(), align_of::<TensorMap>()), (128, 128));
    }
}
