//! Which units of a GPU each client has: arithmetic alone.

use rekindle_device::Units;

use super::PortionError;

/// The weight of a client of which none is said, where others have one.
const DEFAULT_WEIGHT: u32 = 10;

/// What a client is to have of the multiprocessors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The least, in percent.
    pub share: Option<u32>,
    /// By which it has more than that, while it has work.
    pub weight: Option<u32>,
    /// The most, in percent.
    pub most: Option<u32>,
}

impl Wish {
    /// Whether what it has depends on who has work.
    pub(super) fn is_flexible(&self) -> bool {
        self.weight.is_some() || self.most.is_some()
    }
}

/// A client, when units are given out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Candidate {
    pub wish: Wish,
    pub has_work: bool,
    /// The units that it has had; 0: the whole device.
    pub had: u64,
}

/// Whether any client has a weight or a most: then all without a fixed share are divided by weight.
pub(super) fn is_flexible(clients: &[Candidate]) -> bool {
    clients.iter().any(|client| client.wish.is_flexible())
}

/// The units of each client; 0 is the whole device. None: the client rests, and what its streams are on does not matter until
/// it has work again.
///
/// Whose share is fixed has it whether it has work or not. What is left is divided among those with work: each has its least
/// and more by weight, up to its most. If there are more of them than units, those without a least have what is left together.
pub(super) fn assign(units: Units, clients: &[Candidate]) -> Result<Vec<Option<u64>>, PortionError> {
    if clients.iter().all(|client| client.wish == Wish::default()) {
        return Ok(vec![Some(0); clients.len()]);
    }
    let leasts = leasts(units, clients)?;
    let by_weight = is_flexible(clients);
    let is_fixed = |client: &Candidate| client.wish.share.is_some() && !client.wish.is_flexible();
    let fixed: u32 =
        clients.iter().zip(&leasts).filter(|(client, _)| is_fixed(client)).map(|(_, least)| least).sum();
    let sizes: Vec<Size> = if by_weight {
        let competes = |client: &Candidate| !is_fixed(client) && client.has_work;
        let competing: Vec<Competitor> = clients
            .iter()
            .zip(&leasts)
            .filter(|(client, _)| competes(client))
            .map(|(client, least)| Competitor::new(units, &client.wish, *least))
            .collect();
        let mut divided = by_weights(units.count - fixed, &competing).into_iter();
        let size = |(client, least): (&Candidate, &u32)| match competes(client) {
            true => divided.next().unwrap_or(Size::Left),
            false if is_fixed(client) => Size::Units(*least),
            false => Size::Any,
        };
        clients.iter().zip(&leasts).map(size).collect()
    } else {
        let size = |(client, least): (&Candidate, &u32)| match client.wish.share {
            Some(_) => Size::Units(*least),
            None => Size::Left,
        };
        clients.iter().zip(&leasts).map(size).collect()
    };
    Ok(place(units, clients, &sizes))
}

/// How much of the units a client is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Units(u32),
    /// All that nobody else has, with others of these.
    Left,
    /// Whatever it has had.
    Any,
}

/// One of those that units are divided among by weight.
struct Competitor {
    /// It was said to have so many at least.
    least: Option<u32>,
    most: u32,
    weight: u32,
}

impl Competitor {
    fn new(units: Units, wish: &Wish, least: u32) -> Competitor {
        let floor = least.max(1);
        let most = wish.most.map_or(units.count, |percent| percent * units.count / 100).max(floor);
        let least = wish.share.map(|_| least);
        Competitor { least, most, weight: wish.weight.unwrap_or(DEFAULT_WEIGHT).max(1) }
    }
}

/// Divides so many units by weight: each further unit goes to who has the fewest for its weight.
fn by_weights(count: u32, clients: &[Competitor]) -> Vec<Size> {
    let mut has: Vec<u32> = clients.iter().map(|client| client.least.unwrap_or(1)).collect();
    let Some(mut free) = count.checked_sub(has.iter().sum()) else {
        return clients.iter().map(|client| client.least.map_or(Size::Left, Size::Units)).collect();
    };
    while free > 0 {
        let wanting = clients.iter().enumerate().filter(|(at, client)| has[*at] < client.most);
        // Compared crosswise, to stay with whole numbers; the first one of several alike.
        let next = wanting.min_by(|(a, one), (b, other)| {
            let [one, other] = [(has[*a] + 1) * other.weight, (has[*b] + 1) * one.weight];
            one.cmp(&other)
        });
        let Some((next, _)) = next else { break };
        has[next] += 1;
        free -= 1;
    }
    has.into_iter().map(Size::Units).collect()
}

