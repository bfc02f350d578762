//! Devices: answered from what the worker said when it welcomed this process.

use rekindle_cuda::types::DeviceProperties;
use rekindle_cuda::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use rekindle_device::DeviceInfo;

use crate::abi::{Out, Result, Text, put_text};
use crate::export::exports;
use crate::session;

/// The device with this number.
pub fn info(device: i32) -> Result<&'static DeviceInfo> {
    session::get()?.device(usize::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?)
}

/// `CU_DEVICE_ATTRIBUTE_MAX` of CUDA 13.0.
const ATTRIBUTES: i32 = 148;

/// What a GPU has and a program here does not: GPUDirect RDMA with mapped memory and without, DMA buffers, fabric handles,
/// multicast objects. Libraries such as NCCL go without what they are not told of.
const WITHOUT: [i32; 5] = [110, 116, 124, 128, 132];

/// An attribute, 0 where the device does not have it.
pub fn attribute(device: u8, attribute: i32) -> Result<i32> {
    Ok(info(device.into())?.attribute(attribute).unwrap_or(0))
}

/// Whether one device's kernels may use the other's memory.
pub fn can_reach(from: u8, to: u8) -> Result<bool> {
    Ok(session::get()?.welcome.reaches.contains(&(from, to)))
}

fn pair(from: i32, to: i32) -> Result<(u8, u8)> {
    info(from)?;
    info(to)?;
    let number = |device: i32| u8::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE);
    Ok((number(from)?, number(to)?))
}

/// `0000:3b:00.0` and its shorter spellings, as numbers: domain, bus, device.
fn pci_address(text: &str) -> Option<(u32, u32, u32)> {
    let text = text.trim();
    let text = text.split('.').next()?;
    let parts: Vec<u32> = text
        .split(':')
        .map(|part| u32::from_str_radix(part, 16))
        .collect::<std::result::Result<_, _>>()
        .ok()?;
    match parts[..] {
        [domain, bus, device] => Some((domain, bus, device)),
        [bus, device] => Some((0, bus, device)),
        _ => None,
    }
}

fn properties(info: &DeviceInfo) -> DeviceProperties {
    let value = |attribute| info.attribute(attribute).unwrap_or(0);
    DeviceProperties {
        max_threads_per_block: value(1),
        max_threads_dim: [value(2), value(3), value(4)],
        max_grid_size: [value(5), value(6), value(7)],
        shared_memory_per_block: value(8),
        total_constant_memory: value(9),
        warp_size: value(10),
        max_pitch: value(11),
        registers_per_block: value(12),
        clock_rate: value(13),
        texture_alignment: value(14),
    }
}

exports! {
    ready fn cuDeviceGetCount(out: Out<i32>) { out.put(session::get()?.welcome.devices.len() as i32) }
    ready fn cuDeviceGet(out: Out<i32>, ordinal: i32) {
        info(ordinal)?;
        out.put(ordinal)
    }
    ready fn cuDeviceGetName(out: Out<u8>, length: i32, device: i32) { put_text(out, length, &info(device)?.name) }
    ready fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: i32) { out.put(info(device)?.uuid) }
    ready fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: i32) { out.put(info(device)?.uuid) }
    ready fn cuDeviceGetLuid(_out: Out<u8>, _mask: Out<u32>, device: i32) {
        info(device)?;
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }
    ready fn cuDeviceTotalMem_v2(out: Out<usize>, device: i32) { out.put(info(device)?.total_memory as usize) }
    ready fn cuDeviceGetAttribute(out: Out<i32>, attribute: i32, device: i32) {
        let info = info(device)?;
        match info.attribute(attribute) {
            Some(_) if WITHOUT.contains(&attribute) => out.put(0),
            Some(value) => out.put(value),
            None if (1..ATTRIBUTES).contains(&attribute) => out.put(0),
            None => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    ready fn cuDeviceGetProperties(out: Out<DeviceProperties>, device: i32) { out.put(properties(info(device)?)) }
    ready fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let capability = info(device)?.compute_capability;
        major.put(capability.0 as i32)?;
        minor.put(capability.1 as i32)
    }
    ready fn cuDeviceGetPCIBusId(out: Out<u8>, length: i32, device: i32) { put_text(out, length, &info(device)?.pci_bus_id) }
    ready fn cuDeviceGetByPCIBusId(out: Out<i32>, text: Text) {
        let wanted = pci_address(text.get()?).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let devices = &session::get()?.welcome.devices;
        let found = devices.iter().position(|info| pci_address(&info.pci_bus_id) == Some(wanted));
        out.put(found.ok_or(CUDA_ERROR_INVALID_DEVICE)? as i32)
    }
    ready fn cuDeviceCanAccessPeer(out: Out<i32>, from: i32, to: i32) {
        let (from, to) = pair(from, to)?;
        out.put(can_reach(from, to)?.into())
    }
    ready fn cuDeviceGetP2PAttribute(out: Out<i32>, attribute: u32, from: i32, to: i32) {
        let (from, to) = pair(from, to)?;
        if from == to {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        match attribute {
            1 => out.put(0),
            2 => out.put(can_reach(from, to)?.into()),
            3..=5 => out.put(0),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    ready fn cuDeviceGetExecAffinitySupport(out: Out<i32>, _kind: u32, device: i32) {
        info(device)?;
        out.put(0)
    }
    ready fn cuDeviceGetTexture1DLinearMaxWidth(out: Out<usize>, _format: u32, _channels: u32, device: i32) {
        out.put(info(device)?.attribute(69).unwrap_or(0) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_in_every_spelling() {
        assert_eq!(pci_address("0000:3b:00.0"), Some((0, 0x3b, 0)));
        assert_eq!(pci_address("00000000:3B:00.0"), Some((0, 0x3b, 0)));
        assert_eq!(pci_address("3b:00"), Some((0, 0x3b, 0)));
        assert_eq!(pci_address("x"), None);
        assert_eq!(pci_address(""), None);
    }
}
