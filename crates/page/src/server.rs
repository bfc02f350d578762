//! What is answered to whom.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::server::conn::http1::Builder as Connection;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::files;
use crate::hosts::Hosts;
use crate::state::{Collect, State};

/// How many connections there are at once; others wait.
const ROOM: usize = 64;
/// How long a request's head may take, and a connection rest between two.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// How long a connection may last: whoever looks makes another one.
const LIFE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(100);

/// Nothing is loaded from elsewhere, nothing stands within the page, and no other page has it within itself.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

type Answer = Response<Full<Bytes>>;

/// The text that Prometheus reads.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is collected of the daemon.
pub struct Documents {
    /// What the page shows, as JSON.
    pub state: Collect,
    /// What is counted, as OpenMetrics.
    pub metrics: Collect,
}

struct States {
    state: State,
    metrics: State,
}

/// Serves the page for as long as the process lives: to those who ask for one of these hosts.
pub fn serve(listener: StdListener, hosts: Hosts, Documents { state, metrics }: Documents) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let entered = runtime.enter();
    let listener = TcpListener::from_std(listener)?;
    drop(entered);
    let states = Arc::new(States { state: State::new(state), metrics: State::new(metrics) });
    let run = move || runtime.block_on(welcome(listener, Arc::new(hosts), states));
    std::thread::Builder::new().name("page".into()).spawn(run)?;
    Ok(())
}

async fn welcome(listener: TcpListener, hosts: Arc<Hosts>, states: Arc<States>) {
    let room = Arc::new(Semaphore::new(ROOM));
    loop {
        let place = room.clone().acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("the next one who looks at the page waits: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (hosts, states) = (hosts.clone(), states.clone());
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (hosts, states) = (hosts.clone(), states.clone());
                async move { Ok::<_, Infallible>(answer(&request, &hosts, &states).await) }
            });
            let mut builder = Connection::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(16 << 10);
            let ended = timeout(LIFE, builder.serve_connection(TokioIo::new(stream), service)).await;
            if let Ok(Err(error)) = ended {
                log::debug!("a connection to the page ended: {error}");
            }
            drop(place);
        });
    }
}

async fn answer<B>(request: &Request<B>, hosts: &Hosts, states: &States) -> Answer {
    let named = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let named = named.or_else(|| request.headers().get(HOST).map(HeaderValue::as_bytes));
    let named = named.and_then(|host| std::str::from_utf8(host).ok()).unwrap_or_default();
    if !hosts.have(named) {
        let sentence = "this machine is not known by that name; use its address, or have the daemon know the name by \
                        --page-names";
        return say(StatusCode::MISDIRECTED_REQUEST, sentence);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = say(StatusCode::METHOD_NOT_ALLOWED, "the page can only be read");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match request.uri().path() {
        "/state.json" => collected(&states.state, "application/json").await,
        "/metrics" => collected(&states.metrics, OPEN_METRICS).await,
        path => match files::find(path) {
            Some(file) => give(StatusCode::OK, file.kind, Bytes::from_static(file.text.as_bytes())),
            None => say(
                StatusCode::NOT_FOUND,
                "there is nothing here; the page is at /, its state at /state.json, metrics at /metrics",
            ),
        },
    }
}

async fn collected(state: &State, kind: &'static str) -> Answer {
    match state.get().await {
        Some(document) => give(StatusCode::OK, kind, document),
        None => {
            let sentence = "this could not be collected; see the daemon's log";
            say(StatusCode::INTERNAL_SERVER_ERROR, sentence)
        }
    }
}

fn say(status: StatusCode, sentence: &str) -> Answer {
    give(status, "text/plain; charset=utf-8", Bytes::from(format!("{sentence}\n")))
}

fn give(status: StatusCode, kind: &'static str, content: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(content));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use http_body_util::BodyExt;

    use super::*;

    fn ask(method: &str, path: &str, host: &str) -> (u16, hyper::HeaderMap, String) {
        let request = Request::builder().method(method).uri(path).header(HOST, host).body(()).unwrap();
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let state = State::new(Box::new(|| Some("{}".to_string())));
            let metrics = State::new(Box::new(|| None));
            let answer = answer(&request, &Hosts::new([]), &States { state, metrics }).await;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            (head.status.as_u16(), head.headers, String::from_utf8(body.to_vec()).unwrap())
        })
    }

    #[test]
    fn it_can_be_read_by_who_means_this_machine() {
        let (status, headers, body) = ask("GET", "/", "127.0.0.1:7070");
        assert_eq!((status, headers[CONTENT_TYPE].to_str().unwrap()), (200, "text/html; charset=utf-8"));
        assert!(body.starts_with("<!doctype html>"));
        let (status, headers, body) = ask("GET", "/state.json?x", "localhost");
        assert_eq!((status, body.as_str()), (200, "{}"));
        assert_eq!(headers[CONTENT_TYPE], "application/json");
        // What cannot be collected just now is told apart from what is not there.
        assert_eq!(ask("GET", "/metrics", "localhost").0, 500);
        assert_eq!(ask("GET", "/../etc/passwd", "localhost").0, 404);
        assert_eq!(ask("GET", "/", "evil.example").0, 421);
        assert_eq!(ask("GET", "/state.json", "").0, 421);
        let (status, headers, _) = ask("POST", "/", "localhost");
        assert_eq!((status, headers[ALLOW].to_str().unwrap()), (405, "GET, HEAD"));
    }

    #[test]
    fn whatever_is_answered_has_the_headers_that_protect() {
        for (method, path, host) in
            [("GET", "/", "localhost"), ("GET", "/x", "localhost"), ("PUT", "/", "[::1]"), ("GET", "/", "x")]
        {
            let (_, headers, _) = ask(method, path, host);
            assert!(HEADERS.iter().all(|(name, value)| headers[*name] == *value), "{method} {path} {host}");
            assert!(!headers["content-security-policy"].to_str().unwrap().contains("unsafe"));
        }
    }

    #[test]
    fn all_who_ask_at_once_have_one_document_and_a_panic_is_no_end() {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let count = Arc::new(AtomicU32::new(0));
            let counted = count.clone();
            let state = State::new(Box::new(move || {
                assert!(counted.fetch_add(1, Ordering::Relaxed) > 0, "the first time it fails");
                Some("{}".to_string())
            }));
            assert!(state.get().await.is_none());
            let (first, second) = tokio::join!(state.get(), state.get());
            assert_eq!((first.as_deref(), second.as_deref()), (Some(&b"{}"[..]), Some(&b"{}"[..])));
            assert_eq!(count.load(Ordering::Relaxed), 2);
        });
    }
}
