//! Page maps: which pages CRIU finds in which file.

use std::ops::Range;

use super::Result;
use super::areas::{Areas, PAGE, Shared};
use super::image::entries;
use super::source::Source;
use super::tree::Tree;

/// Of an entry: its pages are in the file; they could also be brought later.
const PRESENT: u64 = 1 << 2;
const LAZY: u64 = 1 << 1;

/// The pages of a process, those that CRIU reads and those that are written into it beside CRIU.
pub fn check(source: &dyn Source, pid: u32, areas: &Areas) -> Result<()> {
    let fits = |span: &Range<u64>| areas.take_pages(span);
    check_map(source, &format!("pagemap-{pid}.img"), &|number| format!("pages-{number}.img"), &fits)?;
    let populated = format!("pagemap-populate-{pid}.img");
    match source.length(&populated) {
        None => Ok(()),
        Some(_) => check_map(source, &populated, &|_| format!("pages-populate-{pid}.img"), &fits),
    }
}

/// The pages of memory that processes share.
pub fn check_shared(source: &dyn Source, shared: &Shared) -> Result<()> {
    shared.iter().try_for_each(|(id, bytes)| {
        let name = format!("pagemap-shmem-{id}.img");
        // Some is not CRIU's to fill: that of a file that nobody can open any more is in the file's own image.
        match source.length(&name) {
            None => Ok(()),
            Some(_) => {
                check_map(source, &name, &|number| format!("pages-{number}.img"), &|span: &Range<u64>| {
                    span.end <= *bytes
                })
            }
        }
    })
}

fn check_map(
    source: &dyn Source,
    name: &str,
    pages: &dyn Fn(u64) -> String,
    fits: &dyn Fn(&Range<u64>) -> bool,
) -> Result<()> {
    let text = source.read(name)?;
    let mut all = entries(name, &text)?;
    let head = all.next().transpose()?.ok_or_else(|| format!("{name} is empty"))?;
    let [number] = head.needed([1])?;
    let (mut end, mut bytes) = (0, 0u64);
    for entry in all {
        let entry = entry?;
        let [start, short_count, in_parent, flags, count] = entry.numbers([1, 2, 3, 4, 5])?;
        let (Some(start), Some(short_count)) = (start, short_count) else {
            return Err(format!("{name} has pages without a place or a number"));
        };
        let at = || format!("the pages at {start:#x} in {name}");
        let count = count.unwrap_or(short_count);
        if count == 0 || count as u32 != short_count as u32 {
            return Err(format!("{} are {count} by one number and {short_count} by the other", at()));
        }
        // Before there were flags, pages were in the file or in an earlier image.
        if flags.unwrap_or(PRESENT) & !LAZY != PRESENT || in_parent.unwrap_or(0) != 0 {
            return Err(format!("{} are in an earlier image, and there is none", at()));
        }
        let length = count.checked_mul(PAGE);
        let span = length.and_then(|length| Some(start..start.checked_add(length)?));
        let span = span.ok_or_else(|| format!("{} are more than memory has", at()))?;
        if !start.is_multiple_of(PAGE) || span.start < end {
            return Err(format!("{} are not in order", at()));
        }
        if !fits(&span) {
            return Err(format!("{} lie in no area that has pages", at()));
        }
        end = span.end;
        bytes += span.end - span.start;
    }
    let pages = pages(number);
    match source.length(&pages) {
        Some(length) if length == bytes => Ok(()),
        Some(length) => Err(format!("{pages} has {length} bytes, by {name} it has {bytes}")),
        None if bytes == 0 => Ok(()),
        None => Err(format!("{pages} is missing")),
    }
}

/// Page maps of processes that there are not.
pub fn strays(names: &[String], tree: &Tree) -> Option<String> {
    let of = |name: &String| {
        let digits = name.strip_prefix("pagemap-")?.strip_suffix(".img")?;
        digits.parse::<u32>().ok()
    };
    let stray = |name: &&String| of(name).is_some_and(|pid| !tree.live().any(|task| task.pid == pid));
    names.iter().find(stray).map(|name| format!("{name} is of no process that there is"))
}
