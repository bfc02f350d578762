//! Arrays that functions hand on to each other: which there are, whose they are, and where they lie.
//!
//! ```text
//!   Put ─▶ on a GPU ──room is needed there, nobody has it mapped──▶ on another GPU, else on the host
//!            ▲  └── mapped by takers, which hold it ──┐  └── Get ── copied back ──▶ on a GPU
//!            └──────────────────────────────────────┘      Drop, uses, expiry: gone once nobody holds it
//! ```
//!
//! This process has descriptors of the memory alone, which keep it. What needs a GPU is done by the worker that asks, and is
//! undone if that goes away ([`conversation`]). All of it ends with this process; what takers have mapped stays theirs.

mod conversation;
mod elsewhere;
mod item;
mod lend;
mod moves;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::exchange::{Count, Gpu, MoveCounts, Put};

use item::{ArrayLocation, Item};

pub use conversation::serve;
pub use elsewhere::Node;

/// The most bytes of all arrays together.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLimits {
    /// On each GPU.
    pub gpu: u64,
    /// In memory of the host.
    pub host: u64,
}

#[derive(Default)]
struct ExchangeState {
    items: HashMap<String, Item>,
    /// Bytes that were promised, by GPU, and of the host.
    gpu_reserved: HashMap<String, u64>,
    host_reserved: u64,
    /// How often something was used.
    used: u64,
    /// What is on its way from other nodes.
    coming: HashSet<String>,
    moves: MoveCounts,
    /// The GPUs that programs with arrays have, by UUID.
    gpus: HashMap<String, Gpu>,
    /// When an array could not be moved from the first GPU to the second.
    avoided: HashMap<(String, String), Instant>,
    /// Arrays that were over last.
    over: VecDeque<String>,
}

/// How many arrays that are over are remembered, for givers that ask soon.
const REMEMBERED: usize = 1024;

impl ExchangeState {
    fn remember(&mut self, over: String) {
        self.over.push_front(over);
        self.over.truncate(REMEMBERED);
    }
}

pub struct Exchange {
    most: ExchangeLimits,
    node: Node,
    known: Mutex<ExchangeState>,
    changed: Condvar,
}

/// Somebody has an array mapped, or copies from it.
pub struct Holder {
    exchange: Arc<Exchange>,
    id: String,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.exchange.change(&self.id, |item| {
            item.holders -= 1;
            item.since = Instant::now();
        });
    }
}

/// What a taker finds.
pub enum Found {
    /// On this GPU.
    Gpu { gpu: Gpu, memory: OwnedFd, name: Option<String>, bytes: u64, room: u64, holder: Holder },
    /// On the host: nobody else comes to it for as long as this is there.
    Host(moves::Return),
}

impl Exchange {
    /// With a thread that drops what has expired.
    pub fn begin(most: ExchangeLimits, node: Node) -> std::io::Result<Arc<Exchange>> {
        let exchange = Exchange::new(most, node);
        let own = exchange.clone();
        std::thread::Builder::new().name("exchange".into()).spawn(move || own.expire())?;
        Ok(exchange)
    }

    fn new(most: ExchangeLimits, node: Node) -> Arc<Exchange> {
        Arc::new(Exchange { most, node, known: Mutex::default(), changed: Condvar::new() })
    }

