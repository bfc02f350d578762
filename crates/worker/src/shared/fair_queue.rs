//! Whose turn it is in one direction of the link.
//!
//! Turns go by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): each flow has a tag, how much it has had
//! in virtual time, which passes the slower for it the larger its weight is, and the one with the least is next. One that
//! begins has the tag of whoever is served now.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use rekindle_device::Event;
use rekindle_protocol::worker::DEFAULT_LINK_WEIGHT;

use super::settings::Settings;

/// Of so many pieces at least one is of others than the programs, if they wait.
const TURNS: u32 = 16;
/// The weight by which virtual time passes as bytes do.
const EVEN: u64 = DEFAULT_LINK_WEIGHT as u64;

/// Whose copies go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum CopyRank {
    /// What the program copies.
    #[default]
    Program,
    /// What is copied for it: restores, declared data, checkpoints.
    Background,
}

pub(super) type ClientId = u64;

/// Who asks, and for what.
pub(super) type Key = (ClientId, CopyRank);

/// One direction.
#[derive(Default)]
pub(super) struct FairQueue {
    pub under_way: VecDeque<InFlight>,
    /// Since when the first of them is the first.
    pub first_since: Option<Instant>,
    /// Bytes under way, by rank.
    pub bytes: [u64; 2],
    pub flows: HashMap<Key, Flow>,
    /// Programs of other contexts of the GPU copy: what is not of programs waits here.
    pub gives_way: bool,
    /// Programs of other contexts of the GPU wait for the link: none of this one's begins a piece beyond this virtual time.
    pub limit: Option<u64>,
    /// Virtual time.
    now: u64,
    /// Pieces of programs since the last one of others.
    since_others: u32,
}

pub(super) struct InFlight {
    pub event: Event,
    pub bytes: u64,
    pub rank: CopyRank,
    pub since: Instant,
}

#[derive(Default)]
pub(super) struct Flow {
    tag: u64,
    pub waits: bool,
}

impl FairQueue {
    pub fn flow(&mut self, key: Key) -> &mut Flow {
        self.flows.entry(key).or_default()
    }

    /// Whether any flow of the rank waits.
    pub fn waits(&self, rank: CopyRank) -> bool {
        self.flows.iter().any(|((_, other), flow)| flow.waits && *other == rank)
    }

    /// The virtual time of whoever was served last.
    pub fn time(&self) -> u64 {
        self.now
    }

    /// Where virtual time is further in other contexts, it is here too.
    pub fn begin_at(&mut self, time: u64) {
        self.now = self.now.max(time);
    }

    /// The virtual time of the program that is next of those that wait.
    pub fn least(&self) -> Option<u64> {
        let waiting = self.flows.iter().filter(|((_, rank), flow)| flow.waits && *rank == CopyRank::Program);
        waiting.map(|(_, flow)| flow.tag.max(self.now)).min()
    }

    /// Whether programs of other contexts are to catch up before a program's piece of this virtual time.
    fn is_ahead(&self, tag: u64) -> bool {
        self.limit.is_some_and(|limit| tag > limit)
    }

    /// The rank whose turn it is, if both ask.
    fn next_rank(&self) -> CopyRank {
        if self.since_others >= TURNS - 1 { CopyRank::Background } else { CopyRank::Program }
    }

    fn room(&self, rank: CopyRank, settings: &Settings) -> u64 {
        let most = match rank {
            CopyRank::Program => settings.window,
            CopyRank::Background => settings.window / 2,
        };
        most.saturating_sub(self.bytes[rank as usize])
    }

