//! Who may use the link between host and GPU, in each direction: the scheduler of a context's copies.
//!
//! ```text
//!   lanes of a client ─ ask ─▶ turn and room? ─ bytes ─▶ the piece is issued, an event behind it ─▶ under way
//!                        └ no: the client waits ◀──────────── room again: the link's thread ◀─────────┘
//! ```
//!
//! Lanes are locked before the link, never after it.

mod pace;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_device::{Device, Event, Result};
use rekindle_protocol::worker::DEFAULT_LINK_WEIGHT;

use super::fair_queue::{ClientId, CopyRank, FairQueue, InFlight};
use super::lanes::Lanes;
use super::overtake::{Computes, CopyKernels};
use super::piece::Direction;
use super::settings::Settings;
use crate::gpu_link::{GpuLink, now};

/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const UNTIMED: u32 = 2;
/// How long the thread rests between two looks: at first, and when nothing happens.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LAST_NAP: Duration = Duration::from_micros(500);
/// As the last one, while others are to catch up.
const PACE_NAP: Duration = Duration::from_micros(100);
/// A piece that is behind others for so long may be behind other work of the driver: those that overtook it count no more.
const OVERTAKEN: Duration = Duration::from_millis(2);
/// With such a part of a piece under way a small copy is faster past it than behind it.
const BUSY: u64 = 4;
/// One that is first for so long does not wait for the link.
const STUCK: Duration = Duration::from_secs(1);

pub(crate) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<dyn Device>,
    settings: Settings,
    /// The GPU's link, which other workers have too.
    gpu: Option<Arc<GpuLink>>,
    /// For small copies while large ones are under way.
    kernels: Option<CopyKernels>,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    ways: [FairQueue; 2],
    clients: HashMap<ClientId, Member>,
    last_client: ClientId,
    /// Clients with a copy behind work that is not done.
    watched: HashSet<ClientId>,
    /// Events that are not in use.
    events: Vec<Event>,
    /// Directions in which other workers were told that programs copy.
    told: [bool; 2],
    /// Directions in which programs of other contexts copy too, and those in which this one claims the link.
    company: [bool; 2],
    claims: [bool; 2],
    over: bool,
}

/// A client that copies over the link.
struct Member {
    lanes: Weak<Lanes>,
    computes: Arc<Computes>,
    weight: u32,
    /// Since when a copy of the program's waits for its turn, by direction, and how long such have waited.
    waits_since: [Option<Instant>; 2],
    waited: Duration,
}

impl Link {
    /// The scheduler of a device's context, which is current; none where the settings are `off`.
    pub(super) fn new(
        device: Arc<dyn Device>,
        settings: Option<Settings>,
        gpu: Option<Arc<GpuLink>>,
    ) -> std::io::Result<Option<Arc<Link>>> {
        let Some(settings) = settings else { return Ok(None) };
        let kernels = CopyKernels::open(&*device);
        let (state, wake) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { device, settings, gpu, kernels, state, wake });
        let thread = shared.clone();
        std::thread::Builder::new().name("link".into()).spawn(move || thread.run())?;
        Ok(Some(Arc::new(Link { shared })))
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(super) fn join(&self, lanes: Weak<Lanes>, computes: Arc<Computes>) -> ClientId {
        let mut state = self.shared.state();
        state.last_client += 1;
        let id = state.last_client;
        let (weight, waits_since, waited) = (DEFAULT_LINK_WEIGHT, [None; 2], Duration::ZERO);
        state.clients.insert(id, Member { lanes, computes, weight, waits_since, waited });
        id
    }

    /// From now on the client has bytes by this weight while others copy too.
    pub(super) fn set_weight(&self, client: ClientId, weight: u32) {
        if let Some(member) = self.shared.state().clients.get_mut(&client) {
            member.weight = weight;
        }
    }

    /// How long copies of the client's program have waited for their turn.
    pub(super) fn waited(&self, client: ClientId) -> Duration {
        let state = self.shared.state();
        state.clients.get(&client).map_or(Duration::ZERO, |member| {
            let now = member.waits_since.iter().flatten().map(Instant::elapsed);
            member.waited + now.sum::<Duration>()
        })
    }

