//! An instance's answer on its way to a client, piece by piece. The instance has the request until it is through.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::instance_slot::InstanceSlot;
use crate::policy::Outcome;
use crate::upstream::Connection;

pub struct Relay {
    body: Incoming,
    held: Option<(InstanceSlot, Connection)>,
}

impl Relay {
    pub fn new(body: Incoming, slot: InstanceSlot, connection: Connection) -> Relay {
        let mut relay = Relay { body, held: Some((slot, connection)) };
        if relay.body.is_end_stream() {
            relay.through(Outcome::Answered);
        }
        relay
    }

    fn through(&mut self, outcome: Outcome) {
        let Some((mut slot, mut connection)) = self.held.take() else { return };
        slot.outcome = outcome;
        if outcome != Outcome::Answered {
            return;
        }
        if connection.is_ready() {
            return slot.upstream.keep(connection);
        }
        // It has the end of the answer yet to see.
        tokio::spawn(async move {
            if connection.ready().await.is_ok() {
                slot.upstream.keep(connection);
            }
        });
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
