//! What becomes of each request, told once its answer is through, and the id that it has on its way.
//!
//! ```text
//!   client ─ X-Request-Id? ─▶ Entry ─ X-Request-Id ─▶ instance
//!          ◀─ X-Request-Id ── Logged: counts the answer ─ through, or dropped ─▶ Record
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
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response};

use crate::refusal::Answer;
use crate::relay::Relay;
use crate::tally::{Reason, Tally};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id of a client's that is taken over.
const LONGEST_ID: usize = 128;

/// Who is told of each request. It must not block.
pub type Access = Arc<dyn Fn(Record) + Send + Sync>;

/// A request that is through.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it came.
    pub time: SystemTime,
    pub service: String,
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
    pub client: IpAddr,
    pub request_id: String,
}

/// A request under way.
pub struct Entry {
    record: Record,
    came_in: Arc<AtomicU64>,
    came: Instant,
    /// Whether it came to the queue.
    waited: bool,
    sent: Option<Instant>,
    tally: Arc<Tally>,
    access: Option<Access>,
}

impl Entry {
    /// Has the request have an id, if it has none that can be taken over.
    pub fn begin<B>(
        (service, tally): (&str, &Arc<Tally>),
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
        let record = Record {
            time: SystemTime::now(),
            service: service.to_string(),
            instance: None,
            method: request.method().to_string(),
            path: request.uri().path().to_string(),
            status: None,
            bytes_in: 0,
            bytes_out: 0,
            queued: Duration::ZERO,
            at_instance: None,
            client: client.to_canonical(),
            request_id,
        };
        let (came, tally) = (Instant::now(), tally.clone());
        Entry { record, came_in: Arc::default(), came, waited: false, sent: None, tally, access }
    }

    /// The client's body, whose bytes count.
    pub fn counted(&self, body: Incoming) -> Counted {
        Counted { body, count: self.came_in.clone() }
    }

    pub fn waited(&mut self, time: Duration) {
        self.waited = true;
        self.record.queued += time;
    }

    /// No instance gets it.
    pub fn rejected(&self, why: impl Into<Reason>) {
        self.tally.rejected(why.into());
    }

    /// It goes to a further instance.
    pub fn retried(&self) {
        self.tally.retries.inc();
    }

    /// It goes to this instance.
    pub fn sent_to(&mut self, instance: &str) {
        self.record.instance = Some(instance.to_string());
        self.sent = Some(Instant::now());
    }

    /// The answer as the client gets it.
    pub fn answered(mut self, mut answer: Answer) -> Response<Logged> {
        self.record.status = Some(answer.status().as_u16());
        if let Ok(value) = HeaderValue::from_str(&self.record.request_id) {
            answer.headers_mut().insert(REQUEST_ID, value);
        }
        answer.map(|body| Logged { body, entry: self })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.tally.answered(self.record.status);
        if self.waited {
            self.tally.queued.observe(self.record.queued.as_secs_f64());
        }
        if self.sent.is_some() {
            self.tally.whole.observe(self.came.elapsed().as_secs_f64());
        }
        let Some(access) = &self.access else { return };
        let mut record = self.record.clone();
        record.bytes_in = self.came_in.load(Ordering::Relaxed);
        record.at_instance = self.sent.map(|sent| sent.elapsed());
        access(record);
    }
}

/// A client's body on its way to an instance.
pub struct Counted {
    body: Incoming,
    count: Arc<AtomicU64>,
}

impl Body for Counted {
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

/// An answer on its way to a client. It is through when this goes.
pub struct Logged {
    body: Either<Relay, Full<Bytes>>,
    entry: Entry,
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
        this.entry.record.bytes_out += length(frame.as_ref());
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

    use hyper::StatusCode;

    use super::*;
    use crate::refusal::say;

    fn id(given: Option<&str>) -> (String, String) {
        let mut request = Request::get("/a?secret");
        if let Some(given) = given {
            request = request.header(REQUEST_ID, given);
        }
        let mut request = request.body(()).unwrap();
        let entry = Entry::begin(("web", &Arc::default()), [127, 0, 0, 1].into(), &mut request, None);
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
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let access: Access = Arc::new(move |record| log.lock().unwrap().push(record));
        let mut request = Request::post("/a?secret").body(()).unwrap();
        let client = "::ffff:192.0.2.1".parse().unwrap();
        let mut entry = Entry::begin(("web", &Arc::default()), client, &mut request, Some(access.clone()));
        entry.waited(Duration::from_millis(2));
        entry.waited(Duration::from_millis(3));
        entry.sent_to("web-1");
        let answer = entry.answered(say(StatusCode::BAD_GATEWAY, "why".to_string()));
        assert!(told.lock().unwrap().is_empty());
        drop(answer);
        let record = told.lock().unwrap().pop().unwrap();
        assert_eq!((record.method.as_str(), record.path.as_str(), record.status), ("POST", "/a", Some(502)));
        assert_eq!((record.instance.as_deref(), record.queued.as_millis()), (Some("web-1"), 5));
        assert_eq!(
            (record.client.to_string(), record.at_instance.is_some()),
            ("192.0.2.1".to_string(), true)
        );
        // Whose client has gone has no status.
        drop(Entry::begin(("web", &Arc::default()), client, &mut request, Some(access)));
        let record = told.lock().unwrap().pop().unwrap();
        assert_eq!((record.status, record.instance, record.at_instance), (None, None, None));
    }
}
