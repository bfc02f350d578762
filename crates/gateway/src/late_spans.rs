//! What an instance says of its time with a request once the answer is through: of a stream, or of a connection that was upgraded.
//!
//! ```text
//!   instance ─ head: Rekindle-Spans-At: /-/spans/9f3c… ─▶ gateway ── pieces ──▶ client
//!            ◀─ GET /-/spans/9f3c… ─ once the answer is through ─┘ └─ Rekindle-Spans of that answer ─▶ Entry
//! ```
//!
//! It is asked with the request's place at the instance still held, so that nothing puts it to sleep meanwhile. What it says of a
//! span that the head has named already takes that one's place.

use std::time::Duration;

use http_body_util::{BodyExt, Either, Limited};
use hyper::Request;
use hyper::header::{HOST, HeaderMap, HeaderName};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::instance_slot::InstanceSlot;
use crate::limits;
use crate::program_spans::{self, ProgramSpan};
use crate::upstream::Upstream;
use crate::workflow::Pieces;

const AT: HeaderName = HeaderName::from_static("rekindle-spans-at");
/// The longest path that is asked.
const LONGEST: usize = 256;
/// An instance has no longer to say it: its place is held meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// To be asked for once the answer is through.
pub struct Question {
    path: String,
    sender: Sender<Vec<ProgramSpan>>,
}

/// What comes of it. An error: nothing.
pub type Reply = Receiver<Vec<ProgramSpan>>;

/// Takes the header away: where more is to be had of a request that is followed.
pub fn take(headers: &mut HeaderMap, is_followed: bool) -> Option<(Question, Reply)> {
    let path = headers.remove(AT)?.to_str().ok()?.to_string();
    if !is_followed || !path.starts_with('/') || path.len() > LONGEST {
        return None;
    }
    let (sender, reply) = channel();
    Some((Question { path, sender }, reply))
}

impl Question {
    /// Asks the instance, which gives the place back then.
    pub async fn ask(self, slot: InstanceSlot) {
        let told = timeout(PATIENCE, fetch(&slot.upstream, &self.path)).await.ok().flatten();
        if told.is_none() {
            log::debug!("the instance {} has not said what became of a request", slot.upstream.name);
        }
        // Whoever was to hear it may have gone.
        let _ = self.sender.send(told.unwrap_or_default());
    }
}

async fn fetch(upstream: &Upstream, path: &str) -> Option<Vec<ProgramSpan>> {
    let body = Either::Right(Pieces::default());
    let request = Request::get(path).header(HOST, "localhost").body(body).ok()?;
    let (mut answer, connection) = upstream.send(request).await.ok()?;
    let is_told = answer.status().is_success();
    let told = program_spans::take(answer.headers_mut());
    // Without the rest the connection cannot be used again.
    BodyExt::collect(Limited::new(answer, limits::BUFFER)).await.ok()?;
    upstream.keep(connection);
    is_told.then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_no_client_s_and_names_a_path() {
        for (said, is_followed, is_asked) in [
            ("/-/spans/1", true, true),
            ("/-/spans/1", false, false),
            ("http://elsewhere/", true, false),
            ("", true, false),
            (&format!("/{}", "x".repeat(LONGEST)), true, false),
        ] {
            let mut headers = HeaderMap::from_iter([(AT, said.parse().unwrap())]);
            assert_eq!(take(&mut headers, is_followed).is_some(), is_asked, "{said}");
            assert!(headers.is_empty());
        }
        assert!(take(&mut HeaderMap::new(), true).is_none());
    }
}
