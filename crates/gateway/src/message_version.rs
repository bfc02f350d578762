//! Which messages of calls an instance understands: a call that needs a later version than its program was deployed with is not sent.
//!
//! ```text
//!   caller ─ Rekindle-Message: 2 ─▶ gateway ─▶ instance, if its image was deployed with 2 or later
//!          ◀─ 409, Rekindle-Message: 1 ──┘      else: what it understands
//! ```
//!
//! Programs that were deployed before there were versions cannot say so themselves. Those that know of versions refuse in the same way.

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::refusal::{Answer, say};

/// Of requests: the version that the message needs, if that is not the first; of an answer: the latest that is understood.
pub const HEADER: HeaderName = HeaderName::from_static("rekindle-message");
/// What a program understands of which nobody has said more.
pub const UNTOLD: u32 = 1;
/// What says whose arrays a call has, and whether they are held.
pub const OF_ARRAYS: u32 = 2;

/// The version that a request's message needs. What is no number is for the program to meet.
pub fn needed(headers: &HeaderMap) -> u32 {
    let said = headers.get(HEADER).and_then(|value| value.to_str().ok());
    said.and_then(|text| text.trim().parse().ok()).unwrap_or(UNTOLD)
}

/// The answer to a request whose message the instance would not understand.
pub fn refusal(service: &str, needed: u32, understood: u32) -> Option<Answer> {
    (needed > understood).then(|| {
        let sentence = format!(
            "the service {service:?} was deployed by a package that understands messages up to version {understood}, and the call needs \
             version {needed}; deploy it again"
        );
        let mut answer = say(StatusCode::CONFLICT, sentence);
        answer.headers_mut().insert(HEADER, HeaderValue::from(understood));
        answer
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_a_later_version_is_refused() {
        let needs =
            |value: &'static str| needed(&HeaderMap::from_iter([(HEADER, HeaderValue::from_static(value))]));
        assert_eq!(
            (needed(&HeaderMap::new()), needs("2"), needs(" 3 "), needs("x"), needs("-1")),
            (1, 2, 3, 1, 1)
        );
        assert!(refusal("web", 1, 1).is_none() && refusal("web", 1, 2).is_none());
        let answer = refusal("web", 2, 1).unwrap();
        assert_eq!((answer.status(), answer.headers()[HEADER].as_bytes()), (StatusCode::CONFLICT, &b"1"[..]));
    }
}
