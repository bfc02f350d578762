//! A connection that is no HTTP any more: carried until one side ends it. Its request is told of then, with what went over it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::oneshot::{Receiver, Sender, channel};

use crate::access::Entry;
use crate::instance_slot::InstanceSlot;
use crate::late_spans::Question;
use crate::limits;
use crate::policy::Outcome;

/// Where the request of a connection goes when its answer's head does. Among the extensions of that answer.
#[derive(Clone)]
struct EntryPlace(Arc<Mutex<Option<Sender<Entry>>>>);

/// Carries what client and server say to each other once `answer`, whose head it is, has gone.
pub fn begin<B>(
    sides: (OnUpgrade, OnUpgrade),
    held: (InstanceSlot, Option<Question>),
    answer: &mut Response<B>,
) {
    let (sender, entry) = channel();
    answer.extensions_mut().insert(EntryPlace(Arc::new(Mutex::new(Some(sender)))));
    tokio::spawn(carry(sides, held, entry));
}

/// Has a connection that is carried tell of its request. It comes back if there is none.
pub fn hand_over<B>(answer: &mut Response<B>, entry: Entry) -> Option<Entry> {
    let Some(EntryPlace(place)) = answer.extensions_mut().remove() else { return Some(entry) };
    let sender = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    match sender {
        Some(sender) => sender.send(entry).err(),
        None => Some(entry),
    }
}

async fn carry(
    (client, server): (OnUpgrade, OnUpgrade),
    (mut slot, question): (InstanceSlot, Option<Question>),
    entry: Receiver<Entry>,
) {
    let Ok(mut entry) = entry.await else { return };
    let both = async { hyper::Result::Ok((client.await?, server.await?)) };
    let (client, server) = match both.await {
        Ok(both) => both,
        Err(error) => return log::debug!("a connection was not upgraded: {error}"),
    };
    let carried = {
        // Either is told of by the one task that carries both.
        let entry = Mutex::new(&mut entry);
        let told = |tell: fn(&mut Entry, u64)| {
            let entry = &entry;
            move |bytes| tell(&mut entry.lock().unwrap_or_else(PoisonError::into_inner), bytes)
        };
        let mut client = Counted { io: TokioIo::new(client), told: told(Entry::came_in) };
        let mut server = Counted { io: TokioIo::new(server), told: told(Entry::sent_on) };
        copy_bidirectional_with_sizes(&mut client, &mut server, limits::PIECE, limits::PIECE).await
    };
    slot.outcome = if carried.is_ok() { Outcome::Answered } else { Outcome::Broken };
    // How long the program is asked is no time of the connection's.
    drop(entry);
    if let Some(question) = question {
        question.ask(slot).await;
    }
}

/// Tells how many bytes each piece has that is read of it.
struct Counted<T, F> {
    io: T,
    told: F,
}

impl<T: AsyncRead + Unpin, F: FnMut(u64) + Unpin> AsyncRead for Counted<T, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut this.io).poll_read(context, into));
        (this.told)((into.filled().len() - before) as u64);
        Poll::Ready(read)
    }
}

impl<T: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Counted<T, F> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}
