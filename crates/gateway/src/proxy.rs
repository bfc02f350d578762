//! One request from a client to an instance, and the answer back.
//!
//! A request that no instance was sent goes to the next one. One that was sent, and of whose answer nothing came, is sent
//! once more if it is of a kind that changes nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http_body_util::Either;
use hyper::body::{Body as _, Incoming};
use hyper::header::HeaderValue;
use hyper::upgrade::{OnUpgrade, on};
use hyper::{Method, Request, Response, StatusCode, Version};

use crate::access::{Access, Entry, Logged, RequestOrigin};
use crate::canary::Canary;
use crate::headers;
use crate::instance_slot::InstanceSlot;
use crate::late_spans::{self, Question};
use crate::limits;
use crate::message_version;
use crate::named_data::{self, beside};
use crate::placement;
use crate::policy::{Coming, Outcome};
use crate::program_spans;
use crate::refusal::{Answer, denied, refused, say};
use crate::relay::Relay;
use crate::service::{Service, Verdict};
use crate::tunnel;
use crate::upstream::{Body, Connection, Failure};
use crate::workflow::Pieces;

/// Who asks.
#[derive(Clone, Copy)]
pub struct Client {
    pub ip: IpAddr,
    /// It speaks TLS.
    pub is_secure: bool,
    /// What it says of the way that requests came is believed.
    pub is_proxy: bool,
}

/// Answers a request, and tells of it when the answer is through.
pub async fn answer(
    service: Arc<Service>,
    client: Client,
    access: Option<Access>,
    mut request: Request<Incoming>,
) -> Response<Logged> {
    headers::join_cookies(request.headers_mut());
    let fields = request.headers().len();
    let asked = RequestOrigin { service: &service.name, tally: service.tally() };
    let mut entry = Entry::begin(asked, client.ip, &mut request, access);
    // HTTP/2 has a limit of the bytes of a head alone.
    if fields > limits::HEADERS {
        let sentence = format!("the request has {fields} headers; send at most {}", limits::HEADERS);
        return entry.answered(say(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, sentence));
    }
    let answer = attempt(service, client, request, &mut entry).await;
    entry.answered(answer)
}

async fn attempt(
    service: Arc<Service>,
    client: Client,
    mut request: Request<Incoming>,
    entry: &mut Entry,
) -> Answer {
    if let Some(entrance) = &service.entrance
        && let Err(why) = entrance.tenants.admit(&entrance.tenant, request.headers_mut())
    {
        entry.rejected(&why);
        return denied(&service.name.name, why);
    }
    if request.method() == Method::CONNECT {
        let sentence = format!("the service {:?} makes no connections to elsewhere", service.name.name);
        return say(StatusCode::METHOD_NOT_ALLOWED, sentence);
    }
    let upgrade = headers::wanted_upgrade(request.headers());
    let upgraded = upgrade.is_some().then(|| on(&mut request));
    let request = forwarded(request, client, upgrade.as_ref(), entry);
    deliver(service, request, upgraded, entry).await
}

/// Answers a request of the gateway's own, and tells of it as of any other. Its client has been let in.
pub async fn answer_within(
    service: Arc<Service>,
    client: Client,
    access: Option<Access>,
    mut request: Request<Body>,
) -> Response<Logged> {
    let asked = RequestOrigin { service: &service.name, tally: service.tally() };
    let mut entry = Entry::begin(asked, client.ip, &mut request, access);
    let answer = deliver(service, request, None, &mut entry).await;
    entry.answered(answer)
}

