//! Why a workflow comes to no result, and what its client is told.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use rekindle_protocol::service_name::ServiceName;

use super::packed::MessageError;
use crate::refusal::{Answer, say};

/// What kind of answer of a function it is, so that it is not taken for a gateway's.
pub const KIND: HeaderName = HeaderName::from_static("x-rekindle");
/// Which step has failed, percent-encoded.
const STEP: HeaderName = HeaderName::from_static("x-rekindle-step");
/// What messages are.
pub const MESSAGE: HeaderValue = HeaderValue::from_static("application/x-rekindle");

/// What an instance says of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Result,
    Raised,
    TimedOut,
    Unknown,
    Untaken,
    Misunderstood,
}

impl Kind {
    const ALL: [(Kind, &'static str); 6] = [
        (Kind::Result, "result"),
        (Kind::Raised, "raised"),
        (Kind::TimedOut, "timeout"),
        (Kind::Unknown, "unknown"),
        (Kind::Untaken, "untaken"),
        (Kind::Misunderstood, "misunderstood"),
    ];

    pub fn of(value: Option<&HeaderValue>) -> Option<Kind> {
        let word = value?.to_str().ok()?;
        Self::ALL.into_iter().find(|(_, name)| *name == word).map(|(kind, _)| kind)
    }

    pub fn header(self) -> HeaderValue {
        let name = Self::ALL.into_iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name);
        HeaderValue::from_static(name)
    }
}

/// What a step's service has answered, whole.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    /// None: the gateway itself has answered, or a program that has no functions.
    pub kind: Option<Kind>,
    /// Seconds.
    pub again: Option<u64>,
    pub body: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the step {step:?} has failed")]
    Answered { step: String, reply: Reply },
    #[error("{}", gone(step, service))]
    Gone { step: String, service: ServiceName },
    #[error("what the step {step:?} is to have cannot be sent: {source}")]
    Unsendable { step: String, source: MessageError },
    #[error("what the step {step:?} has returned cannot be handed on: {source}")]
    NotUnderstood { step: String, source: MessageError },
    #[error(
        "the step {step:?} is one call for each element, and what it comes after gave {what}; return a list or a tuple there"
    )]
    NoList { step: String, what: MessageError },
    #[error(
        "the step {step:?} has one element of each list in a call, and they have {lengths:?}; return lists of one length"
    )]
    Lengths { step: String, lengths: Vec<usize> },
    #[error("it took longer than {0} ms; raise its `timeout`, or have its steps do less")]
    Late(u64),
    #[error("it was ended, for the workflow was removed")]
    Ended,
}

pub fn gone(step: &str, service: &ServiceName) -> String {
    format!("there is no service {service} any more, which the step {step:?} calls; deploy its app again")
}

impl Failure {
    pub fn step(&self) -> Option<&str> {
        match self {
            Failure::Answered { step, .. }
            | Failure::Gone { step, .. }
            | Failure::Unsendable { step, .. }
            | Failure::NotUnderstood { step, .. }
            | Failure::NoList { step, .. }
            | Failure::Lengths { step, .. } => Some(step),
            Failure::Late(_) | Failure::Ended => None,
        }
    }

    /// What the client gets: of a step that has answered its answer.
    pub fn answer(self, workflow: &ServiceName) -> Answer {
        let step = self.step().map(str::to_string);
        let mut answer = match self {
            Failure::Answered { step, reply } => reply.answer(workflow, &step),
            Failure::Gone { .. } => {
                let mut answer = sentence(StatusCode::SERVICE_UNAVAILABLE, None, workflow, &self);
                answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                answer
            }
            Failure::Late(_) => sentence(StatusCode::GATEWAY_TIMEOUT, Some(Kind::TimedOut), workflow, &self),
            Failure::Ended => sentence(StatusCode::BAD_GATEWAY, None, workflow, &self),
            _ => sentence(StatusCode::BAD_REQUEST, Some(Kind::Misunderstood), workflow, &self),
        };
        if let Some(value) = step.and_then(|step| HeaderValue::from_str(&encoded(&step)).ok()) {
            answer.headers_mut().insert(STEP, value);
        }
        answer
    }
}

impl Reply {
    /// An exception goes to the client as it is; a sentence says where it belongs.
    fn answer(self, workflow: &ServiceName, step: &str) -> Answer {
        let mut answer = match self.kind {
            Some(Kind::Raised) => {
                let mut answer = Response::new(Either::Right(Full::from(self.body)));
                *answer.status_mut() = self.status;
                answer.headers_mut().insert(CONTENT_TYPE, MESSAGE);
                answer
            }
            _ => {
                let said = String::from_utf8_lossy(&self.body);
                say(self.status, format!("in the step {step:?} of the workflow {workflow}: {}", said.trim()))
            }
        };
        if let Some(kind) = self.kind {
            answer.headers_mut().insert(KIND, kind.header());
        }
        if let Some(seconds) = self.again {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}

fn sentence(status: StatusCode, kind: Option<Kind>, workflow: &ServiceName, why: &Failure) -> Answer {
    let mut answer = say(status, format!("the workflow {workflow} has no result: {why}"));
    if let Some(kind) = kind {
        answer.headers_mut().insert(KIND, kind.header());
    }
    answer
}

/// As a header can have it.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(answer: &Answer, name: &HeaderName) -> String {
        answer.headers().get(name).map(|value| value.to_str().unwrap().to_string()).unwrap_or_default()
    }

    #[test]
    fn a_step_s_answer_is_its_workflow_s_and_names_it() {
        let workflow = ServiceName::new(None, "app-flow");
        let reply = |kind| Reply {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind,
            again: None,
            body: Bytes::from_static(b"RKM1..."),
        };
        let step = || "größer als 2".to_string();
        let raised = Failure::Answered { step: step(), reply: reply(Some(Kind::Raised)) }.answer(&workflow);
        assert_eq!((raised.status().as_u16(), text(&raised, &KIND)), (500, "raised".into()));
        assert_eq!(text(&raised, &CONTENT_TYPE), "application/x-rekindle");
        assert_eq!(text(&raised, &STEP), "gr%C3%B6%C3%9Fer%20als%202");
        let late = Failure::Late(7).answer(&workflow);
        assert_eq!(
            (late.status().as_u16(), text(&late, &KIND), text(&late, &STEP)),
            (504, "timeout".into(), String::new())
        );
        let refused = Reply { status: StatusCode::TOO_MANY_REQUESTS, again: Some(3), ..reply(None) };
        let refused = Failure::Answered { step: step(), reply: refused }.answer(&workflow);
        assert_eq!((refused.status().as_u16(), text(&refused, &RETRY_AFTER)), (429, "3".into()));
        assert!(!refused.headers().contains_key(KIND));
    }

    #[test]
    fn kinds_are_what_instances_say() {
        for (kind, name) in Kind::ALL {
            assert_eq!(Kind::of(Some(&kind.header())), Some(kind));
            assert_eq!(kind.header(), name);
        }
        assert_eq!(Kind::of(Some(&HeaderValue::from_static("other"))), None);
        assert_eq!(Kind::of(None), None);
    }
}
