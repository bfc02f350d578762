//! Where the time of a call goes in the runner: spans of its request's trace, which the gateway is told with the answer.
//!
//! ```text
//!   traceparent ─▶ Trace: queue ── enter            until an instance has the call; of a new one its start
//!                         method ── data, wait …    the function's own, and what it says by `rekindle_span`
//!                    └─▶ Rekindle-Spans: queue;begin;took;id;, enter;begin;took;id;within, method …
//! ```

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rekindle_function::driver::{Wait, driver};

/// How many spans of a call are told.
const MOST: usize = 60;
const LONGEST_NAME: usize = 64;
/// How many of the last waits are kept, which several calls may be told of.
const WAITS: usize = 64;

/// What identifies a span in its trace; 0: the request's own.
pub type SpanId = u64;

#[derive(Debug)]
struct Span {
    name: String,
    /// In microseconds since 1970.
    begin: u64,
    /// None for as long as it goes on.
    took: Option<u64>,
    id: SpanId,
    within: SpanId,
}

/// Of one request that is followed.
#[derive(Debug)]
pub struct Trace {
    spans: Mutex<Vec<Span>>,
    /// Ids are counted from here on.
    first: SpanId,
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

impl Trace {
    /// The trace of a request with this `traceparent`, if that is sampled.
    pub fn of(parent: &str) -> Option<Arc<Trace>> {
        let mut fields = parent.split('-');
        let mut hexadecimal = |length: usize| {
            fields.next().filter(|field| {
                field.len() == length && field.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            })
        };
        let (version, _, _, flags) = (
            hexadecimal(2)?,
            hexadecimal(32)?,
            hexadecimal(16)?,
            u8::from_str_radix(hexadecimal(2)?, 16).ok()?,
        );
        let is_known = version == "00" && fields.next().is_none();
        (is_known && flags & 1 != 0).then(|| Arc::new(Trace { spans: Mutex::default(), first: random() }))
    }

    /// A span that begins now.
    pub fn begin(&self, name: &str, within: SpanId) -> SpanId {
        self.add(name, now(), None, within)
    }

    pub fn end(&self, id: SpanId) {
        if let Some(span) = self.lock().iter_mut().find(|span| span.id == id) {
            span.took = Some(now().saturating_sub(span.begin));
        }
    }

    /// What has begun then and is over now.
    pub fn note(&self, name: &str, begin: u64, within: SpanId) {
        self.add(name, begin, Some(now().saturating_sub(begin)), within);
    }

    /// What work on the GPU has waited for since then. The calling thread has a context.
    pub fn note_waits(&self, since: u64, within: SpanId) {
        static LAST: Mutex<VecDeque<Wait>> = Mutex::new(VecDeque::new());
        let found = driver().and_then(|driver| driver.waits()).unwrap_or_default();
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend(found);
        let old = last.len().saturating_sub(WAITS);
        last.drain(..old);
        for Wait { what, begin, took } in last.iter().filter(|wait| wait.begin + wait.took >= since) {
            self.add(what, *begin, Some(*took), within);
        }
    }

    /// The value of `Rekindle-Spans`. A span stands behind the one that it is a part of.
    pub fn told(&self) -> String {
        let mut told = String::new();
        for span in self.lock().iter().take(MOST) {
            let took = span.took.unwrap_or_else(|| now().saturating_sub(span.begin));
            let between = if told.is_empty() { "" } else { ", " };
            let _ = write!(told, "{between}{};{};{took};{:016x};", span.name, span.begin, span.id);
            if span.within != 0 {
                let _ = write!(told, "{:016x}", span.within);
            }
        }
        told
    }

    fn add(&self, name: &str, begin: u64, took: Option<u64>, within: SpanId) -> SpanId {
        let mut spans = self.lock();
        let id = self.first.wrapping_add(spans.len() as u64).max(1);
        let name = named(name);
        spans.push(Span { name, begin, took, id, within });
        id
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As a header can have it.
fn named(name: &str) -> String {
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || " .:/_-".contains(letter);
    let good: String =
        name.chars().map(|letter| if is_good(letter) { letter } else { '_' }).take(LONGEST_NAME).collect();
    if good.trim().is_empty() { "span".to_string() } else { good.trim().to_string() }
}

/// From the kernel: what a process has by itself, all that are restored of its image have.
fn random() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: so many bytes can be written to.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_what_is_sampled_is_followed() {
        assert!(Trace::of(PARENT).is_some() && Trace::of(&PARENT.replace("-01", "-03")).is_some());
        for other in [
            "",
            "nonsense",
            &PARENT.replace("-01", "-00"),
            &format!("{PARENT}-1"),
            &PARENT[2..],
            &PARENT.replace('f', "F"),
        ] {
            assert!(Trace::of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn spans_are_told_with_what_they_are_parts_of() {
        let trace = Trace::of(PARENT).unwrap();
        let queue = trace.begin("queue", 0);
        trace.note("a;b, c\n", now() - 7, queue);
        trace.end(queue);
        let method = trace.begin("method", 0);
        let told = trace.told();
        let fields: Vec<Vec<&str>> = told.split(", ").map(|span| span.split(';').collect()).collect();
        let names: Vec<&str> = fields.iter().map(|span| span[0]).collect();
        assert_eq!(names, ["queue", "a_b_ c_", "method"]);
        assert_eq!((fields[0][4], fields[1][4], fields[2][4]), ("", fields[0][3], ""));
        assert!(fields[1][2].parse::<u64>().unwrap() >= 7 && queue != method);
        (0..100).for_each(|_| trace.note(&"x".repeat(99), 0, method));
        let told = trace.told();
        assert_eq!((told.split(", ").count(), told.split(", ").last().unwrap().find(';')), (MOST, Some(64)));
    }
}
