//! Ranges of objects by plain HTTP, whose bytes the kernel puts right where they are to lie.
//!
//! ```text
//!   usual client   socket ─▶ its buffers ─▶ object's memory
//!   here           socket ────────────────▶ object's memory ([`Landed`])
//! ```
//!
//! What asks for a range says so by a [`Landing`] in its request. All else is the usual client's: other requests, TLS, proxies, and
//! answers that are chunked or lead elsewhere, which are asked for once more.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Uri};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::landed::Landed;
use crate::objects::Object;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A connection that was not used for so long may be gone without a word.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// So long nothing may come, unless somebody says else.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);
const MOST_HEADERS: usize = 100;
const LONGEST_HEAD: usize = 64 << 10;
/// Of what a store says in place of an object.
const LONGEST_REASON: u64 = 1 << 20;
const PROXIES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

/// With a request for a range: its bytes are to lie at the same place in the object's memory.
#[derive(Clone)]
pub struct Landing(pub Arc<Object>);

/// Connections that are open and not used, by hosts, and since when.
#[derive(Debug, Default)]
pub struct Pool(Mutex<HashMap<String, Vec<(TcpStream, Instant)>>>);

impl Pool {
    fn take(&self, host: &str) -> Option<TcpStream> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.get_mut(host)?;
        kept.retain(|(_, since)| since.elapsed() < IDLE_LIMIT);
        kept.pop().map(|(stream, _)| stream)
    }

    pub fn give(&self, host: &str, stream: TcpStream) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.entry(host.to_string()).or_default().push((stream, Instant::now()));
    }
}

/// Makes the clients of stores, which give up who says nothing for so long.
#[derive(Clone, Copy, Debug)]
pub struct Connector {
    pub silence: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // A store that is slow is no failure, however long all of a body takes.
        let options = options.clone().with_timeout_disabled().with_read_timeout(self.silence);
        let usual = ReqwestConnector::default().connect(&options)?;
        if PROXIES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
            return Ok(usual);
        }
        Ok(HttpClient::new(Transport { usual, pool: Arc::default(), silence: self.silence }))
    }
}

#[derive(Debug)]
struct Transport {
    usual: HttpClient,
    pool: Arc<Pool>,
    silence: Duration,
}

/// What begins an answer, and what came with it.
struct Head {
    status: StatusCode,
    headers: HeaderMap,
    is_last: bool,
    early: Bytes,
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let landing = request.extensions().get::<Landing>().cloned();
        let Some((Landing(object), host)) = landing.zip(host(&request)) else {
            return self.usual.execute(request).await;
        };
        let (parts, _) = request.into_parts();
        let (stream, head) = self.ask(&parts, &host).await.map_err(failed)?;
        let wanted = parts.headers.get(header::RANGE).and_then(range_of);
        match self.answer(stream, head, (host, wanted), object).await.map_err(failed)? {
            Some(answer) => Ok(answer),
            None => self.usual.execute(HttpRequest::from_parts(parts, HttpRequestBody::empty())).await,
        }
    }
}

impl Transport {
    /// Sends it, by a connection that is there or by a new one where that was closed meanwhile.
    async fn ask(&self, parts: &Parts, host: &str) -> io::Result<(TcpStream, Head)> {
        let text = text_of(parts, host);
        if let Some(mut stream) = self.pool.take(host)
            && let Ok(head) = exchange(&mut stream, &text, self.silence).await
        {
            return Ok((stream, head));
        }
        let mut stream = timeout(CONNECT_LIMIT, TcpStream::connect(host)).await??;
        stream.set_nodelay(true)?;
        let head = exchange(&mut stream, &text, self.silence).await?;
        Ok((stream, head))
    }

