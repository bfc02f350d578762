//! Which processors threads may use.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
pub const OWN: i32 = 0;

/// None of a thread that has ended, and on a machine with more processors than can be told of.
pub fn of(thread: i32) -> Option<CpuSet> {
    sched_getaffinity(Pid::from_raw(thread)).ok()
}

pub fn set(thread: i32, processors: &CpuSet) -> nix::Result<()> {
    sched_setaffinity(Pid::from_raw(thread), processors)
}

/// The one that the calling thread is on.
pub fn here() -> Option<CpuSet> {
    let mut one = CpuSet::new();
    one.set(sched_getcpu().ok()?).ok()?;
    Some(one)
}

/// Gives a thread the processors that it had. One that may use all that there are may also use those that come later.
pub fn give_back(thread: i32, had: &CpuSet) {
    static ALL: LazyLock<CpuSet> = LazyLock::new(|| {
        let mut all = CpuSet::new();
        (0..CpuSet::count()).for_each(|processor| {
            let _ = all.set(processor);
        });
        all
    });
    // One that has ended needs none.
    if set(thread, &ALL).is_err() || of(thread).as_ref() != Some(had) {
        let _ = set(thread, had);
    }
}

/// Those that threads have, at a moment at which nobody has changed that for them.
#[derive(Debug, Default)]
pub struct Noted(BTreeMap<i32, CpuSet>);

impl Noted {
    pub fn take(threads: impl IntoIterator<Item = i32>) -> Noted {
        Noted(threads.into_iter().filter_map(|thread| Some((thread, of(thread)?))).collect())
    }

    /// As the kernel lists them, `0-3,8`; those that a thread has now if nothing was noted of it.
    pub fn list(&self, thread: i32) -> Option<String> {
        self.0.get(&thread).copied().or_else(|| of(thread)).map(|processors| list(&processors))
    }
}

fn list(processors: &CpuSet) -> String {
    let has = |processor: usize| processors.is_set(processor).unwrap_or(false);
    let mut ranges = Vec::new();
    let mut next = 0;
    while let Some(first) = (next..CpuSet::count()).find(|&processor| has(processor)) {
        next = (first..).find(|&processor| !has(processor)).unwrap_or(first + 1);
        ranges.push(if next - first == 1 { first.to_string() } else { format!("{first}-{}", next - 1) });
    }
    ranges.join(",")
}

/// What such a list says, of the processors that can be told of.
pub fn read(list: &str) -> nix::Result<CpuSet> {
    let mut set = CpuSet::new();
    let mut parts = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    let ranges = parts.by_ref().collect::<Option<Vec<_>>>().ok_or(nix::Error::EBADMSG)?;
    for processor in ranges.into_iter().flatten().take_while(|processor| *processor < CpuSet::count()) {
        set.set(processor)?;
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::status_field;

    #[test]
    fn a_list_is_the_kernel_s_and_says_the_same() {
        let own = Noted::default().list(std::process::id() as i32);
        assert_eq!(own, status_field(std::process::id() as i32, "Cpus_allowed_list"));
        for text in ["0", "0-1", "0-3,8", "1,3,5-7,1023"] {
            assert_eq!(list(&read(text).unwrap()), text);
        }
        assert!(read("0-x").is_err() && read("").is_err());
    }

    #[test]
    fn a_thread_has_what_it_had_again_and_what_was_noted_is_what_it_had() {
        let (thread, had) = (nix::unistd::gettid().as_raw(), of(OWN).unwrap());
        let noted = Noted::take([thread]);
        set(OWN, &here().unwrap()).unwrap();
        assert_eq!(noted.list(thread), Some(list(&had)));
        give_back(thread, &had);
        assert_eq!(of(OWN), Some(had));
        // One that has chosen some has those.
        let one = here().unwrap();
        give_back(thread, &one);
        assert_eq!(of(OWN), Some(one));
        assert_eq!(Noted::default().list(thread), Some(list(&one)));
        give_back(thread, &had);
    }
}
