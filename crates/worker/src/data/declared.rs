//! Data that is there: programs of one owner have an object once on each GPU, in memory that none of them can write to.
//!
//! ```text
//!   first       copied ─▶ mapped read-only ── Filled + memory ─▶ memory daemon ◀─ holds a descriptor
//!   further     mapped read-only ◀──────────── OnGpu + memory ───────┘
//!   from image  Join ─▶ OnGpu: mapped, not loaded │ Fill: loaded from the image, then as the first
//! ```
//!
//! The memory goes with the last program that has it mapped. Each keeps a connection for as long as it has.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rekindle_device::uuid_text;
use rekindle_protocol::data::{Answer, DataRequest, DataRequestHead, Filled, Sharer, Version};
use rekindle_protocol::frame;
use rekindle_protocol::worker::DeclaredData;

use super::{Data, connect};
use crate::client::Client;
use crate::memory::Hold;

/// How long a program that is restored waits for one that is loading the same data.
const PATIENCE: Duration = Duration::from_secs(5);

/// One object in memory of the GPU.
pub(crate) struct Declared {
    pub device: usize,
    pub url: String,
    pub version: Version,
    pub bytes: u64,
    link: Link,
}

/// What the memory daemon has to do with it.
enum Link {
    /// Nothing: the memory is this program's alone.
    None,
    /// It waits for the memory, to give it to others.
    Filling(UnixStream),
    /// It has the memory, which is this program's, for as long as this is open.
    Given { _open: UnixStream },
    /// The memory is another program's.
    Taken { _open: Option<UnixStream>, memory: OwnedFd },
}

impl Declared {
    pub(crate) fn new(device: usize, url: &str, version: Version, bytes: u64) -> Declared {
        Declared { device, url: url.to_string(), version, bytes, link: Link::None }
    }

    pub(crate) fn filling(self, connection: UnixStream) -> Declared {
        Declared { link: Link::Filling(connection), ..self }
    }

    pub(crate) fn held(self, connection: impl Into<Option<UnixStream>>, memory: OwnedFd) -> Declared {
        Declared { link: Link::Taken { _open: connection.into(), memory }, ..self }
    }

    /// The memory, if it is another program's.
    pub(crate) fn memory(&self) -> Option<&OwnedFd> {
        match &self.link {
            Link::Taken { memory, .. } => Some(memory),
            _ => None,
        }
    }
}

impl Data {
    pub(crate) fn declared(&self) -> impl Iterator<Item = (u64, &Declared)> {
        self.declared.iter().map(|(address, declared)| (*address, declared))
    }

    pub(crate) fn declared_at(&self, address: u64) -> Option<&Declared> {
        self.declared.get(&address)
    }

    pub(crate) fn note_declared(&mut self, address: u64, declared: Declared) {
        self.declared.insert(address, declared);
    }

    /// The program has freed it.
    pub(crate) fn forget_declared(&mut self, address: u64) {
        self.declared.remove(&address);
        if let Some(written) = self.written.remove(&address) {
            written.stop();
        }
    }
}

impl Client {
    /// With whom its data on this device is shared; none: with nobody.
    pub(crate) fn sharer(&self, device: usize) -> Option<Sharer> {
        let gpu = uuid_text(&self.context(device).ok()?.device.info().uuid);
        Some(Sharer { owner: self.exchange.owner.clone()?, gpu })
    }

    /// What it has of declared data, for the daemon.
    pub(crate) fn declared_data(&self) -> Vec<DeclaredData> {
        let row = |(address, declared): (u64, &Declared)| {
            let buffer = self.context(declared.device).ok()?.heap.buffers().get(&address)?;
            let hold = buffer.declared?;
            Some(DeclaredData {
                url: declared.url.clone(),
                version: Some(declared.version.clone()),
                bytes: buffer.bytes,
                is_shared: hold == Hold::Others,
            })
        };
        let coming = self.data.loads.iter().filter(|load| load.is_loading()).map(|load| DeclaredData {
            url: load.url.clone(),
            version: None,
            bytes: load.room,
            is_shared: false,
        });
        self.data.declared().filter_map(row).chain(coming).collect()
    }

