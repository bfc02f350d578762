//! Where the arrays of a request lie, by which an instance is chosen among several GPUs.
//!
//! A request names arrays that were handed on in `Rekindle-Arrays: ID,ID,…`; who calls by the package, and a workflow, do. Where
//! they are the memory daemon knows. It is asked for services alone that have instances on several GPUs.

use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::service::Service;

/// Of requests: the arrays that they have by reference.
pub const HEADER: HeaderName = HeaderName::from_static("rekindle-arrays");
/// The most that are looked up.
pub const MOST: usize = 32;
/// Digits of an array's name.
const DIGITS: usize = 32;
/// A request waits no longer to learn where its arrays are.
const PATIENCE: Duration = Duration::from_millis(100);

/// The GPU where most bytes of a request's arrays lie, if the service may have instances there.
pub async fn near(service: &Service, headers: &HeaderMap) -> Option<String> {
    let arrays = named(headers);
    if arrays.is_empty() {
        return None;
    }
    let source = service.source().filter(|source| !source.gpus.is_empty())?;
    let maker = service.maker().clone();
    let found = timeout(PATIENCE, spawn_blocking(move || maker.locate(&arrays))).await.ok()?;
    found.ok().flatten().filter(|gpu| source.on(gpu).is_some())
}

/// The header that names these arrays, if there are any.
pub fn naming(arrays: &[String]) -> Option<HeaderValue> {
    let named = &arrays[..arrays.len().min(MOST)];
    HeaderValue::from_str(&named.join(",")).ok().filter(|_| !named.is_empty())
}

fn named(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(HEADER).iter().filter_map(|value| value.to_str().ok());
    let is_name = |word: &&str| word.len() == DIGITS && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(is_name)
        .take(MOST)
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_arrays_are_taken_and_nothing_else() {
        let (first, second) = ("0123456789abcdef0123456789abcdef", "f".repeat(32));
        let mut headers = HeaderMap::new();
        headers.append(HEADER, HeaderValue::from_str(&format!("{first}, x,")).unwrap());
        headers.append(HEADER, naming(&[second.clone(), "short".into()]).unwrap());
        assert_eq!(named(&headers), [first, &second]);
        let many = vec![second; MOST + 3];
        let headers = HeaderMap::from_iter([(HEADER, naming(&many).unwrap())]);
        assert_eq!(named(&headers).len(), MOST);
        assert!(naming(&[]).is_none() && named(&HeaderMap::new()).is_empty());
    }
}