/// Has an instance answer a request that is as that gets it.
async fn deliver(
    service: Arc<Service>,
    request: Request<Body>,
    upgraded: Option<OnUpgrade>,
    entry: &mut Entry,
) -> Answer {
    let came = Instant::now();
    let mut canary = service.canary().filter(|canary| canary.takes_next());
    let asked = canary.as_ref().map_or(&service, |canary| &canary.service);
    let mut data = match named_data::wanted(asked, request.headers()) {
        Ok(urls) => urls,
        Err(refusal) => return refusal.answer(),
    };
    let needed = message_version::needed(request.headers());
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let mut again = (is_safe && request.body().is_end_stream()).then(|| copy(&request));
    let near = placement::near(asked, request.headers()).await;
    let (mut unsent, counts) = (Some(request), entry.counts());
    let (mut deadline, mut coming) = (came + service.plan().timeout(), Coming::Anew);
    loop {
        let asked = canary.as_ref().map_or(&service, |canary| &canary.service);
        let begun = Instant::now();
        let place = asked.acquire_slot(deadline, coming, (counts, near.clone()));
        let verdict = beside(place, named_data::fetch(asked.maker(), std::mem::take(&mut data))).await;
        entry.waited(begun.elapsed());
        let mut slot = match verdict {
            Ok(Verdict::Sent(slot)) => slot,
            Err(refusal) => return refusal.answer(),
            // The others have it instead.
            Ok(Verdict::Refused(_)) if canary.take().is_some() => continue,
            Ok(Verdict::Refused(why)) => {
                entry.rejected(&why);
                return refused(&service.name.name, why);
            }
        };
        let Some(request) = unsent.take().or_else(|| again.take()) else {
            return say(StatusCode::BAD_GATEWAY, "the request was sent already".to_string());
        };
        slot.counts = counts;
        // Instances of one service may be of several images, while one is rolled out.
        if let Some(answer) = message_version::refusal(&service.name.name, needed, slot.upstream.message) {
            slot.outcome = Outcome::Unheard;
            return answer;
        }
        let name = slot.upstream.name.clone();
        entry.sent_to(&name);
        match slot.upstream.clone().send(request).await {
            Ok((mut response, connection)) => {
                let told = program_spans::take(response.headers_mut());
                let (question, later) = late_spans::take(response.headers_mut(), entry.is_followed()).unzip();
                entry.told(told, later);
                if counts {
                    slot.service.took(came.elapsed());
                }
                // Its client may ask again at once, and is to find another instance.
                if response.status().is_server_error()
                    && let Some(why) = slot.look_for_fault().await
                {
                    stop(canary.as_ref(), || why.to_string());
                }
                if response.status() == StatusCode::BAD_GATEWAY {
                    stop(canary.as_ref(), || format!("the instance {name:?} answered 502"));
                }
                return passed_on(response, (slot, connection), upgraded, question);
            }
            Err(Failure::Refused { error, request }) => {
                unsent = Some(*request);
                let why = format!("the instance {name:?} does not listen any more: {error}");
                stop(canary.as_ref(), || why.clone());
                slot.service.act(|policy, now| policy.unreachable(slot.instance, why, now));
                coming = Coming::Again { avoid: canary.take().is_none().then_some(slot.instance) };
                entry.retried();
            }
            Err(Failure::Unreachable(error)) => {
                slot.outcome = Outcome::Broken;
                let sentence = format!("the instance {name:?} cannot be reached: {error}");
                stop(canary.as_ref(), || sentence.clone());
                return say(StatusCode::BAD_GATEWAY, sentence);
            }
            Err(Failure::Lost(error)) => {
                log::info!("a request to the instance {name:?} was lost: {error}");
                let sentence =
                    format!("the instance {name:?} ended the connection before it answered: {error}");
                stop(canary.as_ref(), || sentence.clone());
                let avoid = canary.take().is_none().then_some(slot.instance);
                if again.is_none() {
                    slot.outcome = Outcome::Broken;
                    return say(StatusCode::BAD_GATEWAY, sentence);
                }
                // How long the instance had it is no time that it has waited.
                (deadline, coming) = (Instant::now() + service.plan().timeout(), Coming::Again { avoid });
                entry.retried();
            }
        }
    }
}

/// A request has failed that went to a canary, if it did.
fn stop(canary: Option<&Arc<Canary>>, why: impl Fn() -> String) {
    if let Some(canary) = canary {
        canary.stop(why());
    }
}

/// A client's request as an instance gets it.
fn forwarded(
    request: Request<Incoming>,
    client: Client,
    upgrade: Option<&HeaderValue>,
    entry: &Entry,
) -> Request<Body> {
    let (mut head, body) = request.into_parts();
    headers::forward(&mut head.headers, &head.uri, client, upgrade.cloned());
    head.uri = headers::target(&head.uri);
    head.version = Version::HTTP_11;
    let body = if body.is_end_stream() {
        Either::Right(Pieces::default())
    } else {
        Either::Left(entry.counted(body))
    };
    Request::from_parts(head, body)
}

/// The same without a body.
fn copy(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Either::Right(Pieces::default()));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

fn passed_on(
    mut response: Response<Incoming>,
    (slot, connection): (InstanceSlot, Connection),
    upgraded: Option<OnUpgrade>,
    question: Option<Question>,
) -> Answer {
    let upgraded = upgraded.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS);
    let server = upgraded.is_some().then(|| on(&mut response));
    let (mut head, body) = response.into_parts();
    headers::answer(&mut head.headers, upgraded.is_some());
    head.version = Version::HTTP_11;
    if let (Some(client), Some(server)) = (upgraded, server) {
        let mut answer = Response::from_parts(head, Either::Right(Default::default()));
        tunnel::begin((client, server), (slot, question), &mut answer);
        return answer;
    }
    Response::from_parts(head, Either::Left(Relay::new(body, (slot, connection), question)))
}
