//! What an instance says of its time with a request, in the header `Rekindle-Spans` of its answer. Its client does not get that.
//!
//! ```text
//!   Rekindle-Spans: method;1764226800000000;1200;b7ad6b7169203331;, data;1764226800000100;900;00f067aa0ba902b7;b7ad6b7169203331
//!                   name   begin            took id               of whom it is a part: none, or an earlier one's id
//! ```
//!
//! Times are microseconds, the first since 1970. A span of which nobody says how long it took ends with the answer. Behind these may
//! stand `;error=WHY`, percent-encoded, and `;pieces=N`, `;received=N`, `;first=TOOK`: how many pieces were sent and received in it,
//! and how long it took to the first that was sent. What has another name there is passed over; what is no such header is left out.

use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, HeaderName};
use opentelemetry::trace::SpanId;

const SPANS: HeaderName = HeaderName::from_static("rekindle-spans");
/// So many are taken of an answer.
const MOST: usize = 64;
const LONGEST_NAME: usize = 64;
/// Characters.
const LONGEST_ERROR: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSpan {
    pub name: String,
    pub begin: SystemTime,
    /// None: until the answer was through.
    pub took: Option<Duration>,
    pub id: SpanId,
    /// The id of the one that it is a part of.
    pub within: Option<SpanId>,
    pub details: SpanDetails,
}

/// What came of a span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanDetails {
    /// Why it failed.
    pub error: Option<String>,
    /// Pieces of an answer, or messages of a WebSocket, that were sent in it.
    pub pieces: Option<u64>,
    /// Messages that were received in it.
    pub received: Option<u64>,
    /// How long it took to the first piece.
    pub first: Option<Duration>,
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

/// Has what an instance has said later stand in the place of what it said first, and behind it what is new.
pub fn complete(spans: &mut Vec<ProgramSpan>, later: Vec<ProgramSpan>) {
    for span in later {
        match spans.iter().position(|known| known.id == span.id) {
            Some(place) => spans[place] = span,
            None if spans.len() < MOST => spans.push(span),
            None => {}
        }
    }
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
    let mut details = SpanDetails::default();
    for field in fields {
        let (name, value) = field.split_once('=')?;
        match name {
            "error" => details.error = Some(decoded(value).chars().take(LONGEST_ERROR).collect()),
            "pieces" => details.pieces = Some(value.parse().ok()?),
            "received" => details.received = Some(value.parse().ok()?),
            "first" => details.first = Some(time(value)?),
            _ => {}
        }
    }
    Some(ProgramSpan { name, begin, took, id, within, details })
}

/// A text that is percent-encoded (RFC 3986, section 2.1). What is no such encoding stands for itself.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = behind.get(if byte.is_some() { 2 } else { 0 }..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
        let failed =
            read(&format!("{method};pieces=3;first=250;error=ValueError%3A%20n%C3%B6%;later=1")).unwrap();
        let error = Some("ValueError: nö%".to_string());
        let first = Some(Duration::from_micros(250));
        assert_eq!(failed.details, SpanDetails { error, pieces: Some(3), received: None, first });
        assert!(read(&format!("{method};pieces=x")).is_none());
        let many = (1..100).map(|at| format!("a;1;1;{at:016x};")).collect::<Vec<_>>().join(",");
        assert_eq!(taken(&[&many]).len(), MOST);
    }

    #[test]
    fn what_is_said_later_takes_the_place_of_what_was_said_first() {
        let span = |id: u64, took: &str| read(&format!("a;1;{took};{id:016x};")).unwrap();
        let mut spans = vec![span(1, ""), span(2, "5")];
        complete(&mut spans, vec![span(3, "7"), span(1, "9")]);
        assert_eq!(spans, [span(1, "9"), span(2, "5"), span(3, "7")]);
        complete(&mut spans, (4..100).map(|id| span(id, "1")).collect());
        assert_eq!(spans.len(), MOST);
    }
}
