//! What an image keeps for the daemon, beside what the manifest says in its own fields: `extra.sandbox`.

use std::path::PathBuf;

use rekindle_device::Slice;
use rekindle_protocol::client::Quiesced;
use rekindle_protocol::daemon::Limits;
use rekindle_protocol::mounts::Mounts;
use rekindle_protocol::network::{Network, Port};
use rekindle_sandbox::Inventory;
use rekindle_store::{Image, Manifest};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::images::ImageError;
use crate::images::driver_half::DriverHalf;

const FIELD: &str = "sandbox";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ImageMetadata {
    /// The name of the sandbox that the image was taken of.
    pub name: String,
    /// Its GPU, as the user said it.
    pub gpu: String,
    pub inventory: Inventory,
    /// The processes that used a GPU through a worker.
    #[serde(rename = "client", with = "clients")]
    pub clients: Vec<Quiesced>,
    /// What the driver itself has put into the processes' memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<DriverHalf>,
    /// The processes whose AMD GPU half CRIU's plugin has put beside CRIU's images, as the program knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub amd: Vec<i32>,
    /// Whether its program waits for an app.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub framework: bool,
    /// The container that it was taken of; its archive is a part then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerMetadata>,
    #[serde(default, skip_serializing_if = "Network::is_host")]
    pub network: Network,
    /// The ports of the machine's that led to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Mounts::is_empty")]
    pub mounts: Mounts,
    /// The addresses that its program keeps to, if it may share contexts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Slice>,
    /// Those of each process that used a GPU, in the order of `clients`, where several did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Option<Slice>>,
    /// Whose programs it shared contexts with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What the user should know of the image, a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl ImageMetadata {
    pub fn write(&self, manifest: &mut Manifest) -> Result<()> {
        let value = serde_json::to_value(self)
            .map_err(|source| Error::system("describe the sandbox", std::io::Error::from(source)))?;
        manifest.extra = serde_json::json!({ FIELD: value });
        Ok(())
    }

    /// The addresses of all processes that used a GPU; none of one that may not share contexts.
    pub fn all_slices(&self) -> Vec<Option<Slice>> {
        if self.clients.len() > 1 { self.slices.clone() } else { vec![self.slice] }
    }

    /// Whether its program has used no GPU so far, and keeps to no addresses there: it may yet be given some.
    pub fn is_new_to_gpus(&self) -> bool {
        self.clients.is_empty() && self.slice.is_none()
    }

    /// Adds what was found out since it was written.
    pub fn warn(manifest: &mut Manifest, warnings: &[String]) {
        if let Some(field) = manifest.extra.get_mut(FIELD) {
            field["warnings"] = warnings.into();
        }
    }

    pub fn read(image: &Image) -> Result<ImageMetadata> {
        let refused = |reason: String| {
            ImageError::CannotRestore { image: image.manifest().name.clone(), reason }.into()
        };
        let field = image.manifest().extra.get(FIELD);
        let field = field.ok_or_else(|| refused("it does not say how its sandbox was made".to_string()))?;
        let metadata = ImageMetadata::deserialize(field)
            .map_err(|error| refused(format!("what it says of its sandbox cannot be understood: {error}")))?;
        let halves: Vec<u32> = match &metadata.clients[..] {
            [] | [_] => Vec::new(),
            several => several.iter().map(|client| client.process).collect(),
        };
        if halves != image.manifest().halves {
            return Err(refused(
                "it names other processes that used the GPU than it has GPU halves of".to_string(),
            ));
        }
        let files = metadata.clients.iter().flat_map(|client| &client.files);
        for (name, _) in files {
            if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
                return Err(refused(format!("it wants a file named {name:?}, which no client makes")));
            }
        }
        Ok(metadata)
    }
}

/// None is written as null, and a single one by itself.
mod clients {
    use rekindle_protocol::client::Quiesced;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Found {
        One(Quiesced),
        Several(Vec<Quiesced>),
    }

    pub fn serialize<S: Serializer>(clients: &[Quiesced], to: S) -> Result<S::Ok, S::Error> {
        match clients {
            [] => to.serialize_none(),
            [one] => one.serialize(to),
            several => several.serialize(to),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Quiesced>, D::Error> {
        Ok(match Option::<Found>::deserialize(from)? {
            None => Vec::new(),
            Some(Found::One(client)) => vec![client],
            Some(Found::Several(clients)) => clients,
        })
    }
}

/// What an image keeps of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerMetadata {
    /// Who runs it.
    pub engine: String,
    /// The OCI runtime that has written the archive, and alone understands it.
    pub runtime: String,
    /// What it was called.
    pub name: String,
    /// The engine's own division of names, where it has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What the archive calls itself, where its engine asks for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Its devices by their names in the container device interface.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Of the machine, what is mounted in it.
    #[serde(default)]
    pub mounts: Vec<PathBuf>,
    /// Whether memory and CRIU's images are parts beside the archive, in place of being in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_beside: bool,
    /// The GPU of Rekindle's that it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceMetadata>,
}

/// What an image keeps of the device that its container had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceMetadata {
    pub name: String,
    pub id: String,
    /// Where its run directory was, which the container's description names.
    pub run_directory: PathBuf,
}
