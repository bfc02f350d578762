//! Where memory that maps an earlier image's page files is cut, so that the new image has little of its own and a restore
//! little to do.
//!
//! A group of areas is a row of cells, each as it is in the file or changed. A cell is *base*, which goes on to map the
//! file, or *own*, which maps the new image's page file:
//!
//! | | base | own |
//! | --- | --- | --- |
//! | an unchanged cell | | takes its bytes |
//! | a changed cell | takes its bytes, and time to read its pages | takes its bytes |
//! | an area, and each change from one to the other | time for a mapping | |
//!
//! With a price for time, bytes for a microsecond, the cheapest choice for a row is found in one pass. The price begins
//! where time is cheap, and rises until a process takes no more time than it may.

use std::ops::Range;

use super::area::{Area, PAGE};
use super::process::within;
use super::shared::{Group, Piece};

/// What a mapping takes CRIU, µs.
pub const MAPPING: u64 = 12;
/// What a page takes CRIU that it reads, µs.
pub const READING: u64 = 3;
/// What the mappings of a process and what is read of them may take, µs; where that cannot be, half as much again as the
/// least.
pub const LIMIT: u64 = 9000;
/// Bytes for a microsecond. An image may be larger by 0.8 MB for a restore that is shorter by a millisecond.
const LEAST_PRICE: u64 = 800;
/// With it bytes do not count; sums with it do not overflow.
const MOST_PRICE: u64 = 1 << 30;
/// More than anything costs, and not so much that sums with it overflow.
const NEVER: u64 = 1 << 62;

/// A part of one area.
struct Cell {
    area: usize,
    span: Range<u64>,
    is_changed: bool,
    /// Whether it may be base.
    is_kept: bool,
}

/// For each row, which cells are own.
type Choice = Vec<Vec<bool>>;

/// Gives each group its pieces. `is_kept` says of an area whether it may go on to map what it maps.
pub fn cut(groups: &mut [Group], areas: &[Area], is_kept: &dyn Fn(usize) -> bool) {
    let rows: Vec<Vec<Cell>> = groups.iter().map(|group| cells(group, areas, is_kept)).collect();
    let chosen = within_limit(&rows);
    for ((group, row), own) in groups.iter_mut().zip(&rows).zip(&chosen) {
        group.pieces = pieces(row, own);
    }
}

fn within_limit(rows: &[Vec<Cell>]) -> Choice {
    let at = |price| -> Choice { rows.iter().map(|row| choose(row, price)).collect() };
    let takes = |chosen: &Choice| -> u64 { rows.iter().zip(chosen).map(|(row, own)| time(row, own)).sum() };
    let mut price = LEAST_PRICE;
    let mut cheaper = at(price);
    if takes(&cheaper) <= LIMIT {
        return cheaper;
    }
    // Of a process with many areas nothing takes less than the limit.
    let least = takes(&at(MOST_PRICE));
    let limit = LIMIT.max(least + least / 2);
    if takes(&cheaper) <= limit {
        return cheaper;
    }
    loop {
        price += price / 4;
        let dearer = at(price);
        if takes(&dearer) <= limit {
            return mixed(&cheaper, dearer, |chosen| takes(chosen) <= limit);
        }
        if price >= MOST_PRICE {
            return dearer;
        }
        cheaper = dearer;
    }
}

/// The choice that begins as `cheaper` and goes on as `dearer`, changing as late as `fits` allows. Memory that looks the
/// same everywhere would change as a whole from one price to the next.
fn mixed(cheaper: &Choice, dearer: Choice, fits: impl Fn(&Choice) -> bool) -> Choice {
    let (mut most, mut limit) = (0, cheaper.iter().map(Vec::len).sum::<usize>());
    let mut best = dearer.clone();
    while most + 1 < limit {
        let tried = usize::midpoint(most, limit);
        let mut mix = dearer.clone();
        let places = mix.iter_mut().flatten().zip(cheaper.iter().flatten());
        places.take(tried).for_each(|(place, own)| *place = *own);
        if fits(&mix) {
            (most, best) = (tried, mix);
        } else {
            limit = tried;
        }
    }
    best
}