    /// The bytes that this flow, of a client of this weight, may issue now, taken from the window; none if it is not its turn
    /// or there is no room.
    pub fn grant(&mut self, key: Key, weight: u32, left: u64, settings: &Settings) -> Option<u64> {
        let rank = key.1;
        let another_first = match (self.next_rank(), rank) {
            (_, CopyRank::Background) if self.gives_way => true,
            (CopyRank::Program, CopyRank::Background) => self.waits(CopyRank::Program),
            (CopyRank::Background, CopyRank::Program) => {
                !self.gives_way
                    && self.waits(CopyRank::Background)
                    && self.room(CopyRank::Background, settings) >= settings.piece
            }
            _ => false,
        };
        if another_first {
            return None;
        }
        let tag = self.flow(key).tag.max(self.now);
        let rivals: Vec<u64> = self.rivals(key).map(|flow| flow.tag.max(self.now)).collect();
        if rivals.iter().any(|rival| *rival < tag) || (rank == CopyRank::Program && self.is_ahead(tag)) {
            return None;
        }
        let room = self.room(rank, settings);
        if room < left.min(settings.piece) {
            return None;
        }
        let is_alone = rivals.is_empty() && self.limit.is_none();
        let most = if is_alone { settings.window / 2 } else { settings.piece };
        let bytes = left.min(most).min(room);
        // Another copy of it may still wait: its lanes are looked at all the same.
        self.flow(key).tag = tag + bytes * EVEN / u64::from(weight);
        self.now = tag;
        self.bytes[rank as usize] += bytes;
        self.since_others = if rank == CopyRank::Program { self.since_others.saturating_add(1) } else { 0 };
        Some(bytes)
    }

    /// Others of the rank that wait.
    fn rivals(&self, key: Key) -> impl Iterator<Item = &Flow> {
        let rival = move |other: &Key| *other != key && other.1 == key.1;
        self.flows.iter().filter(move |(other, flow)| flow.waits && rival(other)).map(|(_, flow)| flow)
    }

