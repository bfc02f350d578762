//! What a restored program's memory still has in common with the page files that it was restored from, and what of it
//! stays there.
//!
//! ```text
//! memory   [ base ·········································· ]     an area that maps an earlier image's page file
//! dumped        ▪    ▪▪▪▪▪▪▪▪▪ ▪▪▪▪▪▪▪▪        ▪                    pages that the program has written since
//! image    [ base ▪ ][ own ·············· ][ base ▪ ······· ]     ▪ read by CRIU, over the mapping
//! ```
//!
//! Pages that were written with what was there before are not changed. Where changed ones lie close, they go to a page
//! file of the new image's own, with what is between them; others are left for CRIU to read ([`cut`](super::cut)).
//!
//! Images do not hang on each other in chains: page files that were made together are taken along no further when less
//! than half of them is still in use, and a process has such sets of a few images at most. What is still used of the
//! others goes to the new image's own.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::area::{Area, PAGE};
use super::contents::{Base, Run, read_zero_filled};
use super::cut::cut;
use super::few_threads;
use super::process::{Process, within};
use super::writers::set_of;

/// How many earlier images' page files of a kind a process may map.
const MOST_SETS: usize = 3;
/// How much is compared at once.
const BLOCK: u64 = 1 << 20;

/// An area that maps a page file of the image that the program was restored from.
pub struct Inherited {
    pub kind: &'static str,
    pub name: String,
    pub base: Base,
}

/// A process as it is dumped, with its inherited areas by their places among its areas.
#[derive(Clone, Copy)]
pub struct Dumped<'a> {
    pub process: &'a Process,
    pub pages: &'a Arc<File>,
    pub inherited: &'a HashMap<usize, Inherited>,
}

/// Areas that follow each other in memory and were one, or could have been.
#[derive(Debug)]
pub struct Group {
    pub areas: Range<usize>,
    /// In order; together they cover the areas.
    pub pieces: Vec<Piece>,
    /// The changed pages of the areas.
    pub changed: Vec<Run>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// It goes on to map what this area maps.
    Base { area: usize, span: Range<u64> },
    /// It maps the new image's own page file.
    Own { span: Range<u64> },
}

/// What one process's part in the plan rests on.
struct Survey {
    /// By area.
    changed: HashMap<usize, Vec<Run>>,
    /// By set of files: how much of it the process still has as it was.
    used: HashMap<String, u64>,
}

