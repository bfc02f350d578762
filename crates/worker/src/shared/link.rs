//! Who may use the link between host and GPU, in each direction: the scheduler of a context's copies.
//!
//! ```text
//!   lanes of a client ─ ask ─▶ turn and room? ─ bytes ─▶ the piece is issued, an event behind it ─▶ under way
//!                        └ no: the client waits ◀──────────── room again: the link's thread ◀─────────┘
//! ```
//!
//! Turns go by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each flow has a tag, how much it has had
//! in virtual time, and the one with the least is next. One that begins has the tag of whoever is served now.
//!
//! Lanes are locked before the link, never after it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rekindle_device::{Device, Event, Result};

use super::lanes::Lanes;
use super::piece::Way;
use super::settings::Settings;

/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const UNTIMED: u32 = 2;
/// Of so many pieces at least one is of others than the programs, if they wait.
const TURNS: u32 = 16;
/// How long the thread rests between two looks: at first, and when nothing happens.
const FIRST_NAP: Duration = Duration::from_micros(20);
const LAST_NAP: Duration = Duration::from_micros(500);
/// A piece that is behind others for so long may be behind other work of the driver: those that overtook it count no more.
const OVERTAKEN: Duration = Duration::from_millis(2);
/// One that is first for so long does not wait for the link.
const STUCK: Duration = Duration::from_secs(1);

/// Whose copies go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Rank {
    /// What the program copies.
    #[default]
    Program,
    /// What is copied for it: restores, declared data, checkpoints.
    Background,
}

pub(super) type ClientId = u64;

pub(crate) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<dyn Device>,
    settings: Settings,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    ways: [WayState; 2],
    clients: HashMap<ClientId, Weak<Lanes>>,
    last_client: ClientId,
    /// Clients with a copy behind work that is not done.
    watched: HashSet<ClientId>,
    /// Events that are not in use.
    events: Vec<Event>,
    over: bool,
}

#[derive(Default)]
struct WayState {
    under_way: VecDeque<UnderWay>,
    /// Since when the first of them is the first.
    first_since: Option<Instant>,
    /// Bytes under way, by rank.
    bytes: [u64; 2],
    flows: HashMap<(ClientId, Rank), Flow>,
    /// Virtual time.
    now: u64,
    /// Pieces of programs since the last one of others.
    since_others: u32,
}

struct UnderWay {
    event: Event,
    bytes: u64,
    rank: Rank,
}

#[derive(Default)]
struct Flow {
    tag: u64,
    waits: bool,
}