    /// Who is next of those that wait, if there is room for a piece.
    pub fn next(&self, settings: &Settings) -> Option<Key> {
        let may = |rank: CopyRank| {
            let is_held = match rank {
                CopyRank::Background => self.gives_way,
                CopyRank::Program => self.least().is_some_and(|tag| self.is_ahead(tag)),
            };
            !is_held && self.waits(rank) && self.room(rank, settings) >= settings.piece
        };
        let rank = match self.next_rank() {
            CopyRank::Background if may(CopyRank::Background) => CopyRank::Background,
            _ if self.waits(CopyRank::Program) => Some(CopyRank::Program).filter(|rank| may(*rank))?,
            _ => Some(CopyRank::Background).filter(|rank| may(*rank))?,
        };
        let waiting = self.flows.iter().filter(|((_, other), flow)| flow.waits && *other == rank);
        waiting.min_by_key(|(key, flow)| (flow.tag.max(self.now), key.0)).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: Settings = Settings { piece: 2, window: 8 };
    const LARGE: Settings = Settings { piece: 2 << 20, window: 8 << 20 };
    const WEIGHT: u32 = DEFAULT_LINK_WEIGHT;
    const PLENTY: u64 = 1000;

    /// The clients that are served when all of these copy without end, one piece after the other.
    fn served(way: &mut FairQueue, asking: &[Key], count: usize) -> Vec<ClientId> {
        served_by_weight(way, asking, (|_| WEIGHT, &SETTINGS), count)
    }

    fn served_by_weight(
        way: &mut FairQueue,
        asking: &[Key],
        (weight, settings): (impl Fn(ClientId) -> u32, &Settings),
        count: usize,
    ) -> Vec<ClientId> {
        asking.iter().for_each(|key| way.flow(*key).waits = true);
        let mut served = Vec::new();
        while served.len() < count {
            let next = way.next(settings).unwrap();
            let bytes = way.grant(next, weight(next.0), 1000 * settings.piece, settings).unwrap();
            way.bytes[next.1 as usize] -= bytes;
            served.push(next.0);
        }
        served
    }

    #[test]
    fn programs_that_copy_take_turns_and_who_comes_is_next() {
        let mut way = FairQueue::default();
        let (a, b, c) = ((1, CopyRank::Program), (2, CopyRank::Program), (3, CopyRank::Program));
        assert_eq!(served(&mut way, &[a, b], 6), [1, 2, 1, 2, 1, 2]);
        assert_eq!(served(&mut way, &[a, b, c], 4)[0], 3);
        // Who asks for nothing saves nothing up.
        way.flow(b).waits = false;
        served(&mut way, &[a, c], 20);
        let turns = served(&mut way, &[a, b, c], 10);
        let counts = [1, 2, 3].map(|id| turns.iter().filter(|one| **one == id).count());
        assert_eq!((turns[0], counts), (2, [3, 4, 3]), "{turns:?}");
    }

    proptest! {
        #[test]
        fn who_copies_has_bytes_by_weight_and_who_comes_is_next(
            weights in prop::collection::vec(1u32..=100, 2..6),
            before in 0usize..200,
        ) {
            let mut way = FairQueue::default();
            let keys: Vec<Key> = (1..=weights.len() as u64).map(|id| (id, CopyRank::Program)).collect();
            let weight = |id: ClientId| weights[id as usize - 1];
            let sum: u32 = weights.iter().sum();
            // All but the last one copy, then it too.
            let others = &keys[..keys.len() - 1];
            served_by_weight(&mut way, others, (weight, &LARGE), before);
            let count = 40 * sum as usize;
            let turns = served_by_weight(&mut way, &keys, (weight, &LARGE), count);
            let last = keys.len() as u64;
            prop_assert!(turns[..keys.len()].contains(&last), "{turns:?}");
            for (id, _) in &keys {
                let had = turns.iter().filter(|one| *one == id).count() as f64;
                let due = count as f64 * f64::from(weight(*id)) / f64::from(sum);
                // What each has had at the begin, and is about to have at the end.
                prop_assert!((had - due).abs() <= 3.0 + due * 0.05, "{id} had {had} of {due}: {weights:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn programs_of_all_contexts_have_bytes_by_weight_where_none_goes_further_than_a_window(
            contexts in prop::collection::vec(prop::collection::vec(1u32..=40, 1..5), 2..4),
            alone in 0usize..200,
        ) {
            let keys = |weights: &[u32]| -> Vec<Key> {
                (1..=weights.len() as u64).map(|id| (id, CopyRank::Program)).collect()
            };
            let mut queues: Vec<FairQueue> = contexts.iter().map(|_| FairQueue::default()).collect();
            // The first one has copied before the others came.
            let weight = |id: ClientId| contexts[0][id as usize - 1];
            served_by_weight(&mut queues[0], &keys(&contexts[0]), (weight, &LARGE), alone);
            let first = queues[0].least().unwrap();
            for (queue, weights) in queues.iter_mut().zip(&contexts).skip(1) {
                queue.begin_at(first);
                keys(weights).iter().for_each(|key| queue.flow(*key).waits = true);
            }
            // The GPU goes from context to context.
            let mut had: Vec<Vec<f64>> = contexts.iter().map(|weights| vec![0.0; weights.len()]).collect();
            for turn in 0..20_000 {
                let at = turn % queues.len();
                let others = queues.iter().enumerate().filter(|(other, _)| *other != at);
                let least = others.filter_map(|(_, queue)| queue.least()).min().unwrap();
                let queue = &mut queues[at];
                queue.limit = Some(least + LARGE.window);
                let Some(next) = queue.next(&LARGE) else { continue };
                let weight = contexts[at][next.0 as usize - 1];
                let bytes = queue.grant(next, weight, PLENTY << 20, &LARGE).unwrap();
                queue.bytes[next.1 as usize] -= bytes;
                had[at][next.0 as usize - 1] += bytes as f64;
            }
            let by_weight = |(had, weights): (&Vec<f64>, &Vec<u32>)| -> Vec<f64> {
                had.iter().zip(weights).map(|(had, weight)| had / f64::from(*weight)).collect()
            };
            let times: Vec<f64> = had.iter().zip(&contexts).flat_map(by_weight).collect();
            let [least, most] = [times.iter().copied().fold(f64::MAX, f64::min), times.iter().copied().fold(0.0, f64::max)];
            // A window, and a piece of one of the weight 1.
            let slack = 2.0 * (LARGE.window + 10 * LARGE.piece) as f64 / 10.0;
            prop_assert!(most - least <= slack + 0.05 * most, "{contexts:?}: {had:?}");
        }
    }

    #[test]
    fn who_is_ahead_of_other_contexts_waits_for_them_and_cuts_its_copies_as_beside_a_rival() {
        let mut way = FairQueue::default();
        let key = (1, CopyRank::Program);
        assert_eq!(way.grant(key, WEIGHT, PLENTY, &SETTINGS), Some(SETTINGS.window / 2));
        way.bytes = [0; 2];
        way.limit = Some(SETTINGS.window / 2);
        assert_eq!(way.grant(key, WEIGHT, PLENTY, &SETTINGS), Some(SETTINGS.piece));
        way.bytes = [0; 2];
        way.flow(key).waits = true;
        assert_eq!((way.grant(key, WEIGHT, PLENTY, &SETTINGS), way.next(&SETTINGS)), (None, None));
        assert_eq!(way.least(), Some(SETTINGS.window / 2 + SETTINGS.piece));
        // What is not of programs goes by other rules.
        assert_eq!(way.grant((2, CopyRank::Background), WEIGHT, 1, &SETTINGS), None);
        way.limit = None;
        assert_eq!(way.next(&SETTINGS), Some(key));
    }

    #[test]
    fn what_is_copied_for_programs_has_a_sixteenth_beside_their_own_copies_and_all_else_without() {
        let mut way = FairQueue::default();
        let (program, restore) = ((1, CopyRank::Program), (2, CopyRank::Background));
        let turns = served(&mut way, &[program, restore], 64);
        assert_eq!(turns.iter().filter(|one| **one == 2).count(), 4);
        assert_eq!(way.grant(restore, WEIGHT, PLENTY, &SETTINGS), None);
        way.flow(program).waits = false;
        assert_eq!(served(&mut way, &[restore], 8), [2; 8]);
    }

    #[test]
    fn what_is_copied_for_programs_waits_while_it_gives_way_and_holds_up_no_program() {
        let mut way = FairQueue::default();
        let (program, restore) = ((1, CopyRank::Program), (2, CopyRank::Background));
        way.gives_way = true;
        assert_eq!(way.grant(restore, WEIGHT, PLENTY, &SETTINGS), None);
        assert_eq!(served(&mut way, &[program, restore], 40), [1; 40]);
        way.flow(program).waits = false;
        assert_eq!(way.next(&SETTINGS), None);
        way.gives_way = false;
        assert_eq!(served(&mut way, &[restore], 2), [2; 2]);
    }

    #[test]
    fn no_more_is_under_way_than_the_window_has_room_for() {
        let mut way = FairQueue::default();
        let (a, b) = ((1, CopyRank::Program), (2, CopyRank::Program));
        assert_eq!(way.grant(a, WEIGHT, PLENTY, &SETTINGS), Some(4));
        way.flow(b).waits = true;
        assert_eq!(way.grant(b, WEIGHT, PLENTY, &SETTINGS), Some(4));
        assert_eq!((way.grant(a, WEIGHT, PLENTY, &SETTINGS), way.next(&SETTINGS)), (None, None));
        way.bytes[CopyRank::Program as usize] -= 1;
        assert_eq!(way.grant(b, WEIGHT, 1, &SETTINGS), Some(1));
        // Others have half a window of their own.
        way.flow(b).waits = false;
        let restore = (3, CopyRank::Background);
        assert_eq!(way.grant(restore, WEIGHT, PLENTY, &SETTINGS), Some(4));
        assert_eq!(way.grant(restore, WEIGHT, PLENTY, &SETTINGS), None);
    }
}