/// The units themselves. Who keeps its size keeps its units, as far as nobody else has them.
fn place(units: Units, clients: &[Candidate], sizes: &[Size]) -> Vec<Option<u64>> {
    let mut free = units.all();
    let mut taken: Vec<Option<u64>> = vec![None; clients.len()];
    for ((place, client), size) in taken.iter_mut().zip(clients).zip(sizes) {
        if *size == Size::Units(client.had.count_ones()) && client.had != 0 && client.had & free == client.had
        {
            *place = Some(client.had);
            free &= !client.had;
        }
    }
    for (place, size) in taken.iter_mut().zip(sizes) {
        let (None, Size::Units(size)) = (*place, *size) else { continue };
        let mut own = 0u64;
        while own.count_ones() < size && free != 0 {
            let lowest = free & free.wrapping_neg();
            own |= lowest;
            free &= !lowest;
        }
        *place = Some(own);
    }
    for (place, _) in taken.iter_mut().zip(sizes).filter(|(_, size)| **size == Size::Left) {
        *place = Some(free);
    }
    // Who has all needs no part of the device.
    let whole = |place: u64| if place == units.all() { 0 } else { place };
    taken.into_iter().map(|place| place.map(whole)).collect()
}

/// The least units of each, 0 for those without; refused if there are not so many, and one for those without.
fn leasts(units: Units, clients: &[Candidate]) -> Result<Vec<u32>, PortionError> {
    let percents: Vec<u32> = clients.iter().map(|client| client.wish.share.unwrap_or(0)).collect();
    let sizes = sizes(units.count, &percents);
    let (all, wanted): (u32, u32) = (percents.iter().sum(), sizes.iter().sum());
    let others = u32::from(clients.iter().any(|client| client.wish.share.is_none()));
    if all > 100 || wanted + others > units.count {
        let others = if others > 0 { ", and others without a share have to have some too" } else { "" };
        return Err(PortionError::TooMuch { all, wanted, units, others });
    }
    Ok(sizes)
}

