//! Memory that comes at the first use, before a request is done, and what a program has freed of it.
//!
//! What was freed and waits for the program to allocate again is given back when it rests. The driver waits for all of the
//! GPU's work when memory is unmapped, so not before. Then the program's allocators are asked to free what they keep.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rekindle_protocol::client::{GIVING_CLIENT_VERSION, ToClient};
use rekindle_protocol::fault;
use rekindle_protocol::operation::{Asynchronous, GraphLaunch, LaunchKernel, LaunchKernelWith};
use rekindle_protocol::worker::RequestProfile;
use rekindle_ring::Record;
use rekindle_store::Image;

use super::{Activity, Dispatcher};

/// A program that has asked for nothing and has had no work under way for so long rests.
const QUIET: Duration = Duration::from_millis(50);
/// One that has asked for nothing for so long, and has no work under way, has ended a request.
const PAUSE: Duration = Duration::from_millis(2);
/// Requests that are launches.
const LAUNCHES: [u32; 3] = [LaunchKernel::OPCODE, LaunchKernelWith::OPCODE, GraphLaunch::OPCODE];

#[derive(Default)]
pub(super) struct Freed {
    /// So many operations the program had asked for when it was last looked.
    looked: u64,
    /// The last launch that was counted, by its ticket: it may be looked at more than once.
    launch: Option<u64>,
    /// Since when it was seen at rest, again and again.
    rests_since: Option<Instant>,
    /// The last launch before the program's allocators were asked to free what they keep.
    asked: Option<u64>,
    /// For which image it is learned how much memory requests need, and how many kinds of them it has.
    image: Option<(PathBuf, String)>,
    kept: u64,
}

impl Dispatcher {
    /// Whether there is memory for all that a request may come to; else it is answered.
    pub(super) fn has_memory_for(&mut self, ring: usize, record: &Record<'_>) -> bool {
        if LAUNCHES.contains(&record.opcode) && self.freed.launch != Some(record.ticket) {
            self.freed.launch = Some(record.ticket);
            self.client.note_launch();
        }
        if !self.client.has_unbacked() {
            return true;
        }
        let backed = self.client.back_for(ring, record);
        backed.map_err(|code| self.client.lacks_memory(ring, record, code)).is_ok()
    }

    /// Looks whether a request of the program's has ended, by which its use of memory is known.
    pub(super) fn look_at_request(&mut self) {
        let may_have_ended = self.client.is_in_request() && self.quiet_since.elapsed() >= PAUSE;
        if may_have_ended && self.client.is_at_rest() {
            self.client.end_request();
        }
    }

    /// What requests are seen to need is kept with this image.
    pub(crate) fn learns_demand_of(&mut self, image: &Image) {
        self.freed.image = Some((image.path().to_path_buf(), image.manifest().id.clone()));
    }

    /// Ends the request that is under way, and has its image keep what was seen of it: what was recorded.
    pub(crate) fn profile(&mut self) -> Vec<RequestProfile> {
        self.client.end_request();
        if let Some(keeping) = self.keep_demand() {
            let _ = keeping.join();
        }
        self.client.profile()
    }

    /// Adds what was learned of requests to what the image has.
    fn keep_demand(&mut self) -> Option<JoinHandle<()>> {
        let (path, id) = self.freed.image.clone()?;
        let (demand, learned) = self.client.known_demand();
        if std::mem::replace(&mut self.freed.kept, learned) == learned {
            return None;
        }
        let keep = move || {
            // An image that is removed by now, or another one, needs none of it.
            let kept = Image::open(&path).and_then(|image| match image.manifest().id == id {
                true => image.learn_memory_demand(demand),
                false => Ok(false),
            });
            if let Err(error) = kept {
                log::info!("how much memory requests need was not kept: {error}");
            }
        };
        Some(std::thread::spawn(keep))
    }

    /// Gives back what the program has freed, once in each rest. That begins with the end of its work: who has waited for it may
    /// go on at once.
    pub(super) fn look_at_freed(&mut self) {
        if !self.may_have_freed() || self.quiet_since.elapsed() < PAUSE || !self.client.is_at_rest() {
            self.freed.rests_since = None;
            return;
        }
        if self.freed.rests_since.get_or_insert_with(Instant::now).elapsed() < QUIET {
            return;
        }
        if fault::point("freed-given-back").is_err() {
            return;
        }
        self.freed.looked = self.client.operations;
        let _ = self.keep_demand();
        match self.client.give_back_freed() {
            Ok(0) => {}
            Ok(bytes) => log::debug!("{} MB that the program has freed are given back", bytes >> 20),
            Err(code) => log::warn!("what the program has freed stays in use: {code}"),
        }
        self.ask_to_give_back();
    }

    /// What allocators free is freed as by the program, so they are asked again when it has launched something since.
    fn ask_to_give_back(&mut self) {
        let asked = std::mem::replace(&mut self.freed.asked, self.freed.launch);
        if asked != self.freed.launch && self.client.version() >= GIVING_CLIENT_VERSION {
            self.client.link.send(&ToClient::GiveBack);
        }
    }

    /// When it is to be looked, if that is sooner.
    pub(super) fn look_for_freed(&self, nap: Duration) -> Duration {
        if self.client.is_in_request() {
            return nap.min(PAUSE);
        }
        let rested = self.freed.rests_since.map(|since| since.elapsed());
        match self.may_have_freed() {
            true => nap.min(rested.map_or(PAUSE, |rested| QUIET.saturating_sub(rested).max(PAUSE))),
            false => nap,
        }
    }

    fn may_have_freed(&self) -> bool {
        self.client.gpus.waits_for_uses()
            && !self.client.has_memory_at_once
            && self.client.operations != self.freed.looked
            && matches!(self.activity, Activity::Running)
            && !self.is_draining()
    }
}
