//! The base of one epoch: what the memory of each GPU held when it began.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rekindle_cuda::{CUDA_ERROR_OUT_OF_MEMORY, CuResult};
use rekindle_protocol::mending::MendObstacle;
use serde::{Deserialize, Serialize};

use super::base_memory::{AddressPool, BaseMemory};
use super::rows::{self, DeviceRows, Row};
use crate::client::Client;

/// What is to be known of a base on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BaseDescription {
    pub epoch: u64,
    /// On how many GPUs the epoch has a base.
    pub gpus: usize,
    pub device: usize,
    pub bytes: u64,
    pub on_host: bool,
    pub rows: Vec<Row>,
    /// Where the state of the GPU half lies that the journal begins behind.
    pub image: PathBuf,
}

/// Memory for what is on each GPU, by the program's numbers, and what it has of an epoch.
#[derive(Default)]
pub(super) struct Base {
    pub places: BTreeMap<usize, BaseMemory>,
    /// Of the epoch that it was made for; nothing if it counts for none.
    pub about: Vec<BaseDescription>,
}

/// A GPU's part of a base that is about to be taken.
pub(super) struct NextPart {
    pub device: usize,
    pub rows: Vec<(Row, u64)>,
    bytes: u64,
}

/// The rows that a base of these GPUs is to have.
pub(super) fn parts(client: &mut Client, devices: &[usize]) -> rekindle_device::Result<Vec<NextPart>> {
    let part = |device: &usize| {
        client.bind(*device)?;
        let (rows, bytes) = rows::rows(client, *device)?;
        Ok(NextPart { device: *device, rows, bytes })
    };
    devices.iter().map(part).collect()
}

impl Base {
    pub(super) fn image(&self) -> Option<&PathBuf> {
        self.about.first().map(|about| &about.image)
    }

    /// Sees to memory for a part. Where there is room for one base alone, the other one gives its memory if it may, and counts no
    /// more; `lapse` is called before that.
    pub(super) fn make_room(
        &mut self,
        client: &mut Client,
        part: &NextPart,
        apart: &mut AddressPool,
        other: Option<&mut Base>,
        lapse: impl FnOnce(),
    ) -> Result<(), MendObstacle> {
        let NextPart { device, bytes, .. } = *part;
        let fits = |place: &BaseMemory| place.bytes >= bytes && place.bytes / 2 <= bytes.max(4 << 20);
        if self.places.get(&device).is_some_and(fits) {
            return Ok(());
        }
        if let Some(place) = self.places.remove(&device) {
            place.close(apart);
        }
        let place = match BaseMemory::new(client, device, apart, bytes) {
            Ok(place) => place,
            Err(code) => {
                // The one that there is has to do, if it is large enough; what it holds counts no more.
                let other = other
                    .filter(|other| code == CUDA_ERROR_OUT_OF_MEMORY && other.places.contains_key(&device));
                let Some(other) = other else { return Err(MendObstacle::NoRoom) };
                lapse();
                other.about.clear();
                match other.places.remove(&device) {
                    Some(place) if fits(&place) => place,
                    place => {
                        place.into_iter().for_each(|place| place.close(apart));
                        let made = BaseMemory::new(client, device, apart, bytes);
                        made.map_err(|_| MendObstacle::NoRoom)?
                    }
                }
            }
        };
        self.places.insert(device, place);
        Ok(())
    }

    /// Copies memory there. Nothing is under way on any GPU. An error names the GPU.
    pub(super) fn take(&self, client: &mut Client, parts: &[NextPart]) -> Result<(), (usize, CuResult)> {
        let there = parts.iter().filter_map(|part| {
            let place = self.places.get(&part.device)?;
            Some(DeviceRows { device: part.device, rows: &part.rows, base: place.address })
        });
        rows::take(client, &there.collect::<Vec<_>>())
    }

    /// Enqueues that, behind what the streams of copies have.
    pub(super) fn enqueue(&self, client: &mut Client, parts: &[NextPart]) -> rekindle_device::Result<()> {
        parts.iter().try_for_each(|part| {
            let Some(place) = self.places.get(&part.device) else { return Ok(()) };
            rows::enqueue(client, &DeviceRows { device: part.device, rows: &part.rows, base: place.address })
        })
    }

    /// Makes memory what it holds.
    pub(super) fn put_back(&self, client: &mut Client) -> rekindle_device::Result<()> {
        let parts = self.about.iter().filter_map(|about| {
            let place = self.places.get(&about.device)?;
            Some(DeviceRows { device: about.device, rows: &about.rows, base: place.address })
        });
        rows::put_back(client, &parts.collect::<Vec<_>>())
    }

    /// What is to be known of each part, once it was taken.
    pub(super) fn describe(&mut self, parts: Vec<NextPart>, epoch: u64, image: &Path) {
        let gpus = parts.len();
        let describe = |NextPart { device, rows, .. }: NextPart| {
            let place = self.places.get(&device)?;
            let rows = rows.into_iter().map(|(row, _)| row).collect();
            let (bytes, on_host, image) = (place.bytes, place.is_on_host(), image.to_path_buf());
            Some(BaseDescription { epoch, gpus, device, bytes, on_host, rows, image })
        };
        self.about = parts.into_iter().filter_map(describe).collect();
    }

    /// Bytes of what it holds.
    pub(super) fn bytes(&self) -> u64 {
        self.about.iter().flat_map(|about| &about.rows).map(Row::bytes).sum()
    }

    pub(super) fn is_on_host(&self) -> bool {
        self.about.iter().any(|about| about.on_host)
    }
}
