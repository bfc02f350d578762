//! Objects that a request names in place of declared data, in `Rekindle-Data: NAME=URL`: what it may name, and whether that is there.
//!
//! The daemon's credentials fetch them, so that only those are looked at that the declaration allows.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use rekindle_protocol::data::{Problem, ProblemKind};
use rekindle_protocol::data_slot::{DataSlot, is_name, is_plain};
use tokio::sync::oneshot;

use crate::maker::Maker;
use crate::refusal::{Answer, say};
use crate::service::{Service, Verdict};

/// Of requests; in an answer it says which kind of refusal that is.
pub const HEADER: HeaderName = HeaderName::from_static("rekindle-data");

/// Why a request does not have the object that it names.
#[derive(Debug, PartialEq, Eq)]
pub enum DataRefusal {
    Malformed(String),
    /// There is no such slot.
    Unknown(String),
    NotAllowed(String),
    Missing(String),
}

impl DataRefusal {
    pub fn answer(self) -> Answer {
        let (status, kind, sentence) = match self {
            DataRefusal::Malformed(sentence) => (StatusCode::BAD_REQUEST, "malformed", sentence),
            DataRefusal::Unknown(sentence) => (StatusCode::NOT_FOUND, "unknown", sentence),
            DataRefusal::NotAllowed(sentence) => (StatusCode::FORBIDDEN, "not-allowed", sentence),
            DataRefusal::Missing(sentence) => (StatusCode::NOT_FOUND, "missing", sentence),
        };
        let mut answer = say(status, sentence);
        answer.headers_mut().insert(HEADER, HeaderValue::from_static(kind));
        answer
    }

    /// What the store says of an object; what may pass is the instance's to meet.
    fn of(problem: Problem) -> Option<DataRefusal> {
        match problem.kind {
            ProblemKind::NotFound => Some(DataRefusal::Missing(problem.sentence)),
            ProblemKind::Access => Some(DataRefusal::NotAllowed(problem.sentence)),
            ProblemKind::Name => Some(DataRefusal::Malformed(problem.sentence)),
            _ => None,
        }
    }
}

/// The URLs that a request names, each of which the service allows for its slot.
pub fn wanted(service: &Service, headers: &HeaderMap) -> Result<Vec<String>, DataRefusal> {
    if !headers.contains_key(HEADER) {
        return Ok(Vec::new());
    }
    let slots = service.source().map(|source| source.data_slots).unwrap_or_default();
    named(&service.name.name, &slots, headers)
}

fn named(service: &str, slots: &[DataSlot], headers: &HeaderMap) -> Result<Vec<String>, DataRefusal> {
    let mut urls = BTreeMap::new();
    for value in headers.get_all(HEADER) {
        let text = value.to_str().map_err(|_| malformed(&String::from_utf8_lossy(value.as_bytes())))?;
        for pair in text.split(',').map(str::trim) {
            let (name, url) = pair.split_once('=').ok_or_else(|| malformed(pair))?;
            if !is_name(name) || !is_plain(url) {
                return Err(malformed(pair));
            }
            check(service, slots, name, url)?;
            if urls.insert(name, url).is_some() {
                let sentence = format!("Rekindle-Data names {name:?} twice; name one object for it");
                return Err(DataRefusal::Malformed(sentence));
            }
        }
    }
    Ok(urls.into_values().map(str::to_string).collect())
}

fn malformed(pair: &str) -> DataRefusal {
    DataRefusal::Malformed(format!(
        "Rekindle-Data is {pair:?}, which names no object; send NAME=URL, such as weights=s3://BUCKET/KEY, without `..` and with \
         blanks, commas and the like as %20, %2C"
    ))
}

