//! `/proc/PID/stat`.

use std::io;
use std::str::FromStr;

use crate::process::text;

/// What the kernel tells of a process, or of a thread, in one line. Fields have their numbers of proc(5).
pub struct Stat {
    /// From [`STATE`](Self::STATE) on: the name before it may have any bytes.
    fields: String,
}

impl Stat {
    const STATE: usize = 3;
    pub(crate) const SESSION: usize = 6;
    pub(crate) const TERMINAL: usize = 7;
    pub(crate) const FLAGS: usize = 9;
    /// In ticks since the machine's start.
    pub const START_TIME: usize = 22;
    pub(crate) const EXIT_CODE: usize = 52;
    /// `utime`, `stime`, `cutime` and `cstime`: its processor time, and that of those of its children that it has waited for.
    const TIMES: std::ops::RangeInclusive<usize> = 14..=17;

    pub fn of(pid: i32) -> io::Result<Self> {
        let text = text(&format!("/proc/{pid}/stat"))?;
        let (_, fields) = text.rsplit_once(") ").ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { fields: fields.to_owned() })
    }

    pub fn field<T: FromStr>(&self, number: usize) -> Option<T> {
        self.fields.split_whitespace().nth(number.checked_sub(Self::STATE)?)?.parse().ok()
    }

    pub fn state(&self) -> Option<char> {
        self.field(Self::STATE)
    }

    /// Whether it is there only for whoever waits for its end.
    pub fn has_ended(&self) -> bool {
        self.state().is_none_or(|state| matches!(state, 'Z' | 'X'))
    }

    pub fn processor_ticks(&self) -> Option<u64> {
        Self::TIMES.map(|number| self.field::<u64>(number)).sum()
    }
}