    /// All of what an image had at this address is there: it is not written to any more.
    pub(crate) fn declare(&mut self, address: u64) {
        let Some(declared) = self.data.declared.get(&address) else { return };
        let device = declared.device;
        let done = self.bind(device).and_then(|()| match self.heap(device)? {
            heap if heap.buffers().get(&address).is_some_and(|buffer| buffer.declared.is_none()) => {
                heap.declare(address)
            }
            _ => Ok(()),
        });
        match done {
            Ok(()) => self.offer_declared(address),
            Err(code) => {
                log::warn!("declared data can be written to, and is not shared: {code}");
                self.data.declared.remove(&address);
            }
        }
    }

    /// As [`Client::declare`], for all.
    pub(crate) fn declare_all(&mut self) {
        let addresses: Vec<u64> = self.data.declared.keys().copied().collect();
        addresses.into_iter().for_each(|address| self.declare(address));
    }

    /// Gives the memory to others who want the same.
    pub(super) fn offer_declared(&mut self, address: u64) {
        let Some(declared) = self.data.declared.get_mut(&address) else { return };
        let device = declared.device;
        let connection = match std::mem::replace(&mut declared.link, Link::None) {
            Link::Filling(connection) => connection,
            other => {
                declared.link = other;
                return;
            }
        };
        if self.exchange.owner.is_none() {
            return;
        }
        let given = self.heap(device).and_then(|heap| heap.descriptor(address));
        let sent = given.map_err(|code| code.to_string()).and_then(|(memory, room)| {
            frame::send(&connection, &Filled { room }, &[memory.as_fd()]).map_err(|error| error.to_string())
        });
        match (sent, self.data.declared.get_mut(&address)) {
            (Ok(()), Some(declared)) => declared.link = Link::Given { _open: connection },
            (Ok(()), None) => {}
            (Err(error), _) => log::warn!("declared data is not shared with other programs: {error}"),
        }
    }
}

/// What becomes of data that comes back with an image.
pub(crate) enum Joined {
    /// Its memory is there.
    There(Option<UnixStream>, OwnedFd, u64),
    /// It is to be loaded; with a connection it is given to others then.
    Load(Option<UnixStream>),
}

/// Asks for memory that holds an object. `own` is memory that the program has kept, of so many bytes.
pub(crate) fn join(
    sharer: Option<Sharer>,
    url: &str,
    version: &Version,
    own: Option<(OwnedFd, u64)>,
) -> Joined {
    let asked = sharer.map(|sharer| ask(sharer, url, version));
    let asked = asked.and_then(|asked| {
        asked.inspect_err(|error| log::info!("{url} is not shared with other programs: {error}")).ok()
    });
    match (own, asked) {
        (None, Some((Answer::OnGpu { room, .. }, Some(memory), connection))) => {
            Joined::There(Some(connection), memory, room)
        }
        (None, Some((Answer::Fill {}, _, connection))) => Joined::Load(Some(connection)),
        (None, _) => Joined::Load(None),
        (Some((memory, room)), Some((Answer::Fill {}, _, connection))) => {
            let given = frame::send(&connection, &Filled { room }, &[memory.as_fd()]);
            Joined::There(given.ok().map(|()| connection), memory, room)
        }
        (Some((memory, room)), _) => Joined::There(None, memory, room),
    }
}

fn ask(
    sharer: Sharer,
    url: &str,
    version: &Version,
) -> Result<(Answer, Option<OwnedFd>, UnixStream), frame::FrameError> {
    let stream = connect()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = DataRequest::Join { url: url.to_string(), version: version.clone(), sharer };
    frame::send(&stream, &DataRequestHead::new(request), &[])?;
    let (answer, memories) = frame::receive(&stream)?;
    stream.set_read_timeout(None)?;
    Ok((answer, memories.into_iter().next(), stream))
}
