//! Plain structs of the driver API, laid out as C has them.

use std::ffi::c_void;

/// A device address.
pub type DevicePointer = u64;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memcpy2D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_type: u32,
    pub src_host: *const c_void,
    pub src_device: DevicePointer,
    pub src_array: *mut c_void,
    pub src_pitch: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_type: u32,
    pub dst_host: *mut c_void,
    pub dst_device: DevicePointer,
    pub dst_array: *mut c_void,
    pub dst_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D`, and `CUDA_MEMCPY3D_PEER`, whose contexts lie where the reserved fields are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memcpy3D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_type: u32,
    pub src_host: *const c_void,
    pub src_device: DevicePointer,
    pub src_array: *mut c_void,
    pub src_context: *mut c_void,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_type: u32,
    pub dst_host: *mut c_void,
    pub dst_device: DevicePointer,
    pub dst_array: *mut c_void,
    pub dst_context: *mut c_void,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUmemcpy3DOperand`: a pointer with the elements of its rows and rows of its layers, or an array and where in it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memcpy3DOperand {
    pub kind: u32,
    pub address: u64,
    pub sizes: [usize; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memcpy3DBatchOp {
    pub from: Memcpy3DOperand,
    pub to: Memcpy3DOperand,
    pub extent: [usize; 3],
    pub order: u32,
    pub flags: u32,
}

/// `CU_MEMORYTYPE_*`.
pub mod memory_type {
    pub const HOST: u32 = 1;
    pub const DEVICE: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const UNIFIED: u32 = 4;
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemLocation {
    pub kind: u32,
    pub id: i32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAllocationProp {
    pub kind: u32,
    pub handle_types: u32,
    pub location: MemLocation,
    pub win32: *mut c_void,
    pub compression: u8,
    pub rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAccessDesc {
    pub location: MemLocation,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemPoolProps {
    pub kind: u32,
    pub handle_types: u32,
    pub location: MemLocation,
    pub win32: *mut c_void,
    pub max_size: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttribute {
    pub id: u32,
    pub pad: u32,
    pub value: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: *mut c_void,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: u32,
}

/// `CUDA_KERNEL_NODE_PARAMS` (version 2; version 1 ends before `kernel`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelNodeParams {
    pub function: *mut c_void,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub parameters: *const *const c_void,
    pub extra: *const *const c_void,
    pub kernel: *mut c_void,
    pub context: *mut c_void,
}

/// The part of `CUDA_KERNEL_NODE_PARAMS` that version 1 has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelNodeParamsV1 {
    pub function: *mut c_void,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub parameters: *const *const c_void,
    pub extra: *const *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemsetNodeParams {
    pub address: DevicePointer,
    pub pitch: usize,
    pub value: u32,
    pub element: u32,
    pub width: usize,
    pub height: usize,
}

/// `CUctxCreateParams`: what a context is to have beyond the ordinary, nothing where all is zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ContextParams {
    pub affinities: *mut c_void,
    pub affinity_count: i32,
    /// Of a context for graphics.
    pub graphics: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GraphInstantiateParams {
    pub flags: u64,
    pub upload_stream: *mut c_void,
    pub error_node: *mut c_void,
    pub result: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GraphExecUpdateResultInfo {
    pub result: u32,
    pub error_node: *mut c_void,
    pub error_from_node: *mut c_void,
}

/// `CUgraphEdgeData`: zero means a full dependency.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GraphEdgeData(pub [u8; 8]);

/// `CUstreamBatchMemOpParams`: a wait or a write of a value; other operations use the first fields only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchMemOp {
    pub operation: u32,
    pub address: DevicePointer,
    pub value: u64,
    pub flags: u32,
    pub alias: DevicePointer,
    pub pad: u64,
}

/// `CUstreamBatchMemOpParams` as words: waits and writes have address, value and flags in words of their own, others have
/// their flags beside the operation.
pub type BatchMemOpWords = [u64; 6];

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchMemOpNodeParams {
    pub context: *mut c_void,
    pub count: u32,
    pub operations: *const BatchMemOpWords,
    pub flags: u32,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostNodeParams {
    pub function: Option<extern "C" fn(*mut c_void)>,
    pub data: *mut c_void,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`; the driver fills in where its array of `size` graphs is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConditionalNodeParams {
    pub handle: u64,
    pub kind: u32,
    pub size: u32,
    pub graphs: *const *mut c_void,
    pub context: *mut c_void,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`; the driver fills in `address`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAllocNodeParams {
    pub pool: MemPoolProps,
    pub access: *const MemAccessDesc,
    pub access_count: usize,
    pub bytes: usize,
    pub address: DevicePointer,
}

/// `CUdevprop`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceProperties {
    pub max_threads_per_block: i32,
    pub max_threads_dim: [i32; 3],
    pub max_grid_size: [i32; 3],
    pub shared_memory_per_block: i32,
    pub total_constant_memory: i32,
    pub warp_size: i32,
    pub max_pitch: i32,
    pub registers_per_block: i32,
    pub clock_rate: i32,
    pub texture_alignment: i32,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayDescriptor {
    pub width: usize,
    pub height: usize,
    pub format: u32,
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array3DDescriptor {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

/// `CUDA_RESOURCE_DESC`. What follows `kind` is a union; these are the fields of `pitch2D`. The others begin as it does, but for
/// `linear`, whose size lies where `width` is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResourceDescriptor {
    pub kind: u32,
    /// An array, an array with mipmaps, or an address.
    pub handle: u64,
    pub format: u32,
    pub channels: u32,
    pub width: usize,
    pub height: usize,
    pub pitch: usize,
    pub rest: [u64; 11],
    pub flags: u32,
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TextureDescriptor {
    pub address_modes: [u32; 3],
    pub filter: u32,
    pub flags: u32,
    pub anisotropy: u32,
    pub mipmap_filter: u32,
    pub level_bias: f32,
    pub level_clamp: [f32; 2],
    pub border: [f32; 4],
    pub reserved: [i32; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResourceViewDescriptor {
    pub format: u32,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub levels: [u32; 2],
    pub layers: [u32; 2],
    pub reserved: [u32; 16],
}

/// `CU_RESOURCE_TYPE_*`.
pub mod resource_type {
    pub const ARRAY: u32 = 0;
    pub const MIPMAPPED_ARRAY: u32 = 1;
    pub const LINEAR: u32 = 2;
    pub const PITCH2D: u32 = 3;
}

/// `CUdevResource`: multiprocessors. What lies in its private part is the client's own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevResource {
    pub kind: u32,
    pub device: u32,
    /// A set of units of the device.
    pub units: u64,
    /// Which division it comes from.
    pub split: u64,
    pub padding: [u8; 72],
    pub multiprocessors: u32,
    /// The least that a part of it has.
    pub least: u32,
    pub aligned: u32,
    pub more: [u8; 36],
}

/// A 128-byte tensor map, 64-byte aligned.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct TensorMap(pub [u8; 128]);

const _: () = assert!(
    size_of::<Memcpy2D>() == 128
        && size_of::<Memcpy3D>() == 200
        && size_of::<Memcpy3DBatchOp>() == 112
        && size_of::<MemAllocationProp>() == 32
        && size_of::<MemPoolProps>() == 88
        && size_of::<LaunchAttribute>() == 72
        && size_of::<LaunchConfig>() == 56
        && size_of::<KernelNodeParams>() == 72
        && size_of::<KernelNodeParamsV1>() == 56
        && size_of::<BatchMemOp>() == 48
        && size_of::<GraphInstantiateParams>() == 32
        && size_of::<ArrayDescriptor>() == 24
        && size_of::<Array3DDescriptor>() == 40
        && size_of::<ResourceDescriptor>() == 144
        && size_of::<TextureDescriptor>() == 104
        && size_of::<ResourceViewDescriptor>() == 112
        && size_of::<BatchMemOpNodeParams>() == 32
        && size_of::<HostNodeParams>() == 16
        && size_of::<ConditionalNodeParams>() == 32
        && size_of::<MemAllocNodeParams>() == 120
        && size_of::<DevResource>() == 144
        && std::mem::offset_of!(DevResource, multiprocessors) == 96
);
