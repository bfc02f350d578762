//! What becomes of each request, told once its answer is through, and the id and the span that it has on its way.
//!
//! ```text
//!   client ─ X-Request-Id?, traceparent? ─▶ Entry ─ X-Request-Id, traceparent ─▶ instance
//!          ◀───────────── X-Request-Id ──── Logged: counts the answer ─ through, or dropped ─▶ Record
//! ```

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use opentelemetry::trace::SpanContext;
use rekindle_protocol::service_name::ServiceName;
use tokio::runtime::Handle;

use crate::late_spans::Reply;
use crate::program_spans::{self, ProgramSpan};
use crate::refusal::Answer;
use crate::relay::Relay;
use crate::tally::{Reason, Tally};
use crate::tunnel;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What clients look up by `GET` about the functions of a service; it is no call of one, and does not count.
const ABOUT: &str = "/-/about";
/// The longest id of a client's that is taken over.
const LONGEST_ID: usize = 128;

/// Who is told of each request.
pub type Access = Arc<dyn Watch>;

/// Nothing of this may block.
pub trait Watch: Send + Sync {
    /// A request has come. If it is to be followed through a trace, which span of that it is; its headers say so from then on.
    fn comes(&self, headers: &mut HeaderMap) -> Option<Span>;

    /// It is through.
    fn through(&self, record: Record);
}

/// A request as a span of a trace.
#[derive(Clone, Debug)]
pub struct Span {
    pub context: SpanContext,
    /// The client's, if it is in a trace already.
    pub parent: Option<SpanContext>,
    /// At which instances it was tried.
    pub tries: Vec<RequestAttempt>,
}

/// The way of a request to one instance. Times are counted from when the request came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAttempt {
    /// When it came to the queue.
    pub since: Duration,
    /// When it had its place, or was refused one.
    pub placed: Duration,
    pub instance: Option<String>,
    pub until: Duration,
    /// What the instance has said of its time with it.
    pub spans: Vec<ProgramSpan>,
    /// What came of an answer whose length was not known, or over a connection that was upgraded.
    pub stream: Option<StreamCounts>,
}

/// An answer that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCounts {
    /// When the first one came, counted from when the request did.
    pub first: Duration,
    pub pieces: u64,
    pub bytes: u64,
}

/// A request that is through.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it came.
    pub time: SystemTime,
    pub service: ServiceName,
    /// The last one that it was sent to.
    pub instance: Option<String>,
    pub method: String,
    /// Without the query, which may have secrets.
    pub path: String,
    /// None if the client had gone before.
    pub status: Option<u16>,
    /// Of bodies.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// How long it waited for an instance.
    pub queued: Duration,
    /// How long the last one had it, until its answer was through.
    pub at_instance: Option<Duration>,
    /// How long all of it took.
    pub took: Duration,
    pub client: IpAddr,
    pub request_id: String,
    /// If it is followed.
    pub span: Option<Span>,
}

/// What a request comes to.
pub struct RequestOrigin<'a> {
    pub service: &'a ServiceName,
    pub tally: &'a Arc<Tally>,
}

/// A request under way.
pub struct Entry {
    record: Record,
    came_in: Arc<AtomicU64>,
    came: Instant,
    /// Whether it came to the queue.
    waited: bool,
    sent: Option<Instant>,
    /// Its answer comes in pieces, of which nobody knows how many.
    is_stream: bool,
    /// Of the service; none if it does not count.
    tally: Option<Arc<Tally>>,
    access: Option<Access>,
    /// What the instance is going to say once the answer is through.
    later: Option<Reply>,
}

impl Entry {
    /// Has the request have an id, if it has none that can be taken over.
    pub fn begin<B>(
        RequestOrigin { service, tally }: RequestOrigin<'_>,
        client: IpAddr,
        request: &mut Request<B>,
        access: Option<Access>,
    ) -> Entry {
        let given = request.headers().get(&REQUEST_ID).and_then(|value| value.to_str().ok());
        let is_good = |id: &&str| (1..=LONGEST_ID).contains(&id.len()) && !id.contains(' ');
        let request_id =
            given.filter(is_good).map_or_else(|| format!("{:032x}", fastrand::u128(..)), Into::into);
        if let Ok(value) = HeaderValue::from_str(&request_id) {
            request.headers_mut().insert(REQUEST_ID, value);
        }
        let span = access.as_ref().and_then(|access| access.comes(request.headers_mut()));
        let record = Record {
            span,
            time: SystemTime::now(),
            service: service.clone(),
            instance: None,
            method: request.method().to_string(),
            path: request.uri().path().to_string(),
            status: None,
            bytes_in: 0,
            bytes_out: 0,
            queued: Duration::ZERO,
            at_instance: None,
            took: Duration::ZERO,
            client: client.to_canonical(),
            request_id,
        };
        let is_about = request.method() == Method::GET && request.uri().path() == ABOUT;
        let (came, tally) = (Instant::now(), (!is_about).then(|| tally.clone()));
        Entry {
            record,
            came_in: Arc::default(),
            came,
            waited: false,
            sent: None,
            is_stream: false,
            tally,
            access,
            later: None,
        }
    }

