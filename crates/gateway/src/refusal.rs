//! What the gateway itself answers: a sentence, and when to come again.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use crate::policy::Refusal;
use crate::relay::Relay;

/// What clients get: an instance's answer, or the gateway's.
pub type Answer = Response<Either<Relay, Full<Bytes>>>;

const SOON: Duration = Duration::from_secs(1);

pub fn refused(service: &str, why: Refusal) -> Answer {
    let (status, again, sentence) = match why {
        Refusal::Full => {
            let sentence = format!("as many requests wait for the service {service:?} as may");
            (StatusCode::TOO_MANY_REQUESTS, SOON, sentence)
        }
        Refusal::TooLong { problem } => {
            let problem = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
            let sentence = format!("no instance of the service {service:?} was free in time{problem}");
            (StatusCode::SERVICE_UNAVAILABLE, SOON, sentence)
        }
        Refusal::NoInstance { problem, again } => {
            let sentence = format!("the service {service:?} has no instance, and gets none: {problem}");
            (StatusCode::SERVICE_UNAVAILABLE, again, sentence)
        }
        Refusal::Draining => {
            let sentence = format!("the service {service:?} takes no more requests");
            (StatusCode::SERVICE_UNAVAILABLE, SOON, sentence)
        }
    };
    let mut answer = say(status, sentence);
    // In whole seconds, and never at once.
    let seconds = again.as_secs() + u64::from(again.subsec_nanos() > 0);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    answer
}

pub fn say(status: StatusCode, sentence: String) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("{sentence}\n"))));
    *answer.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, text);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_refused_knows_when_to_come_again() {
        let again = |why| {
            let answer = refused("web", why);
            (answer.status().as_u16(), answer.headers()[RETRY_AFTER].to_str().unwrap().to_string())
        };
        let none = |ms| Refusal::NoInstance { problem: "gone".into(), again: Duration::from_millis(ms) };
        assert_eq!(again(Refusal::Full), (429, "1".into()));
        assert_eq!(again(Refusal::Draining), (503, "1".into()));
        assert_eq!(again(none(0)), (503, "1".into()));
        assert_eq!(again(none(2001)), (503, "3".into()));
    }
}