    /// The client asks for nothing any more. What it has under way counts until it is done.
    pub(super) fn leave(&self, client: ClientId) {
        let mut state = self.shared.state();
        state.clients.remove(&client);
        state.watched.remove(&client);
        for way in &mut state.ways {
            way.flows.retain(|(id, _), _| *id != client);
        }
    }

    /// How many of the bytes that are left of a copy the client may issue now; none if it has to wait, and then its lanes
    /// are looked at when it is its turn. What is granted has to be [sent](Link::sent).
    pub(super) fn ask(&self, way: Direction, client: ClientId, rank: CopyRank, left: u64) -> Option<u64> {
        let mut guard = self.shared.state();
        self.shared.reap(&mut guard, way);
        let turn = rank == CopyRank::Background && self.shared.take_turn(&guard, way);
        if rank == CopyRank::Program {
            self.shared.keep_pace(&mut guard, way);
        }
        let State { ways, clients, .. } = &mut *guard;
        let member = clients.get_mut(&client)?;
        let key = (client, rank);
        let turns = &mut ways[way as usize];
        turns.gives_way &= !turn;
        let granted = turns.grant(key, member.weight, left, &self.shared.settings);
        if rank == CopyRank::Program {
            member.note(way, granted.is_none());
        }
        if granted.is_none() {
            turns.flow(key).waits = true;
            self.shared.wake.notify_one();
        }
        self.shared.tell(&mut guard, way);
        if rank == CopyRank::Program {
            self.shared.claim(&mut guard, way);
        }
        granted
    }

    /// What was granted is under way, up to this event; without one it is not.
    pub(super) fn sent(&self, way: Direction, rank: CopyRank, bytes: u64, event: Option<Event>) {
        let mut state = self.shared.state();
        let way = &mut state.ways[way as usize];
        match event {
            Some(event) => {
                if way.under_way.is_empty() {
                    way.first_since = Some(Instant::now());
                }
                way.under_way.push_back(InFlight { event, bytes, rank, since: Instant::now() });
            }
            None => way.bytes[rank as usize] -= bytes,
        }
    }

    /// What copies something small past what is under way; none where the copy engine does it as soon, or where another client's
    /// kernels would hold it up.
    pub(super) fn overtaking(&self, way: Direction, client: ClientId) -> Option<&CopyKernels> {
        let kernels = self.shared.kernels.as_ref()?;
        let state = self.shared.state();
        let busy: u64 = state.ways[way as usize].bytes.iter().sum();
        let own = &state.clients.get(&client)?.computes;
        let mut others = state.clients.iter().filter(|(other, _)| **other != client);
        let free = busy >= self.shared.settings.piece / BUSY
            && !others.any(|(_, other)| other.computes.hinders(own));
        free.then_some(kernels)
    }

    /// Has the client's lanes be looked at soon, for work of its own to be done.
    pub(super) fn watch(&self, client: ClientId) {
        self.shared.state().watched.insert(client);
        self.shared.wake.notify_one();
    }

    pub(super) fn event(&self) -> Result<Event> {
        let kept = self.shared.state().events.pop();
        kept.map_or_else(|| self.shared.device.event_create(UNTIMED), Ok)
    }

    pub(super) fn give_event(&self, event: Event) {
        self.shared.state().events.push(event);
    }
}

impl State {
    /// Whether other workers were told of copies that may be done by now.
    fn has_to_tell(&self) -> bool {
        let background = |way: &Direction| self.ways[*way as usize].bytes[CopyRank::Background as usize] > 0;
        let mut ways = Direction::ALL.iter().filter(|way| GpuLink::gives_way(**way));
        ways.any(background) || self.told.contains(&true)
    }
}