    /// Whether it is followed through a trace.
    pub fn is_followed(&self) -> bool {
        self.record.span.is_some()
    }

    /// Whether it is among the requests that the service has had.
    pub fn counts(&self) -> bool {
        self.tally.is_some()
    }

    /// The client's body, whose bytes count.
    pub fn counted(&self, body: Incoming) -> CountedBody {
        CountedBody { body, count: self.came_in.clone() }
    }

    pub fn waited(&mut self, time: Duration) {
        self.waited = true;
        self.record.queued += time;
        let now = self.came.elapsed();
        let Some(span) = &mut self.record.span else { return };
        let since = now.saturating_sub(time);
        if let Some(last) = span.tries.last_mut() {
            last.until = since;
        }
        span.tries.push(RequestAttempt {
            since,
            placed: now,
            instance: None,
            until: now,
            spans: Vec::new(),
            stream: None,
        });
    }

    /// No instance gets it.
    pub fn rejected(&self, why: impl Into<Reason>) {
        if let Some(tally) = &self.tally {
            tally.rejected(why.into());
        }
    }

    /// It goes to a further instance.
    pub fn retried(&self) {
        if let Some(tally) = &self.tally {
            tally.retries.inc();
        }
    }

    /// It is carried out, by no instance of its own.
    pub fn begun(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// It goes to this instance.
    pub fn sent_to(&mut self, instance: &str) {
        self.record.instance = Some(instance.to_string());
        self.sent = Some(Instant::now());
        if let Some(last) = self.record.span.as_mut().and_then(|span| span.tries.last_mut()) {
            last.instance = Some(instance.to_string());
        }
    }

    /// The instance that has answered has said this, and says more later.
    pub fn told(&mut self, spans: Vec<ProgramSpan>, later: Option<Reply>) {
        self.later = later;
        if let Some(last) = self.record.span.as_mut().and_then(|span| span.tries.last_mut()) {
            last.spans = spans;
        }
    }

    /// Bytes have come from the client.
    pub fn came_in(&mut self, bytes: u64) {
        self.came_in.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A piece of the answer goes to the client.
    pub fn sent_on(&mut self, bytes: u64) {
        self.record.bytes_out += bytes;
        if !self.is_stream || bytes == 0 {
            return;
        }
        let first = self.came.elapsed();
        if let Some(last) = self.record.span.as_mut().and_then(|span| span.tries.last_mut()) {
            let counts = last.stream.get_or_insert(StreamCounts { first, pieces: 0, bytes: 0 });
            counts.pieces += 1;
            counts.bytes += bytes;
        }
    }

    /// The answer as the client gets it.
    pub fn answered(mut self, mut answer: Answer) -> Response<Logged> {
        self.record.status = Some(answer.status().as_u16());
        let is_upgrade = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        self.is_stream = is_upgrade || answer.body().size_hint().exact().is_none();
        if let Ok(value) = HeaderValue::from_str(&self.record.request_id) {
            answer.headers_mut().insert(REQUEST_ID, value);
        }
        if is_upgrade {
            // How long the connection lasts is no latency.
            self.count();
        }
        let entry = tunnel::hand_over(&mut answer, self);
        answer.map(|body| Logged { body, entry })
    }

    /// It counts among the requests that the service has answered.
    fn count(&mut self) {
        let Some(tally) = self.tally.take() else { return };
        tally.answered(self.record.status);
        if self.waited {
            tally.queued.observe(self.record.queued.as_secs_f64());
        }
        if self.sent.is_some() {
            tally.whole.observe(self.came.elapsed().as_secs_f64());
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.count();
        let took = self.came.elapsed();
        let Some(access) = &self.access else { return };
        let mut record = self.record.clone();
        record.bytes_in = self.came_in.load(Ordering::Relaxed);
        record.took = took;
        record.at_instance = self.sent.map(|sent| sent.elapsed());
        if let Some(last) = record.span.as_mut().and_then(|span| span.tries.last_mut()) {
            last.until = took;
        }
        match (self.later.take(), Handle::try_current()) {
            (Some(later), Ok(runtime)) => {
                let access = access.clone();
                runtime.spawn(async move { access.through(completed(record, later).await) });
            }
            _ => access.through(record),
        }
    }
}

/// The record with what the instance has said once the answer was through.
async fn completed(mut record: Record, later: Reply) -> Record {
    let told = later.await.unwrap_or_default();
    if let Some(last) = record.span.as_mut().and_then(|span| span.tries.last_mut()) {
        program_spans::complete(&mut last.spans, told);
    }
    record
}

/// A client's body on its way to an instance.
pub struct CountedBody {
    body: Incoming,
    count: Arc<AtomicU64>,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        this.count.fetch_add(length(frame.as_ref()), Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer on its way to a client. It is through when this goes, or the [connection](tunnel) that has the entry.
pub struct Logged {
    body: Either<Relay, Full<Bytes>>,
    entry: Option<Entry>,
}

impl Body for Logged {
    type Data = Bytes;
    type Error = <Either<Relay, Full<Bytes>> as Body>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(entry) = &mut this.entry {
            entry.sent_on(length(frame.as_ref()));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn length<E>(frame: Option<&Result<Frame<Bytes>, E>>) -> u64 {
    let data = frame.and_then(|frame| frame.as_ref().ok()?.data_ref());
    data.map_or(0, |data| data.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::refusal::say;

    fn begin<B>(client: IpAddr, request: &mut Request<B>, access: Option<Access>) -> Entry {
        Entry::begin(
            RequestOrigin { service: &ServiceName::new(None, "web"), tally: &Arc::default() },
            client,
            request,
            access,
        )
    }

    /// Keeps what it is told, and follows requests that ask for it.
    #[derive(Default)]
    struct Told(Mutex<Vec<Record>>);

    impl Watch for Told {
        fn comes(&self, headers: &mut HeaderMap) -> Option<Span> {
            headers.remove("follow")?;
            Some(Span { context: SpanContext::NONE, parent: None, tries: Vec::new() })
        }

        fn through(&self, record: Record) {
            self.0.lock().unwrap().push(record);
        }
    }

    fn id(given: Option<&str>) -> (String, String) {
        let mut request = Request::get("/a?secret");
        if let Some(given) = given {
            request = request.header(REQUEST_ID, given);
        }
        let mut request = request.body(()).unwrap();
        let entry = begin([127, 0, 0, 1].into(), &mut request, None);
        let answer = entry.answered(say(StatusCode::OK, String::new()));
        let text = |headers: &hyper::HeaderMap| headers[REQUEST_ID].to_str().unwrap().to_string();
        (text(request.headers()), text(answer.headers()))
    }

    #[test]
    fn a_request_keeps_its_id_or_gets_one() {
        assert_eq!(id(Some("abc-1")), ("abc-1".to_string(), "abc-1".to_string()));
        let long = "x".repeat(LONGEST_ID + 1);
        for given in [None, Some(""), Some("two words"), Some(long.as_str()), Some("caf\u{e9}")] {
            let (sent, answered) = id(given);
            assert_eq!(sent, answered);
            assert!(sent.len() == 32 && sent.bytes().all(|byte| byte.is_ascii_hexdigit()), "{sent}");
        }
        assert_ne!(id(None), id(None));
    }

    #[test]
    fn each_request_is_told_of_once_when_its_answer_goes() {
        let told = Arc::new(Told::default());
        let access: Access = told.clone();
        let mut request = Request::post("/a?secret").body(()).unwrap();
        let client = "::ffff:192.0.2.1".parse().unwrap();
        let mut entry = begin(client, &mut request, Some(access.clone()));
        entry.waited(Duration::from_millis(2));
        entry.waited(Duration::from_millis(3));
        entry.sent_to("web-1");
        let answer = entry.answered(say(StatusCode::BAD_GATEWAY, "why".to_string()));
        assert!(told.0.lock().unwrap().is_empty());
        drop(answer);
        let record = told.0.lock().unwrap().pop().unwrap();
        assert!(record.span.is_none());
        assert_eq!((record.method.as_str(), record.path.as_str(), record.status), ("POST", "/a", Some(502)));
        assert_eq!((record.instance.as_deref(), record.queued.as_millis()), (Some("web-1"), 5));
        assert_eq!(
            (record.client.to_string(), record.at_instance.is_some()),
            ("192.0.2.1".to_string(), true)
        );
        // Whose client has gone has no status.
        drop(begin(client, &mut request, Some(access)));
        let record = told.0.lock().unwrap().pop().unwrap();
        assert_eq!((record.status, record.instance, record.at_instance), (None, None, None));
    }

    #[test]
    fn a_request_that_is_followed_tells_of_its_tries() {
        let told = Arc::new(Told::default());
        let mut request = Request::get("/").header("follow", "yes").body(()).unwrap();
        let client = [127, 0, 0, 1].into();
        let mut entry = begin(client, &mut request, Some(told.clone()));
        assert!(!request.headers().contains_key("follow"));
        for instance in ["web-1", "web-2"] {
            entry.waited(Duration::ZERO);
            entry.sent_to(instance);
            std::thread::sleep(Duration::from_millis(2));
        }
        entry.waited(Duration::from_millis(1));
        drop(entry);
        let tries = told.0.lock().unwrap().pop().unwrap().span.unwrap().tries;
        let instances: Vec<_> = tries.iter().map(|one| one.instance.as_deref()).collect();
        assert_eq!(instances, [Some("web-1"), Some("web-2"), None]);
        assert!(tries.iter().all(|one| one.since <= one.placed && one.placed <= one.until), "{tries:?}");
        assert!(tries.windows(2).all(|pair| pair[0].until == pair[1].since), "{tries:?}");
    }
}
