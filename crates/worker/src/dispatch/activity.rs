//! What the dispatch of a client is doing, and which requests of its program are done meanwhile.
//!
//! ```text
//!   Running ◀─────────────┬─▶ Quiesced ─▶ as before
//!      ▲                  │
//!   Loading ─▶ Sharing ───┘
//!      └─▶ Closed
//!   Replaying ─▶ Running
//! ```

use rekindle_cuda::CuResult;
use rekindle_ring::Record;

use crate::client::Client;
use crate::data;
use crate::image::{Loading, Preparing};
use crate::ondemand::{Journal, Sharing};

pub(crate) enum Activity {
    /// Requests are done as they come.
    Running,
    /// Contents of the image are on their way. Requests wait for all of them, or with a journal for those that they name.
    Loading { loading: Loading, journal: Option<Journal> },
    /// In place of another worker: when all is loaded, what that one did is done once more. Requests wait for the end.
    Replaying(Option<Loading>),
    /// Buffers are mapped that other programs have mapped too.
    Sharing(Shared),
    /// The program stands still, and nothing is under way.
    Quiesced(Quiesced),
    /// The contents of the image could not be loaded: no request is done any more.
    Closed,
}

pub(crate) struct Shared {
    pub sharing: Sharing,
    /// What is done of requests, to be done once more after a fault.
    pub journal: Journal,
}

pub(crate) struct Quiesced {
    /// What a save will copy through.
    pub blocks: Option<Preparing>,
    /// It shares buffers, as it will when it goes on.
    pub shared: Option<Shared>,
    /// The GPU works for it, and what it leaves in memory is copied behind that.
    pub behind: bool,
}

/// What becomes of the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is done.
    Now,
    /// It is done once nothing is shared any more, which can be had at once.
    Alone,
    /// It is taken from its ring and done later: others need not wait for it.
    Aside,
    /// It waits, and all after it.
    Wait,
    /// Nobody waits for its answer: it is not done, and the program is told this.
    Refuse(CuResult),
}

impl Activity {
    /// Whether any request may be done.
    pub(super) fn takes_requests(&self) -> bool {
        match self {
            Activity::Running | Activity::Sharing(_) => true,
            Activity::Loading { loading, .. } => loading.is_on_demand(),
            Activity::Replaying(_) | Activity::Quiesced(_) | Activity::Closed => false,
        }
    }

    /// Whether the next request can be done; if it could be done once more, it is in the journal then.
    pub(super) fn admit(&mut self, client: &mut Client, ring: usize, record: &Record<'_>) -> Admission {
        match self {
            Activity::Running => data::admit(client, ring, record),
            Activity::Sharing(Shared { sharing, journal }) => sharing.admit(client, journal, ring, record),
            Activity::Loading { loading, journal: Some(journal) } => match loading.on_demand() {
                Some(on_demand) => on_demand.admit(client, journal, ring, record),
                None => Admission::Wait,
            },
            Activity::Loading { .. } | Activity::Replaying(_) | Activity::Quiesced(_) | Activity::Closed => {
                Admission::Wait
            }
        }
    }

    /// The parts of memory that the request names which was admitted last; none where nobody has looked.
    pub(super) fn admitted_parts(&mut self) -> Option<&[usize]> {
        match self {
            Activity::Loading { loading, journal: Some(journal) } => {
                loading.on_demand().map(|on_demand| on_demand.admitted(journal))
            }
            _ => None,
        }
    }

    /// Requests are put aside until what they wait for is there.
    pub(super) fn has_aside(&mut self, client: &Client) -> bool {
        match self {
            Activity::Loading { loading, .. } => loading.on_demand().is_some_and(|one| one.has_aside()),
            _ => client.data.has_aside(),
        }
    }

    /// Does what was put aside and need not wait any more.
    pub(super) fn catch_up(&mut self, client: &mut Client) {
        if let Activity::Loading { loading, journal: Some(journal) } = self
            && let Some(on_demand) = loading.on_demand()
            && on_demand.has_aside()
        {
            on_demand.catch_up(client, journal);
        } else if let Activity::Running = self {
            data::catch_up(client);
        }
    }

    pub(super) fn journal(&mut self) -> Option<&mut Journal> {
        match self {
            Activity::Loading { journal, .. } => journal.as_mut(),
            Activity::Sharing(shared) => Some(&mut shared.journal),
            Activity::Quiesced(quiesced) => quiesced.shared.as_mut().map(|shared| &mut shared.journal),
            Activity::Running | Activity::Replaying(_) | Activity::Closed => None,
        }
    }

    pub(crate) fn is_loading(&self) -> bool {
        matches!(self, Activity::Loading { .. } | Activity::Replaying(Some(_)))
    }

    pub(crate) fn loading(&mut self) -> Option<&mut Loading> {
        match self {
            Activity::Loading { loading, .. } | Activity::Replaying(Some(loading)) => Some(loading),
            _ => None,
        }
    }

    pub(crate) fn shared(&self) -> Option<&Shared> {
        match self {
            Activity::Sharing(shared) => Some(shared),
            Activity::Quiesced(quiesced) => quiesced.shared.as_ref(),
            _ => None,
        }
    }

    pub(super) fn shared_mut(&mut self) -> Option<&mut Shared> {
        match self {
            Activity::Sharing(shared) => Some(shared),
            Activity::Quiesced(quiesced) => quiesced.shared.as_mut(),
            _ => None,
        }
    }
}
