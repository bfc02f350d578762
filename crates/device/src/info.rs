//! What is known of a GPU and of a kernel.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuKind {
    Nvidia,
    Emulated,
}

/// A GPU as the program sees it. Sent whole to the client, which answers look-ups from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    pub kind: GpuKind,
    pub index: u32,
    pub name: String,
    pub uuid: [u8; 16],
    pub pci_bus_id: String,
    pub total_memory: u64,
    pub compute_capability: (u32, u32),
    /// (`CUdevice_attribute`, value), ascending; an attribute that is missing is invalid on this device.
    pub attributes: Vec<(i32, i32)>,
    /// Least and greatest stream priority.
    pub stream_priorities: (i32, i32),
    /// (`CUlimit`, value) as a new context has them.
    pub limits: Vec<(u32, u64)>,
}

impl DeviceInfo {
    pub fn uuid_text(&self) -> String {
        uuid_text(&self.uuid)
    }

    pub fn attribute(&self, attribute: i32) -> Option<i32> {
        self.attributes.binary_search_by_key(&attribute, |row| row.0).ok().map(|i| self.attributes[i].1)
    }
}

/// Host addresses that a driver has reserved for its own use; see [`crate::Platform::placements`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub address: u64,
    pub bytes: u64,
    /// Reserved while code was loaded or looked up.
    pub code: bool,
}

/// A kernel parameter's place in the parameter buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    pub offset: u32,
    pub size: u32,
}

/// What the client caches of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionInfo {
    /// Indexed by `CUfunction_attribute` (16 of them).
    pub attributes: Vec<i32>,
    pub parameters: Vec<Parameter>,
}

impl FunctionInfo {
    /// Bytes of the parameter buffer.
    pub fn parameter_bytes(&self) -> usize {
        self.parameters.iter().map(|p| (p.offset + p.size) as usize).max().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    None,
    Read,
    ReadWrite,
}

/// As the driver's tools write it: `GPU-` and five groups of digits.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_string();
    for (n, byte) in uuid.iter().enumerate() {
        if matches!(n, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_reads_as_the_tools_write_it() {
        let uuid: [u8; 16] = std::array::from_fn(|n| n as u8);
        assert_eq!(super::uuid_text(&uuid), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
