//! An instance's answer on its way to a client, piece by piece. The instance has the request until it is through.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::instance_slot::InstanceSlot;
use crate::late_spans::Question;
use crate::policy::Outcome;
use crate::upstream::Connection;

pub struct Relay {
    body: Incoming,
    held: Option<(InstanceSlot, Connection)>,
    /// What the instance is asked once it is through.
    question: Option<Question>,
}

impl Relay {
    pub fn new(body: Incoming, held: (InstanceSlot, Connection), question: Option<Question>) -> Relay {
        let mut relay = Relay { body, held: Some(held), question };
        if relay.body.is_end_stream() {
            relay.through(Outcome::Answered);
        }
        relay
    }

    fn through(&mut self, outcome: Outcome) {
        let Some((mut slot, mut connection)) = self.held.take() else { return };
        slot.outcome = outcome;
        let is_kept = outcome == Outcome::Answered;
        let question = self.question.take();
        if question.is_none() && !is_kept {
            return;
        }
        if question.is_none() && connection.is_ready() {
            return slot.upstream.keep(connection);
        }
        let runtime = slot.service.runtime().clone();
        runtime.spawn(async move {
            // It has the end of the answer yet to see.
            if is_kept && connection.ready().await.is_ok() {
                slot.upstream.keep(connection);
            } else {
                drop(connection);
            }
            if let Some(question) = question {
                question.ask(slot).await;
            }
        });
    }
}

impl Drop for Relay {
    /// The client has gone, if it is not through.
    fn drop(&mut self) {
        self.through(Outcome::Unheard);
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        match &frame {
            Some(Err(_)) => this.through(Outcome::Broken),
            // Nobody asks for more once the length that was announced has come.
            None => this.through(Outcome::Answered),
            Some(Ok(_)) if this.body.is_end_stream() => this.through(Outcome::Answered),
            Some(Ok(_)) => {}
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
