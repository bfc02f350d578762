//! What the gateway itself answers: a sentence, and when to come again.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};

use crate::policy::Refusal;
use crate::relay::Relay;
use crate::tenant::Denial;

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
    later(status, sentence, again)
}

/// Answers who is not let in.
pub fn denied(service: &str, why: Denial) -> Answer {
    let challenged = |sentence, challenge| {
        let mut answer = say(StatusCode::UNAUTHORIZED, sentence);
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        answer
    };
    match why {
        Denial::NoToken => challenged(
            format!("the service {service:?} needs a token: send `Authorization: Bearer TOKEN`"),
            r#"Bearer realm="rekindle""#,
        ),
        Denial::UnknownToken => challenged(
            format!("the token for the service {service:?} is not known, or was revoked; send another one"),
            r#"Bearer realm="rekindle", error="invalid_token""#,
        ),
        Denial::ForeignToken => say(
            StatusCode::FORBIDDEN,
            format!("the token is of another tenant than the service {service:?}; send one of its tenant's"),
        ),
        Denial::TooOften(again) => later(
            StatusCode::TOO_MANY_REQUESTS,
            format!("requests to services of the tenant of {service:?} come more often than they may"),
            again,
        ),
    }
}

/// Says when to come again: in whole seconds, and never at once.
pub fn later(status: StatusCode, sentence: String, again: Duration) -> Answer {
    let mut answer = say(status, sentence);
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

    #[test]
    fn whoever_is_not_let_in_knows_what_is_wanted() {
        let seen = |why, header| {
            let answer = denied("web", why);
            let header = answer.headers().get(header).map(|value| value.to_str().unwrap().to_string());
            (answer.status().as_u16(), header.unwrap_or_default())
        };
        assert_eq!(seen(Denial::NoToken, WWW_AUTHENTICATE), (401, r#"Bearer realm="rekindle""#.into()));
        let (status, challenge) = seen(Denial::UnknownToken, WWW_AUTHENTICATE);
        assert!(status == 401 && challenge.contains("invalid_token"), "{challenge}");
        assert_eq!(seen(Denial::ForeignToken, WWW_AUTHENTICATE), (403, String::new()));
        assert_eq!(seen(Denial::TooOften(Duration::from_millis(2001)), RETRY_AFTER), (429, "3".into()));
    }
}