impl Link {
    /// The scheduler of a device's context; none where the settings are `off`.
    pub(super) fn new(
        device: Arc<dyn Device>,
        settings: Option<Settings>,
    ) -> std::io::Result<Option<Arc<Link>>> {
        let Some(settings) = settings else { return Ok(None) };
        let shared = Arc::new(Shared { device, settings, state: Mutex::default(), wake: Condvar::new() });
        let thread = shared.clone();
        std::thread::Builder::new().name("link".into()).spawn(move || thread.run())?;
        Ok(Some(Arc::new(Link { shared })))
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(super) fn join(&self, lanes: Weak<Lanes>) -> ClientId {
        let mut state = self.shared.state();
        state.last_client += 1;
        let id = state.last_client;
        state.clients.insert(id, lanes);
        id
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
    pub(super) fn ask(&self, way: Way, client: ClientId, rank: Rank, left: u64) -> Option<u64> {
        let mut state = self.shared.state();
        self.shared.reap(&mut state, way);
        let key = (client, rank);
        let way = &mut state.ways[way as usize];
        let granted = way.grant(key, left, &self.shared.settings);
        if granted.is_none() {
            way.flow(key).waits = true;
            self.shared.wake.notify_one();
        }
        granted
    }

    /// What was granted is under way, up to this event; without one it is not.
    pub(super) fn sent(&self, way: Way, rank: Rank, bytes: u64, event: Option<Event>) {
        let mut state = self.shared.state();
        let way = &mut state.ways[way as usize];
        match event {
            Some(event) => {
                if way.under_way.is_empty() {
                    way.first_since = Some(Instant::now());
                }
                way.under_way.push_back(UnderWay { event, bytes, rank });
            }
            None => way.bytes[rank as usize] -= bytes,
        }
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

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.wake.notify_one();
    }
}

impl WayState {
    fn flow(&mut self, key: (ClientId, Rank)) -> &mut Flow {
        self.flows.entry(key).or_default()
    }

    /// Whether any flow of the rank waits.
    fn waits(&self, rank: Rank) -> bool {
        self.flows.iter().any(|((_, other), flow)| flow.waits && *other == rank)
    }

    /// The rank whose turn it is, if both ask.
    fn turn(&self) -> Rank {
        if self.since_others >= TURNS - 1 { Rank::Background } else { Rank::Program }
    }

    fn room(&self, rank: Rank, settings: &Settings) -> u64 {
        let most = match rank {
            Rank::Program => settings.window,
            Rank::Background => settings.window / 2,
        };
        most.saturating_sub(self.bytes[rank as usize])
    }

    /// The bytes that this flow may issue now, taken from the window; none if it is not its turn or there is no room.
    fn grant(&mut self, key: (ClientId, Rank), left: u64, settings: &Settings) -> Option<u64> {
        let rank = key.1;
        let another_first = match (self.turn(), rank) {
            (Rank::Program, Rank::Background) => self.waits(Rank::Program),
            (Rank::Background, Rank::Program) => {
                self.waits(Rank::Background) && self.room(Rank::Background, settings) >= settings.piece
            }
            _ => false,
        };
        if another_first {
            return None;
        }
        let tag = self.flow(key).tag.max(self.now);
        let rivals: Vec<u64> = self.rivals(key).map(|flow| flow.tag.max(self.now)).collect();
        if rivals.iter().any(|rival| *rival < tag) {
            return None;
        }
        let room = self.room(rank, settings);
        if room < left.min(settings.piece) {
            return None;
        }
        let most = if rivals.is_empty() { settings.window / 2 } else { settings.piece };
        let bytes = left.min(most).min(room);
        // Another copy of it may still wait: its lanes are looked at all the same.
        self.flow(key).tag = tag + bytes;
        self.now = tag;
        self.bytes[rank as usize] += bytes;
        self.since_others = if rank == Rank::Program { self.since_others.saturating_add(1) } else { 0 };
        Some(bytes)
    }

    /// Others of the rank that wait.
    fn rivals(&self, key: (ClientId, Rank)) -> impl Iterator<Item = &Flow> {
        let rival = move |other: &(ClientId, Rank)| *other != key && other.1 == key.1;
        self.flows.iter().filter(move |(other, flow)| flow.waits && rival(other)).map(|(_, flow)| flow)
    }

    /// Who is next of those that wait, if there is room for a piece.
    fn next(&self, settings: &Settings) -> Option<(ClientId, Rank)> {
        let may = |rank: Rank| self.waits(rank) && self.room(rank, settings) >= settings.piece;
        let rank = match self.turn() {
            Rank::Background if may(Rank::Background) => Rank::Background,
            _ if self.waits(Rank::Program) => Some(Rank::Program).filter(|rank| may(*rank))?,
            _ => Some(Rank::Background).filter(|rank| may(*rank))?,
        };
        let waiting = self.flows.iter().filter(|((_, other), flow)| flow.waits && *other == rank);
        waiting.min_by_key(|(key, flow)| (flow.tag.max(self.now), key.0)).map(|(key, _)| *key)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks which pieces are done; whether one is.
    fn reap(&self, state: &mut State, way: Way) -> bool {
        let State { ways, events, .. } = state;
        let way = &mut ways[way as usize];
        let is_done = |one: &UnderWay| !matches!(self.device.event_query(one.event), Ok(false));
        let mut reaped = false;
        let mut gone = |way: &mut WayState, one: UnderWay| {
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
            if state.watched.is_empty() && !waits(&state) {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                nap = FIRST_NAP;
                continue;
            }
            let mut progress = false;
            for way in Way::ALL {
                progress |= self.reap(&mut state, way);
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
                looked.iter().filter_map(|client| state.clients.get(client)?.upgrade()).collect();
            drop(state);
            looked.iter().for_each(|lanes| progress |= lanes.pump());
            drop(looked);
            state = self.state();
            nap = if progress { FIRST_NAP } else { (nap * 3 / 2).min(LAST_NAP) };
            if !progress {
                state = self.wake.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { piece: 2, window: 8 };
    const PLENTY: u64 = 1000;

    /// The clients that are served when all of these copy without end, one piece after the other.
    fn served(way: &mut WayState, asking: &[(ClientId, Rank)], count: usize) -> Vec<ClientId> {
        asking.iter().for_each(|key| way.flow(*key).waits = true);
        let mut served = Vec::new();
        while served.len() < count {
            let next = way.next(&SETTINGS).unwrap();
            let bytes = way.grant(next, PLENTY, &SETTINGS).unwrap();
            way.bytes[next.1 as usize] -= bytes;
            served.push(next.0);
        }
        served
    }

    #[test]
    fn programs_that_copy_take_turns_and_who_comes_is_next() {
        let mut way = WayState::default();
        let (a, b, c) = ((1, Rank::Program), (2, Rank::Program), (3, Rank::Program));
        assert_eq!(served(&mut way, &[a, b], 6), [1, 2, 1, 2, 1, 2]);
        assert_eq!(served(&mut way, &[a, b, c], 4)[0], 3);
        // Who asks for nothing saves nothing up.
        way.flow(b).waits = false;
        served(&mut way, &[a, c], 20);
        let turns = served(&mut way, &[a, b, c], 10);
        let counts = [1, 2, 3].map(|id| turns.iter().filter(|one| **one == id).count());
        assert_eq!((turns[0], counts), (2, [3, 4, 3]), "{turns:?}");
    }

    #[test]
    fn what_is_copied_for_programs_has_a_sixteenth_beside_their_own_copies_and_all_else_without() {
        let mut way = WayState::default();
        let (program, restore) = ((1, Rank::Program), (2, Rank::Background));
        let turns = served(&mut way, &[program, restore], 64);
        assert_eq!(turns.iter().filter(|one| **one == 2).count(), 4);
        assert_eq!(way.grant(restore, PLENTY, &SETTINGS), None);
        way.flow(program).waits = false;
        assert_eq!(served(&mut way, &[restore], 8), [2; 8]);
    }

    #[test]
    fn no_more_is_under_way_than_the_window_has_room_for() {
        let mut way = WayState::default();
        let (a, b) = ((1, Rank::Program), (2, Rank::Program));
        assert_eq!(way.grant(a, PLENTY, &SETTINGS), Some(4));
        way.flow(b).waits = true;
        assert_eq!(way.grant(b, PLENTY, &SETTINGS), Some(4));
        assert_eq!((way.grant(a, PLENTY, &SETTINGS), way.next(&SETTINGS)), (None, None));
        way.bytes[Rank::Program as usize] -= 1;
        assert_eq!(way.grant(b, 1, &SETTINGS), Some(1));
        // Others have half a window of their own.
        way.flow(b).waits = false;
        let restore = (3, Rank::Background);
        assert_eq!(way.grant(restore, PLENTY, &SETTINGS), Some(4));
        assert_eq!(way.grant(restore, PLENTY, &SETTINGS), None);
    }
}
