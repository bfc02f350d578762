//! What an instance says of its time with a request, in the header `Rekindle-Spans` of its answer. Its client does not get that.
//!
//! ```text
//!   Rekindle-Spans: method;1764226800000000;1200;b7ad6b7169203331;, data;1764226800000100;900;00f067aa0ba902b7;b7ad6b7169203331
//!                   name   begin            took id               of whom it is a part: none, or an earlier one's id
//! ```
//!
//! Times are microseconds, the first since 1970. A span of which nobody says how long it took ends with the answer. What is no such
//! header is left out.

use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, HeaderName};
use opentelemetry::trace::SpanId;

const SPANS: HeaderName = HeaderName::from_static("rekindle-spans");
/// So many are taken of an answer.
const MOST: usize = 64;
const LONGEST_NAME: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSpan {
    pub name: String,
    pub begin: SystemTime,
    /// None: until the answer was through.
    pub took: Option<Duration>,
    pub id: SpanId,
    /// The id of the one that it is a part of.
    pub within: Option<SpanId>,
}

/// Takes the header away: what it says.
pub fn take(headers: &mut HeaderMap) -> Vec<ProgramSpan> {
    if !headers.contains_key(SPANS) {
        return Vec::new();
    }
    let mut found: Vec<ProgramSpan> = Vec::new();
    let said = headers.get_all(SPANS).iter().filter_map(|value| value.to_str().ok());
    for span in said.flat_map(|value| value.split(',')).filter_map(|text| read(text.trim())).take(MOST) {
        let is_known = |id: &SpanId| found.iter().any(|earlier| earlier.id == *id);
        if is_known(&span.id) {
            continue;
        }
        let within = span.within.filter(is_known);
        found.push(ProgramSpan { within, ..span });
    }
    headers.remove(SPANS);
    found
}

fn read(text: &str) -> Option<ProgramSpan> {
    let mut fields = text.split(';');
    let name = fields.next().filter(|name| (1..=LONGEST_NAME).contains(&name.len()))?.to_string();
    let time = |text: &str| Some(Duration::from_micros(text.parse().ok()?));
    let begin = SystemTime::UNIX_EPOCH.checked_add(time(fields.next()?)?)?;
    let took = match fields.next()? {
        "" => None,
        text => Some(time(text)?),
    };
    let id = id(fields.next()?)?;
    let within = match fields.next()? {
        "" => None,
        text => Some(self::id(text)?),
    };
    fields.next().is_none().then_some(ProgramSpan { name, begin, took, id, within })
}

fn id(text: &str) -> Option<SpanId> {
    SpanId::from_hex(text).ok().filter(|id| text.len() == 16 && *id != SpanId::INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(said: &[&str]) -> Vec<(String, Option<String>)> {
        let mut headers = HeaderMap::new();
        said.iter().for_each(|said| {
            headers.append(SPANS, said.parse().unwrap());
        });
        let found = take(&mut headers);
        assert!(headers.is_empty());
        found.into_iter().map(|span| (span.name, span.within.map(|id| id.to_string()))).collect()
    }

    #[test]
    fn what_is_told_is_taken_and_the_rest_is_left() {
        let (one, two) = ("00f067aa0ba902b7", "b7ad6b7169203331");
        let method = format!("method;1764226800000000;1200;{one};");
        let data = format!("data;1764226800000100;900;{two};{one}");
        let both = vec![("method".to_string(), None), ("data".to_string(), Some(one.to_string()))];
        assert_eq!(taken(&[&method, &data]), both);
        assert_eq!(taken(&[&format!("{method}, {data},x;1;2, , y;1;2;{two};;1, z;-1;2;{two};")]), both);
        // A part of what is not there, or comes later, is a part of the whole; of one id there is one.
        assert_eq!(
            taken(&[&data, &method, &data]),
            [("data".to_string(), None), ("method".to_string(), None)]
        );
        let open = format!("application;1764226800000000;;{one};");
        assert_eq!(taken(&[&open, &data]), [("application".to_string(), None), both[1].clone()]);
        assert_eq!(read(&open).and_then(|span| span.took), None);
        assert_eq!(read(&method).and_then(|span| span.took), Some(Duration::from_micros(1200)));
        for wrong in [
            "",
            "a",
            "a;;1;00f067aa0ba902b7;",
            "a;1;1;0000000000000000;",
            "a;1;1;b7;",
            &format!("a;1;{};{one};", u128::MAX),
        ] {
            assert!(taken(&[wrong]).is_empty(), "{wrong}");
        }
        let many = (1..100).map(|at| format!("a;1;1;{at:016x};")).collect::<Vec<_>>().join(",");
        assert_eq!(taken(&[&many]).len(), MOST);
    }
}