/// The groups of each process, in the order of their areas. `holds` is what each page file holds.
pub fn plan(dumped: &[Dumped<'_>], holds: &HashMap<String, u64>) -> io::Result<Vec<Vec<Group>>> {
    let surveys = dumped.iter().map(survey).collect::<io::Result<Vec<_>>>()?;
    let mut used: HashMap<&str, u64> = HashMap::new();
    for (name, bytes) in surveys.iter().flat_map(|survey| &survey.used) {
        *used.entry(name).or_default() += bytes;
    }
    let mut had: HashMap<&str, u64> = HashMap::new();
    let mut seen = HashSet::new();
    for Inherited { name, .. } in dumped.iter().flat_map(|dumped| dumped.inherited.values()) {
        if seen.insert(name) {
            *had.entry(set_of(name)).or_default() += holds.get(name).copied().unwrap_or(0);
        }
    }
    let is_worth = |set: &&str| {
        let used = used.get(set).copied().unwrap_or(0);
        used > 0 && 2 * used >= had[set]
    };
    let worth: HashSet<&str> = had.keys().copied().filter(is_worth).collect();
    let groups = dumped.iter().zip(surveys).map(|(dumped, survey)| {
        let kept = few(dumped, &survey, &worth);
        let mut groups = groups(dumped, survey);
        cut(&mut groups, &dumped.process.areas, &|at: usize| {
            dumped.inherited.get(&at).is_some_and(|area| kept.contains(set_of(&area.name)))
        });
        groups
    });
    Ok(groups.collect())
}

fn survey(dumped: &Dumped<'_>) -> io::Result<Survey> {
    let mut survey = Survey { changed: HashMap::new(), used: HashMap::new() };
    let all: Vec<_> = dumped.inherited.iter().collect();
    let looked = rekindle_parallel::map(
        few_threads(),
        all.len(),
        || [vec![0; BLOCK as usize], vec![0; BLOCK as usize]],
        |blocks, at| look_at(dumped, &all[at], blocks),
    )?;
    for ((&at, inherited), Looked { changed, had }) in all.into_iter().zip(looked) {
        let bytes: u64 = changed.iter().map(length).sum();
        *survey.used.entry(set_of(&inherited.name).to_string()).or_default() += had.saturating_sub(bytes);
        survey.changed.insert(at, changed);
    }
    Ok(survey)
}

/// What an area is beside its page file: the pages that have changed, and how many bytes that has for it.
struct Looked {
    changed: Vec<Run>,
    had: u64,
}

fn look_at(
    dumped: &Dumped<'_>,
    (at, inherited): &(&usize, &Inherited),
    blocks: &mut [Vec<u8>; 2],
) -> io::Result<Looked> {
    let area = &dumped.process.areas[**at];
    let changed = changed(area, &dumped.process.runs_of(area), dumped.pages, &inherited.base, blocks)?;
    Ok(Looked { changed, had: filled(&area.span, &inherited.base) })
}

/// The runs without the pages that are as they are in the file.
fn changed(
    area: &Area,
    runs: &[Run],
    pages: &File,
    base: &Base,
    [now, before]: &mut [Vec<u8>; 2],
) -> io::Result<Vec<Run>> {
    let mut changed: Vec<Run> = Vec::new();
    for run in runs {
        let mut at = run.memory.start;
        while at < run.memory.end {
            let bytes = BLOCK.min(run.memory.end - at);
            let (now, before) = (&mut now[..bytes as usize], &mut before[..bytes as usize]);
            read_zero_filled(pages, now, run.at + (at - run.memory.start))?;
            read_zero_filled(&base.file.file, before, base.offset + (at - area.span.start))?;
            let both = now.chunks(PAGE as usize).zip(before.chunks(PAGE as usize));
            for (number, _) in both.enumerate().filter(|(_, (now, before))| now != before) {
                let memory = at + number as u64 * PAGE;
                let place = run.at + (memory - run.memory.start);
                match changed.last_mut() {
                    Some(last) if last.memory.end == memory && last.at + length(last) == place => {
                        last.memory.end += PAGE;
                    }
                    _ => changed.push(Run { memory: memory..memory + PAGE, at: place }),
                }
            }
            at += bytes;
        }
    }
    Ok(changed)
}

/// How much of a span a file has contents for.
fn filled(span: &Range<u64>, base: &Base) -> u64 {
    let found = base.file.filled(base.offset..base.offset + (span.end - span.start));
    found.map(|found| found.end - found.start).sum()
}

/// Of the sets that are worth it, those that this process goes on to map: of each kind the most used.
fn few(dumped: &Dumped<'_>, survey: &Survey, worth: &HashSet<&str>) -> HashSet<String> {
    let mut by_kind: HashMap<&str, Vec<(u64, &str)>> = HashMap::new();
    for inherited in dumped.inherited.values() {
        let set = set_of(&inherited.name);
        let used = survey.used.get(set).copied().unwrap_or(0);
        let of_kind = by_kind.entry(inherited.kind).or_default();
        if worth.contains(set) && !of_kind.contains(&(used, set)) {
            of_kind.push((used, set));
        }
    }
    by_kind
        .into_values()
        .flat_map(|mut of_kind| {
            of_kind.sort_unstable_by(|a, b| b.cmp(a));
            of_kind.truncate(MOST_SETS);
            of_kind.into_iter().map(|(_, set)| set.to_string())
        })
        .collect()
}

/// The inherited areas of a process, those that were one together, not cut yet.
fn groups(dumped: &Dumped<'_>, mut survey: Survey) -> Vec<Group> {
    let areas = &dumped.process.areas;
    let mut groups: Vec<Group> = Vec::new();
    for at in 0..areas.len() {
        let Some(inherited) = dumped.inherited.get(&at) else { continue };
        let changed = survey.changed.remove(&at).unwrap_or_default();
        let follows = |group: &Group| {
            let before = group.areas.end - 1;
            group.areas.end == at
                && areas[before].span.end == areas[at].span.start
                && areas[before].is_like(&areas[at])
                && dumped.inherited.get(&before).is_some_and(|before| before.kind == inherited.kind)
        };
        match groups.last_mut() {
            Some(last) if follows(last) => {
                last.areas.end += 1;
                last.changed.extend(changed);
            }
            _ => groups.push(Group { areas: at..at + 1, pieces: Vec::new(), changed }),
        }
    }
    groups
}

impl Group {
    /// The changed pages that lie in no piece of the image's own.
    pub fn read(&self) -> Vec<Run> {
        let base = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Base { span, .. } => Some(span),
            Piece::Own { .. } => None,
        });
        base.flat_map(|span| within(&self.changed, span)).collect()
    }
}

fn length(run: &Run) -> u64 {
    run.memory.end - run.memory.start
}

#[cfg(test)]
mod tests;