fn check(service: &str, slots: &[DataSlot], name: &str, url: &str) -> Result<(), DataRefusal> {
    let of_name = || slots.iter().filter(|slot| slot.name == name);
    if of_name().next().is_none() {
        return Err(DataRefusal::Unknown(format!("the service {service:?} has no declared data {name:?}")));
    }
    if of_name().any(|slot| slot.allows(url)) {
        return Ok(());
    }
    let allowed: Vec<&str> = of_name().filter_map(|slot| slot.beginning.as_deref()).collect();
    Err(DataRefusal::NotAllowed(match allowed.as_slice() {
        [] => format!(
            "the service {service:?} has no other data than its own as {name:?}; its declaration allows another by `override`"
        ),
        _ => format!(
            "the service {service:?} may not have {url} as {name:?}; name an object whose URL begins with {}",
            allowed.join(" or ")
        ),
    }))
}

/// Has the objects fetched, and says which of them cannot be had.
pub async fn fetch(maker: &Arc<dyn Maker>, urls: Vec<String>) -> Option<DataRefusal> {
    let ask = |url: String| {
        let (maker, (sender, receiver)) = (maker.clone(), oneshot::channel());
        // A store that is slow holds up nothing else that may block. Without a thread nobody says that it cannot be had.
        let thread = std::thread::Builder::new().name("named data".into());
        let _ = thread.spawn(move || sender.send(maker.fetch_data(&url)));
        receiver
    };
    let asked: Vec<_> = urls.into_iter().map(ask).collect();
    for answer in asked {
        if let Some(refusal) = answer.await.ok().flatten().and_then(DataRefusal::of) {
            return Some(refusal);
        }
    }
    None
}

/// A place at an instance, once it is known that the data can be had. Who has no place in the queue has nothing fetched.
pub async fn beside(
    place: impl Future<Output = Verdict>,
    data: impl Future<Output = Option<DataRefusal>>,
) -> Result<Verdict, DataRefusal> {
    let (mut place, mut data) = (pin!(place), pin!(data));
    let (verdict, refusal) = tokio::select! {
        biased;
        verdict = &mut place => match verdict {
            Verdict::Refused(_) => (Some(verdict), None),
            Verdict::Sent(_) => (Some(verdict), data.await),
        },
        refusal = &mut data => (None, refusal),
    };
    match (refusal, verdict) {
        (Some(refusal), _) => Err(refusal),
        (None, Some(verdict)) => Ok(verdict),
        (None, None) => Ok(place.await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(values: &[&str]) -> Result<Vec<String>, DataRefusal> {
        let slots =
            ["weights=s3://models/", "weights=file:///srv/", "tokens"].map(|slot| slot.parse().unwrap());
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        named("web", &slots, &headers)
    }

    #[test]
    fn a_request_names_what_its_service_allows() {
        assert_eq!(asked(&[]), Ok(vec![]));
        for url in ["s3://models/a=b", "file:///srv/a"] {
            assert_eq!(asked(&[&format!(" weights={url} ")]), Ok(vec![url.to_string()]));
        }
    }

    #[test]
    fn whoever_names_something_else_is_told_why_not() {
        let kind = |values: &[&str]| {
            let answer = asked(values).unwrap_err().answer();
            (answer.status().as_u16(), answer.headers()[HEADER].to_str().unwrap().to_string())
        };
        let (malformed, unknown, not_allowed) =
            ((400, "malformed".into()), (404, "unknown".into()), (403, "not-allowed".into()));
        for value in [
            "",
            "weights",
            "weights=",
            "weights=models/a",
            "=s3://models/a",
            "wei ghts=s3://models/a",
            "ä=s3://models/a",
        ] {
            assert_eq!(kind(&[value]), malformed, "{value}");
        }
        assert_eq!(kind(&["weights=s3://models/../secret/a"]), malformed);
        assert_eq!(kind(&["weights=s3://models/a,"]), malformed);
        assert_eq!(kind(&["weights=s3://models/a, weights=s3://models/b"]), malformed);
        assert_eq!(kind(&["weights=s3://models/a", "weights=s3://models/b"]), malformed);
        assert_eq!(kind(&["other=s3://models/a"]), unknown);
        assert_eq!(kind(&["weights=s3://secret/a"]), not_allowed);
        assert_eq!(kind(&["weights=s3://models/a,tokens=s3://models/a"]), not_allowed);
    }
}