/// How many of `count` units each share has: rounded down, one at least. What they have together beyond that goes to those that
/// lose most by it.
fn sizes(count: u32, percents: &[u32]) -> Vec<u32> {
    let least = |percent: u32| if percent == 0 { 0 } else { (percent * count / 100).max(1) };
    let mut sizes: Vec<u32> = percents.iter().map(|percent| least(*percent)).collect();
    let together = percents.iter().sum::<u32>() * count / 100;
    let spare = together.saturating_sub(sizes.iter().sum()) as usize;
    let mut order: Vec<usize> = (0..percents.len()).filter(|at| percents[*at] > 0).collect();
    order.sort_by_key(|at| std::cmp::Reverse(percents[*at] * count % 100));
    order.into_iter().take(spare).for_each(|at| sizes[at] += 1);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Units = Units { count: 16, multiprocessors: 8, rest: 4 };
    const PLAIN: Candidate =
        Candidate { wish: Wish { share: None, weight: None, most: None }, has_work: true, had: 0 };

    fn fixed(share: u32) -> Candidate {
        Candidate { wish: Wish { share: Some(share), ..Wish::default() }, ..PLAIN }
    }

    fn weighted(weight: u32) -> Candidate {
        Candidate { wish: Wish { weight: Some(weight), ..Wish::default() }, ..PLAIN }
    }

    fn at_most(client: Candidate, percent: u32) -> Candidate {
        Candidate { wish: Wish { most: Some(percent), ..client.wish }, ..client }
    }

    fn at_least(client: Candidate, percent: u32) -> Candidate {
        Candidate { wish: Wish { share: Some(percent), ..client.wish }, ..client }
    }

    fn resting(client: Candidate) -> Candidate {
        Candidate { has_work: false, ..client }
    }

    fn given(clients: &[Candidate]) -> Vec<Option<u64>> {
        assign(UNITS, clients).unwrap()
    }

    /// How many units each has: all of them for the whole device, none for one that rests.
    fn counts(clients: &[Candidate]) -> Vec<Option<u32>> {
        let count = |set: u64| if set == 0 { UNITS.count } else { set.count_ones() };
        given(clients).into_iter().map(|set| set.map(count)).collect()
    }

    fn are_apart(sets: &[Option<u64>]) -> bool {
        let mut all = 0;
        sets.iter().flatten().all(|set| {
            let apart = *set != 0 && set & all == 0;
            all |= set;
            apart
        })
    }

    #[test]
    fn shares_are_units_and_who_has_none_has_the_rest() {
        assert_eq!(given(&[PLAIN, PLAIN]), [Some(0), Some(0)]);
        assert_eq!(counts(&[fixed(25), fixed(75)]), [Some(4), Some(12)]);
        assert_eq!(sizes(15, &[25, 75]), [4, 11]);
        assert_eq!(sizes(15, &[33, 0, 33, 33]), [5, 0, 5, 4]);
        assert_eq!(sizes(15, &[1, 99]), [1, 14]);
        assert_eq!(counts(&[fixed(50), PLAIN, PLAIN]), [Some(8); 3]);
        assert_eq!(counts(&[fixed(1), PLAIN]), [Some(1), Some(15)]);
        let given = given(&[fixed(25), PLAIN, Candidate { had: 0b1111, ..fixed(25) }]);
        assert_eq!(given[2], Some(0b1111), "who keeps its size keeps its units");
        assert!(are_apart(&given));
        assert_eq!(given.iter().flatten().fold(0, |all, units| all | units), UNITS.all());
    }

    #[test]
    fn more_than_there_is_is_refused_with_what_there_is() {
        let refused = assign(UNITS, &[fixed(80), fixed(30)]).unwrap_err().to_string();
        assert!(refused.contains("110 %"), "{refused}");
        let refused = assign(UNITS, &[fixed(100), PLAIN]).unwrap_err().to_string();
        assert!(refused.contains("without a share"), "{refused}");
        assert!(assign(UNITS, &[at_least(weighted(1), 60), resting(at_least(weighted(1), 50))]).is_err());
    }

    #[test]
    fn who_has_work_alone_has_all_and_several_have_it_by_weight() {
        assert_eq!(given(&[weighted(30), resting(weighted(10))]), [Some(0), None]);
        assert_eq!(counts(&[weighted(30), weighted(10)]), [Some(12), Some(4)]);
        assert_eq!(counts(&[weighted(30), PLAIN]), [Some(12), Some(4)], "10 is the weight of who has none");
        assert_eq!(counts(&[weighted(1), weighted(1), weighted(1)]), [Some(6), Some(5), Some(5)]);
        assert!(are_apart(&given(&[weighted(30), weighted(10), weighted(7)])));
        assert_eq!(given(&[resting(weighted(3)), resting(PLAIN)]), [None, None]);
    }

    #[test]
    fn nobody_has_less_than_its_least_or_more_than_its_most() {
        assert_eq!(counts(&[at_most(weighted(10), 25)]), [Some(4)], "also alone");
        assert_eq!(counts(&[at_most(weighted(30), 50), weighted(10)]), [Some(8), Some(8)]);
        assert_eq!(counts(&[at_least(weighted(1), 50), weighted(100)]), [Some(8), Some(8)]);
        assert_eq!(
            counts(&[weighted(1), weighted(100)]),
            [Some(1), Some(15)],
            "one unit is the least of all"
        );
        assert_eq!(counts(&[at_most(PLAIN, 1), PLAIN]), [Some(1), Some(15)]);
        assert_eq!(counts(&[at_most(weighted(1), 25), at_most(weighted(1), 25)]), [Some(4), Some(4)]);
        let both = at_least(at_most(weighted(1), 25), 50);
        assert_eq!(counts(&[both, PLAIN]), [Some(8), Some(8)], "the least counts where the most is below it");
    }

    #[test]
    fn a_fixed_share_is_lent_to_nobody() {
        assert_eq!(counts(&[resting(fixed(50)), weighted(10)]), [Some(8), Some(8)]);
        assert_eq!(counts(&[fixed(50), weighted(10), weighted(30)]), [Some(8), Some(2), Some(6)]);
        // With a weight, what it has at least is its own while it has work.
        assert_eq!(counts(&[resting(at_least(weighted(10), 50)), weighted(10)]), [None, Some(16)]);
    }

    #[test]
    fn where_there_are_more_than_units_those_without_a_least_have_the_rest_together() {
        let mut many = vec![weighted(10); 17];
        assert_eq!(counts(&many), [Some(16); 17]);
        many.push(at_least(weighted(10), 25));
        let given = given(&many);
        assert_eq!(given[17].map(u64::count_ones), Some(4));
        assert!(given[..17].iter().all(|set| *set == Some(UNITS.all() & !given[17].unwrap())));
    }

    #[test]
    fn who_begins_again_finds_its_units() {
        let first = given(&[weighted(10), weighted(10)]);
        let has = |at: usize| first[at].unwrap();
        // The first one has all meanwhile.
        let again = given(&[weighted(10), Candidate { had: has(1), ..weighted(10) }]);
        assert_eq!(again[1], first[1]);
        assert_eq!(again[0], first[0]);
    }
}
