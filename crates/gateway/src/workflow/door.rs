//! Requests to a workflow: `POST /-/call/NAME`, as of a function's.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::timeout;

use super::Workflow;
use super::arguments;
use super::call::Origin;
use super::failure::{Failure, KIND, Kind, MESSAGE};
use super::given::GivenArrays;
use super::packed::{MessageError, Writer};
use super::run::{Run, run};
use crate::access::{Access, Entry, Logged, RequestOrigin};
use crate::limits;
use crate::policy::Refusal;
use crate::proxy::Client;
use crate::refusal::{Answer, denied, later, say};

const CALL: &str = "/-/call/";
const ABOUT: &str = "/-/about";
const READY: &str = "/-/ready";

/// Answers a request, and tells of it when the answer is through.
pub async fn answer(
    workflow: Arc<Workflow>,
    client: Client,
    access: Option<Access>,
    mut request: Request<Incoming>,
) -> Response<Logged> {
    let asked = RequestOrigin { service: &workflow.name, tally: &workflow.tally };
    let mut entry = Entry::begin(asked, client.ip, &mut request, access.clone());
    if let Some(entrance) = &workflow.entrance
        && let Err(why) = entrance.tenants.admit(&entrance.tenant, request.headers_mut())
    {
        entry.rejected(&why);
        return entry.answered(denied(&workflow.name.name, why));
    }
    let path = request.uri().path();
    let answer = match (request.method(), path.strip_prefix(CALL)) {
        (&Method::POST, Some(method)) if method == workflow.method() => {
            workflow.call((client, access), request, &mut entry).await
        }
        (&Method::GET, _) if path == ABOUT => workflow.about(),
        (&Method::GET, _) if path == READY => result(|writer| {
            writer.boolean(true);
            Ok(())
        }),
        _ => workflow.unknown(request.method(), path),
    };
    entry.answered(answer)
}

/// A place among the requests that are under way.
struct Place<'w>(&'w Workflow);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Workflow {
    async fn call(
        self: &Arc<Self>,
        (client, access): (Client, Option<Access>),
        request: Request<Incoming>,
        entry: &mut Entry,
    ) -> Answer {
        let (came, graph) = (Instant::now(), self.graph());
        let most = graph.most;
        let _place = Place(self);
        if self.in_flight.fetch_add(1, Ordering::AcqRel) >= most {
            self.refused.fetch_add(1, Ordering::Relaxed);
            entry.rejected(&Refusal::Full);
            let sentence =
                format!("as many requests, {most}, are under way in the workflow {} as may be", self.name);
            return later(StatusCode::TOO_MANY_REQUESTS, sentence, Duration::from_secs(1));
        }
        entry.begun();
        let (head, body) = request.into_parts();
        let limit = Duration::from_millis(graph.timeout_ms);
        let whole = async {
            let message = match Limited::new(entry.counted(body), limits::MESSAGE).collect().await {
                Ok(message) => message.to_bytes(),
                Err(error) => {
                    let most = limits::MESSAGE >> 20;
                    let sentence = format!(
                        "the arguments of a workflow did not come, of which {most} MiB are taken: {error}"
                    );
                    return Err(misunderstood(sentence));
                }
            };
            let request = arguments::Request::read(&message).map_err(|error| {
                misunderstood(format!("the arguments of a workflow cannot be read: {error}"))
            })?;
            drop(message);
            let origin = Origin::new(client, access, &head.headers);
            Ok(run(Arc::new(Run {
                workflow: self.clone(),
                graph: graph.clone(),
                request,
                origin,
                given: GivenArrays::default(),
            }))
            .await)
        };
        let mut ended = self.ended.subscribe();
        let outcome = tokio::select! {
            outcome = timeout(limit, whole) => outcome.unwrap_or(Ok(Err(Failure::Late(graph.timeout_ms)))),
            _ = ended.wait_for(|ended| *ended) => Ok(Err(Failure::Ended)),
        };
        self.took(came.elapsed());
        let count = if matches!(outcome, Ok(Ok(_))) { &self.served } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(Ok(message)) => message_answer(message),
            Ok(Err(failure)) => failure.answer(&self.name),
            Err(answer) => answer,
        }
    }

    /// What clients look up of a function: it is not made again.
    fn about(&self) -> Answer {
        result(|writer| {
            writer.map(2)?;
            writer.text("methods")?;
            writer.list(1)?;
            writer.text(self.method())?;
            writer.text("retries")?;
            writer.map(1)?;
            writer.text("max_retries")?;
            writer.number(0);
            Ok(())
        })
    }

    fn unknown(&self, method: &Method, path: &str) -> Answer {
        let sentence = format!(
            "{method} {path} is nothing that the workflow {} answers; send POST {CALL}{}",
            self.name,
            self.method()
        );
        of_kind(say(StatusCode::NOT_FOUND, sentence), Kind::Unknown)
    }
}

fn result(write: impl Fn(&mut Writer) -> Result<(), MessageError>) -> Answer {
    let mut writer = Writer::default();
    match write(&mut writer).and_then(|()| writer.message()) {
        Ok(message) => message_answer(message.whole()),
        Err(error) => misunderstood(error.to_string()),
    }
}

fn message_answer(message: Bytes) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(message)));
    answer.headers_mut().insert(CONTENT_TYPE, MESSAGE);
    of_kind(answer, Kind::Result)
}

fn misunderstood(sentence: String) -> Answer {
    of_kind(say(StatusCode::BAD_REQUEST, sentence), Kind::Misunderstood)
}

fn of_kind(mut answer: Answer, kind: Kind) -> Answer {
    answer.headers_mut().insert(KIND, kind.header());
    answer
}
