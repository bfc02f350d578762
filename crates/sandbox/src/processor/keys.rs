//! Protection keys of memory (`pkey_alloc`).

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// Whether processors and kernel have them.
pub fn are_here() -> bool {
    // SAFETY: the calls take integers. What this thread may touch is as before: nothing has the key.
    unsafe {
        let key = libc::syscall(libc::SYS_pkey_alloc, 0, 0);
        key > 0 && libc::syscall(libc::SYS_pkey_free, key) == 0
    }
}

/// Memory with a key.
#[derive(Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    key: u64,
}

/// What a process has of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Keys {
    /// A bit for each that it has.
    allocated: u64,
    areas: Vec<Area>,
}

impl Keys {
    /// Of a process that has these, a bit for each.
    pub fn of(process: i32, allocated: u64) -> io::Result<Self> {
        let areas = areas(BufReader::new(File::open(format!("/proc/{process}/smaps"))?))?;
        Ok(Self { allocated, areas })
    }

    /// Words of eight bytes: the bits, then start, end and key of each area.
    pub fn record(&self) -> Vec<u8> {
        let areas = self.areas.iter().flat_map(|area| [area.start, area.end, area.key]);
        [self.allocated].into_iter().chain(areas).flat_map(u64::to_ne_bytes).collect()
    }
}

/// Those with a key in `smaps`. What may only be run has one that the kernel gives it by itself.
fn areas(smaps: impl BufRead) -> io::Result<Vec<Area>> {
    let (mut found, mut current) = (Vec::new(), None);
    for line in smaps.lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let span = first.split_once('-').and_then(|(start, end)| {
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?))
        });
        if let Some((start, end)) = span {
            current = (!second.starts_with("--x")).then_some((start, end));
        } else if first == "ProtectionKey:"
            && let (Some((start, end)), Ok(key @ 1..=62)) = (current, second.parse())
        {
            found.push(Area { start, end, key });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_with_keys_are_found_but_not_what_may_only_be_run() {
        let smaps = "7f00-7f10 rw-p 00000000 00:00 0 \nSize: 4 kB\nProtectionKey:         3\nVmFlags: rd\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \nProtectionKey:         0\n\
                     7f20-7f30 --xp 00000000 00:00 0 \nProtectionKey:         1\n\
                     7f30-7f40 ---p 00000000 00:00 0 /a b\nProtectionKey:         2\n";
        let found = areas(smaps.as_bytes()).unwrap();
        assert_eq!(
            found,
            [Area { start: 0x7f00, end: 0x7f10, key: 3 }, Area { start: 0x7f30, end: 0x7f40, key: 2 }]
        );
        let keys = Keys { allocated: 0b1110, areas: found };
        assert_eq!(keys.record().len(), 8 * 7);
    }
}