fn cells(group: &Group, areas: &[Area], is_kept: &dyn Fn(usize) -> bool) -> Vec<Cell> {
    let mut row = Vec::new();
    for area in group.areas.clone() {
        let whole = &areas[area].span;
        let is_kept = is_kept(area);
        let mut add = |span: Range<u64>, is_changed| {
            if !span.is_empty() {
                row.push(Cell { area, span, is_changed, is_kept });
            }
        };
        let mut from = whole.start;
        for run in within(&group.changed, whole) {
            add(from..run.memory.start, false);
            from = run.memory.end;
            add(run.memory, true);
        }
        add(from..whole.end, false);
    }
    row
}

/// Which cells are own, at that price.
fn choose(row: &[Cell], price: u64) -> Vec<bool> {
    let mapping = price * MAPPING;
    // The least cost of all up to a cell that is base, and of one that is own; and for each cell, whether the one before
    // it is own in either case.
    let (mut base, mut own) = (mapping, mapping);
    let mut before = Vec::with_capacity(row.len());
    for (at, cell) in row.iter().enumerate() {
        if at > 0 {
            let goes_on = if row[at - 1].area == cell.area { 0 } else { mapping };
            let (to_base, to_own) = ((base + goes_on, own + mapping), (base + mapping, own));
            before.push((to_base.1 < to_base.0, to_own.1 <= to_own.0));
            (base, own) = (to_base.0.min(to_base.1), to_own.0.min(to_own.1));
        }
        base = match cell {
            Cell { is_kept: false, .. } => NEVER,
            Cell { is_changed: true, .. } => base + cell.bytes() + price * cell.reading(),
            _ => base,
        };
        own += cell.bytes();
    }
    let mut is_own = own < base;
    let mut chosen = vec![is_own; row.len()];
    for (at, (of_base, of_own)) in before.iter().enumerate().rev() {
        is_own = if is_own { *of_own } else { *of_base };
        chosen[at] = is_own;
    }
    chosen
}

/// What a choice takes CRIU, µs.
fn time(row: &[Cell], own: &[bool]) -> u64 {
    let read = row.iter().zip(own).filter(|(cell, own)| cell.is_changed && !**own);
    let reading: u64 = read.map(|(cell, _)| cell.reading()).sum();
    reading + MAPPING * pieces(row, own).len() as u64
}

fn pieces(row: &[Cell], own: &[bool]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (cell, is_own) in row.iter().zip(own) {
        match (pieces.last_mut(), is_own) {
            (Some(Piece::Own { span }), true) => span.end = cell.span.end,
            (Some(Piece::Base { area, span }), false) if *area == cell.area => span.end = cell.span.end,
            (_, true) => pieces.push(Piece::Own { span: cell.span.clone() }),
            (_, false) => pieces.push(Piece::Base { area: cell.area, span: cell.span.clone() }),
        }
    }
    pieces
}

impl Cell {
    fn bytes(&self) -> u64 {
        self.span.end - self.span.start
    }

    fn reading(&self) -> u64 {
        self.bytes() / PAGE * READING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cost(row: &[Cell], own: &[bool], price: u64) -> Option<u64> {
        let both = || row.iter().zip(own);
        let stored = both().filter(|(cell, own)| **own || cell.is_changed).map(|(cell, _)| cell.bytes());
        let is_legal = both().all(|(cell, own)| *own || cell.is_kept);
        is_legal.then(|| stored.sum::<u64>() + price * time(row, own))
    }

    proptest! {
        #[test]
        fn no_other_choice_is_cheaper(
            cells in prop::collection::vec((0..3usize, 1..40u64, any::<bool>(), prop::bool::weighted(0.8)), 1..9),
            price in 1..20_000u64,
        ) {
            let (mut area, mut at, mut row) = (0, 0, Vec::new());
            for (next, pages, is_changed, is_kept) in cells {
                let span = at..at + pages * PAGE;
                at = span.end;
                area += usize::from(next == 0);
                let is_kept = row.last().map_or(is_kept, |last: &Cell| if last.area == area { last.is_kept } else { is_kept });
                row.push(Cell { area, span, is_changed, is_kept });
            }
            let all = (0..1u32 << row.len()).map(|bits| (0..row.len()).map(|at| bits >> at & 1 == 1).collect());
            let least = all.filter_map(|own: Vec<bool>| cost(&row, &own, price)).min();
            prop_assert_eq!(cost(&row, &choose(&row, price), price), least);
        }
    }
}