impl Member {
    /// A copy of the program's waits for its turn, or has it.
    fn note(&mut self, way: Direction, waits: bool) {
        let since = &mut self.waits_since[way as usize];
        if waits {
            since.get_or_insert_with(Instant::now);
        } else if let Some(since) = since.take() {
            self.waited += since.elapsed();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks which pieces are done; whether one is.
    fn reap(&self, state: &mut State, way: Direction) -> bool {
        let State { ways, events, .. } = state;
        let (direction, way) = (way, &mut ways[way as usize]);
        let is_done = |one: &InFlight| !matches!(self.device.event_query(one.event), Ok(false));
        let mut reaped = false;
        let mut gone = |way: &mut FairQueue, one: InFlight| {
            if let (CopyRank::Background, Some(gpu)) = (one.rank, &self.gpu) {
                gpu.note_piece_time(direction, one.since.elapsed());
            }
            way.bytes[one.rank as usize] -= one.bytes;
            events.push(one.event);
            reaped = true;
        };
        while let Some(first) = way.under_way.pop_front_if(|one| is_done(one)) {
            way.first_since = Some(Instant::now());
            gone(way, first);
        }
        let age = way.first_since.map_or(Duration::ZERO, |since| since.elapsed());
        if !way.under_way.is_empty() && age > OVERTAKEN {
            let (done, left): (VecDeque<_>, _) = way.under_way.drain(..).partition(is_done);
            way.under_way = left;
            done.into_iter().for_each(|one| gone(way, one));
        }
        if age > STUCK
            && let Some(first) = way.under_way.pop_front()
        {
            way.first_since = Some(Instant::now());
            gone(way, first);
        }
        reaped
    }

    /// Tells the other workers of the GPU what is copied here, and finds out whether their programs copy.
    fn tell(&self, state: &mut State, direction: Direction) {
        let Some(gpu) = self.gpu.as_ref().filter(|_| GpuLink::gives_way(direction)) else { return };
        let (page, way, now) = (gpu.page(), &mut state.ways[direction as usize], now());
        let [programs, background] = way.bytes;
        let has_background = background > 0 || way.waits(CopyRank::Background);
        if has_background {
            page.expect_bulk(direction, now);
        }
        page.set_bulk(direction, background, now);
        way.gives_way = has_background
            && gpu.copying_elsewhere(direction, now)
            && (background > 0 || !page.is_turn_due(direction, now, gpu.interval(direction)));
        if programs > 0 {
            page.note_copy(direction, now);
        }
        let copies = programs > 0 && page.expects_bulk(direction, now);
        let told = std::mem::replace(&mut state.told[direction as usize], copies);
        if copies || told {
            page.set_copying(direction, copies, now);
        }
        if copies != told {
            page.ring(direction);
        }
    }

    /// Whether what is not of programs may be copied although other workers' programs copy: it is the turn of such. True, too,
    /// if they do not.
    fn take_turn(&self, state: &State, way: Direction) -> bool {
        let Some(gpu) = &self.gpu else { return true };
        let (page, now) = (gpu.page(), now());
        if !gpu.copying_elsewhere(way, now) {
            return true;
        }
        let under_way = state.ways[way as usize].bytes[CopyRank::Background as usize];
        under_way + page.bulk_elsewhere(way, now) == 0 && page.take_turn(way, now, gpu.interval(way))
    }

    /// The life of the thread: issues what waits when it is its turn.
    fn run(self: Arc<Shared>) {
        // The kernel may otherwise lengthen short sleeps by 50 µs.
        // SAFETY: sets a property of this thread only.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        if let Err(code) = self.device.bind() {
            return log::error!("the link's thread cannot use the context: {code}");
        }
        let mut nap = FIRST_NAP;
        let mut state = self.state();
        loop {
            if state.over {
                return;
            }
            let waits =
                |state: &State| state.ways.iter().any(|way| way.flows.values().any(|flow| flow.waits));
            let is_quiet = !waits(&state) && !state.has_to_tell() && !state.claims.contains(&true);
            if state.watched.is_empty() && is_quiet {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                nap = FIRST_NAP;
                continue;
            }
            let mut progress = false;
            for way in Direction::ALL {
                progress |= self.reap(&mut state, way);
                self.tell(&mut state, way);
                self.claim_on(&mut state, way);
            }
            let mut looked: HashSet<ClientId> = std::mem::take(&mut state.watched);
            for way in &mut state.ways {
                if let Some(next) = way.next(&self.settings) {
                    way.flow(next).waits = false;
                    looked.insert(next.0);
                    progress = true;
                }
            }
            let looked: Vec<Arc<Lanes>> =
                looked.iter().filter_map(|client| state.clients.get(client)?.lanes.upgrade()).collect();
            drop(state);
            looked.iter().for_each(|lanes| progress |= lanes.pump());
            drop(looked);
            state = self.state();
            let is_held = state.ways.iter().any(|way| way.limit.is_some());
            let last = if is_held { PACE_NAP } else { LAST_NAP };
            nap = if progress { FIRST_NAP } else { (nap * 3 / 2).min(last) };
            if !progress {
                state = self.wake.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}