    /// None for what the usual client is to ask for.
    async fn answer(
        &self,
        mut stream: TcpStream,
        head: Head,
        (host, wanted): (String, Option<(u64, u64)>),
        object: Arc<Object>,
    ) -> io::Result<Option<HttpResponse>> {
        let Head { status, headers, is_last, early } = head;
        let number =
            |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()?.parse::<u64>().ok());
        let Some(length) = number(header::CONTENT_LENGTH) else { return Ok(None) };
        let is_plain = !headers.contains_key(header::TRANSFER_ENCODING) && early.len() as u64 <= length;
        if !is_plain || status.is_informational() || status.is_redirection() {
            return Ok(None);
        }
        let body = if status == StatusCode::PARTIAL_CONTENT {
            // Other bytes than those have no place here.
            let came = headers.get(header::CONTENT_RANGE).and_then(range_of);
            let Some((start, _)) = came.filter(|came| wanted == Some(*came) && came.1 - came.0 + 1 == length)
            else {
                return Ok(None);
            };
            let back = (!is_last).then(|| (self.pool.clone(), host));
            HttpResponseBody::new(Landed::new(stream, back, object, (start, length), early, self.silence))
        } else {
            if length > LONGEST_REASON {
                return Ok(None);
            }
            let mut rest = vec![0; length as usize - early.len()];
            timeout(self.silence, stream.read_exact(&mut rest)).await??;
            let reason = Bytes::from([&early[..], &rest].concat());
            HttpResponseBody::new(Full::new(reason).map_err(|never| match never {}))
        };
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(Some(answer))
    }
}

/// With its port, for what is done here.
fn host(request: &HttpRequest) -> Option<String> {
    let uri: &Uri = request.uri();
    let is_here = request.method() == Method::GET
        && uri.scheme_str() == Some("http")
        && request.body().is_empty()
        && !uri.authority()?.as_str().contains('@');
    is_here.then(|| format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80)))
}

fn text_of(parts: &Parts, host: &str) -> Vec<u8> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut text = format!("GET {path} HTTP/1.1\r\n").into_bytes();
    let mut add = |name: &str, value: &[u8]| {
        text.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    };
    if !parts.headers.contains_key(header::HOST) {
        add("host", parts.uri.authority().map_or(host, |authority| authority.as_str()).as_bytes());
    }
    add("user-agent", b"rekindle");
    parts.headers.iter().for_each(|(name, value)| add(name.as_str(), value.as_bytes()));
    text.extend_from_slice(b"\r\n");
    text
}

async fn exchange(stream: &mut TcpStream, text: &[u8], silence: Duration) -> io::Result<Head> {
    timeout(silence, stream.write_all(text)).await??;
    let mut came = BytesMut::with_capacity(4 << 10);
    loop {
        if timeout(silence, stream.read_buf(&mut came)).await?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(head) = parse(&mut came)? {
            return Ok(head);
        }
        if came.len() > LONGEST_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the head of its answer is too long"));
        }
    }
}

/// None while it is not whole.
fn parse(came: &mut BytesMut) -> io::Result<Option<Head>> {
    let bad = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut rows = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut read = httparse::Response::new(&mut rows);
    let httparse::Status::Complete(end) = read.parse(came).map_err(|error| bad(error.to_string()))? else {
        return Ok(None);
    };
    let status =
        StatusCode::from_u16(read.code.unwrap_or_default()).map_err(|error| bad(error.to_string()))?;
    let mut headers = HeaderMap::new();
    for row in read.headers.iter() {
        let name = HeaderName::from_bytes(row.name.as_bytes()).map_err(|error| bad(error.to_string()))?;
        headers.append(name, HeaderValue::from_bytes(row.value).map_err(|error| bad(error.to_string()))?);
    }
    let closes =
        headers.get(header::CONNECTION).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"));
    let is_last = closes || read.version != Some(1);
    let early = came.split_off(end).freeze();
    Ok(Some(Head { status, headers, is_last, early }))
}

/// The first and the last byte, of `bytes=0-9` and of `bytes 0-9/100`.
fn range_of(value: &HeaderValue) -> Option<(u64, u64)> {
    let range = value.to_str().ok()?.strip_prefix("bytes")?.strip_prefix(['=', ' '])?;
    let (first, last) = range.split('/').next()?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?)).filter(|(first, last)| first <= last)
}

/// As who asks the store knows it: all but nonsense is tried again.
pub fn failed(error: io::Error) -> HttpError {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData => HttpErrorKind::Decode,
        io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
        io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        _ => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error)
}

#[cfg(test)]
mod tests;
