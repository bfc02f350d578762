//! One call of a step, made again as its function's declaration says.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, StatusCode, Uri};
use rekindle_protocol::workflow::{Retries, Step};
use tokio::time::sleep;

use super::arguments::{self, Arguments, StepArrays, Values};
use super::failure::{Failure, KIND, Kind, MESSAGE, Reply};
use super::given::GivenArrays;
use super::packed::Packed;
use super::pieces::Pieces;
use super::{Workflow, service_of};
use crate::access::Access;
use crate::limits;
use crate::message_version;
use crate::placement;
use crate::proxy::{self, Client};
use crate::service::Service;

/// What the requests of steps say as the workflow's does: the trace, and the id.
const PASSED_ON: [HeaderName; 3] = [
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-request-id"),
];
/// Which objects a call has in place of declared data.
const DATA: HeaderName = HeaderName::from_static("rekindle-data");

/// Who asked the workflow.
pub struct Origin {
    pub client: Client,
    pub access: Option<Access>,
    headers: HeaderMap,
}

impl Origin {
    /// `headers`: the request's, once it has an id and its span.
    pub fn new(client: Client, access: Option<Access>, headers: &HeaderMap) -> Origin {
        let named = |name: HeaderName| Some((name.clone(), headers.get(name)?.clone()));
        Origin { client, access, headers: PASSED_ON.into_iter().filter_map(named).collect() }
    }
}

/// The message that a step's function has answered.
pub async fn call(
    workflow: &Workflow,
    (step, arrays): (&Step, StepArrays),
    (request, values): (&arguments::Request, Values<'_>),
    (origin, given): (&Origin, &GivenArrays),
) -> Result<Bytes, Failure> {
    let arguments = Arguments { values, request, arrays };
    let unsendable = |source| Failure::Unsendable { step: step.name.clone(), source };
    let references = arguments.references().map_err(unsendable)?;
    let (mut failures, mut may_be_done) = (0, false);
    loop {
        let message = arguments.message(may_be_done).map_err(unsendable)?;
        let (service, reply) = once(workflow, step, (message, &references), origin).await?;
        if reply.kind == Some(Kind::Result) {
            if let Ok(result) = Packed::read(&reply.body) {
                given.note(&service, &result);
            }
            return Ok(reply.body);
        }
        let again = Duration::from_secs(reply.again.unwrap_or_default());
        if reply.kind.is_none() && reply.status == StatusCode::TOO_MANY_REQUESTS {
            // It waits for a place among those who wait.
            sleep(again.max(limits::PAUSE)).await;
            continue;
        }
        failures += 1;
        if !is_made_again(&reply) || failures > step.retries.max {
            return Err(Failure::Answered { step: step.name.clone(), reply });
        }
        may_be_done |= reply.kind.is_none() && reply.status == StatusCode::BAD_GATEWAY;
        sleep(again.max(delay(&step.retries, failures))).await;
    }
}

/// After the user's exceptions, and where no answer of the function came in time.
fn is_made_again(reply: &Reply) -> bool {
    match reply.kind {
        Some(kind) => matches!(kind, Kind::Raised | Kind::TimedOut),
        None => matches!(reply.status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// Until the next try, after so many.
fn delay(retries: &Retries, failures: u32) -> Duration {
    let longest = Duration::from_millis(retries.longest_ms);
    let factor = retries.backoff.powi(i32::try_from(failures).unwrap_or(i32::MAX) - 1);
    let seconds = Duration::from_millis(retries.initial_ms).as_secs_f64() * factor;
    Duration::try_from_secs_f64(seconds).map_or(longest, |delay| delay.min(longest))
}

/// The service that was asked, and what it has answered.
async fn once(
    workflow: &Workflow,
    step: &Step,
    (message, references): (Pieces, &[String]),
    origin: &Origin,
) -> Result<(Arc<Service>, Reply), Failure> {
    let name = service_of(step);
    let gone = || Failure::Gone { step: step.name.clone(), service: name.clone() };
    let service = workflow.find(&name).ok_or_else(gone)?;
    let mut request = Request::new(Either::Right(message));
    *request.method_mut() = Method::POST;
    // Names of methods are checked when the workflow is deployed.
    *request.uri_mut() = Uri::try_from(format!("/-/call/{}", step.method)).map_err(|_| gone())?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost"));
    headers.insert(CONTENT_TYPE, MESSAGE);
    headers.insert(message_version::HEADER, HeaderValue::from(message_version::OF_ARRAYS));
    headers.extend(origin.headers.clone());
    if let Some(data) = step.data.as_deref().and_then(|data| HeaderValue::from_str(data).ok()) {
        headers.insert(DATA, data);
    }
    if let Some(arrays) = placement::naming(references) {
        headers.insert(placement::HEADER, arrays);
    }
    let answer = proxy::answer_within(service.clone(), origin.client, origin.access.clone(), request).await;
    let (head, body) = answer.into_parts();
    let again = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let reply = match Limited::new(body, limits::MESSAGE).collect().await {
        Ok(body) => Reply {
            status: head.status,
            kind: Kind::of(head.headers.get(&KIND)),
            again,
            body: body.to_bytes(),
        },
        Err(error) => {
            let sentence = format!("the answer of the service {name} did not come whole: {error}");
            Reply { status: StatusCode::BAD_GATEWAY, kind: None, again: None, body: sentence.into() }
        }
    };
    Ok((service, reply))
}

/// The value of a function's message.
pub fn value(step: &Step, message: &Bytes) -> Result<Packed, Failure> {
    Packed::read(message).map_err(|source| Failure::NotUnderstood { step: step.name.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_try_waits_longer_up_to_a_limit() {
        let retries = Retries { max: 9, initial_ms: 100, backoff: 2.0, longest_ms: 1000 };
        let waits: Vec<u128> =
            [1, 2, 4, 5, u32::MAX].map(|failures| delay(&retries, failures).as_millis()).into();
        assert_eq!(waits, [100, 200, 800, 1000, 1000]);
        assert_eq!(delay(&Retries::default(), 1), Duration::ZERO);
    }
}