    fn known(&self) -> MutexGuard<'_, ExchangeState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, known: MutexGuard<'a, ExchangeState>) -> MutexGuard<'a, ExchangeState> {
        self.changed.wait(known).unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes an array that is there, which goes if that was its end.
    fn change(&self, id: &str, change: impl FnOnce(&mut Item)) {
        let mut known = self.known();
        let Some(item) = known.items.get_mut(id) else { return };
        change(item);
        let gone = if item.is_over() { known.items.remove(id) } else { None };
        if gone.is_some() {
            known.remember(id.to_string());
        }
        drop(known);
        self.changed.notify_all();
        drop(gone);
    }

    /// One of these arrays that nobody has or gets any more.
    fn over(&self, before: &[String]) -> Option<String> {
        let known = self.known();
        before.iter().find(|id| !known.items.contains_key(*id) && known.over.contains(id)).cloned()
    }

    /// Keeps an array that room was reserved for, and gives its name. Its memory is called so too if it has no name.
    fn keep(
        &self,
        put: &Put,
        (memory, name): (OwnedFd, Option<String>),
        room: room::GpuRoom,
    ) -> std::io::Result<String> {
        let id = random(&self.node.name)?;
        let name = name.unwrap_or_else(|| id.clone());
        let mut known = self.known();
        known.used += 1;
        let order = known.used;
        known.items.insert(id.clone(), Item::new(put, memory, name, order));
        drop(known);
        drop(room);
        self.changed.notify_all();
        Ok(id)
    }

    /// Finds an array; waits while somebody moves it.
    fn get(self: &Arc<Exchange>, owner: &str, id: &str) -> Result<Found, Problem> {
        let mut known = self.known();
        loop {
            known.used += 1;
            let order = known.used;
            let item = item::find(&mut known.items, owner, id)?;
            if item.moving {
                known = self.wait(known);
                continue;
            }
            (item.order, item.since) = (order, Instant::now());
            let (bytes, room) = (item.bytes, item.room);
            return match &item.location {
                ArrayLocation::Gpu { gpu, memory, name } => {
                    let (gpu, memory, name) = (gpu.clone(), duplicate(memory)?, name.clone());
                    item.holders += 1;
                    let holder = Holder { exchange: self.clone(), id: id.to_string() };
                    Ok(Found::Gpu { gpu, memory, name, bytes, room, holder })
                }
                ArrayLocation::Host { memory } => {
                    let memory = duplicate(memory)?;
                    item.moving = true;
                    Ok(Found::Host(moves::Return::new(self.clone(), id, memory, (bytes, room))))
                }
            };
        }
    }

    /// Somebody needs it no more.
    fn drop_item(&self, owner: &str, id: &str, use_only: bool) -> Result<(), Problem> {
        item::find(&mut self.known().items, owner, id)?;
        self.change(id, |item| item.let_go(use_only));
        Ok(())
    }

    /// Drops what has expired, for as long as this process lives.
    fn expire(&self) {
        let mut known = self.known();
        loop {
            let now = Instant::now();
            let gone: Vec<(String, Item)> =
                known.items.extract_if(|_, item| item.left(now) == Some(Duration::ZERO)).collect();
            gone.iter().for_each(|(id, _)| known.remember(id.clone()));
            if !gone.is_empty() {
                drop(known);
                log::info!("dropped {} arrays that had expired", gone.len());
                drop(gone);
                self.changed.notify_all();
                known = self.known();
                continue;
            }
            known = match known.items.values().filter_map(|item| item.left(now)).min() {
                None => self.wait(known),
                Some(left) => {
                    self.changed.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The GPU where most bytes of these lie.
    fn lie(&self, ids: &[String]) -> Option<Gpu> {
        let known = self.known();
        let mut gpus: HashMap<&str, (u64, &Gpu)> = HashMap::new();
        for item in ids.iter().filter_map(|id| known.items.get(id)) {
            if let ArrayLocation::Gpu { gpu, .. } = &item.location {
                gpus.entry(&gpu.uuid).or_insert((0, gpu)).0 += item.bytes;
            }
        }
        let most = gpus.into_values().max_by_key(|(bytes, gpu)| (*bytes, &gpu.uuid));
        most.map(|(_, gpu)| gpu.clone())
    }

    /// How much each owner has, by name.
    fn counts(&self) -> Vec<Count> {
        let mut counts: Vec<Count> = Vec::new();
        for item in self.known().items.values() {
            let at = counts.binary_search_by(|count| count.owner.cmp(&item.owner)).unwrap_or_else(|at| {
                counts.insert(at, Count { owner: item.owner.clone(), ..Count::default() });
                at
            });
            let count = &mut counts[at];
            count.arrays += 1;
            count.held += u64::from(item.holders > 0);
            match item.location {
                ArrayLocation::Gpu { .. } => count.gpu_bytes += item.room,
                ArrayLocation::Host { .. } => count.host_bytes += item.bytes,
            }
        }
        counts
    }
}

fn duplicate(memory: &OwnedFd) -> Result<OwnedFd, Problem> {
    memory.try_clone().map_err(|error| {
        let sentence = format!("the memory daemon has no descriptor left for an array ({error}); drop some");
        Problem::new(ProblemKind::Unavailable, sentence)
    })
}

/// A name of 32 digits that begins so and that nobody else has, in a later process neither.
fn random(beginning: &str) -> std::io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let digits = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Ok(beginning.chars().chain(digits.chars()).take(digits.len()).collect())
}
