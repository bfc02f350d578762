//! Images: the GPU half is written into one or built from one, and caches are taken and filled for that.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rekindle_protocol::fault;
use rekindle_protocol::worker::{CacheMemory, Cached, Contents, MOST_DESCRIPTORS, Phase, Saved, ask};

use super::{Control, ControlError, is_closed};
use crate::dispatch::Dispatcher;
use crate::image::{self, CodePreCopy, PreCopy, RestoreOptions, Shadow, Timer};

impl Control {
    pub(super) fn save(
        &mut self,
        stream: &UnixStream,
        staging: PathBuf,
        contents: Contents,
    ) -> Result<Saved, ControlError> {
        if contents == Contents::Left {
            self.unshare()?;
        }
        let code = std::mem::take(&mut self.code);
        let mut timer = Timer::start();
        if self.await_work(contents)? {
            timer.lap("the program's work", 0);
        }
        let waited = self.waited.take();
        let ahead = std::mem::take(&mut self.ahead);
        let save = move |dispatcher: &mut Dispatcher, stop: &AtomicBool| {
            image::save(dispatcher, &staging, contents, (code, ahead, timer), stop)
        };
        let (saved, left) = self.work(stream, save)?;
        self.left = left;
        Ok(Saved { waited, ..saved })
    }

    /// Writes what can be written of GPU memory while the program runs.
    pub(super) fn save_ahead(
        &mut self,
        stream: &UnixStream,
        staging: PathBuf,
    ) -> Result<Vec<Phase>, ControlError> {
        let remote = self.remote.clone();
        let begin = move |dispatcher: &mut Dispatcher| image::begin_ahead(dispatcher, &staging, remote);
        let begun = match self.remote.ask(begin)?? {
            Ok(begun) => begun,
            Err(nothing) => {
                let made = nothing.is_needless().then(|| self.make_copy_rooms()).transpose()?;
                self.ahead = nothing;
                return Ok(made.into_iter().collect());
            }
        };
        let written = begun.drain.finish(Duration::ZERO, || !is_closed(stream));
        let remote = self.remote.clone();
        self.remote.run(move |dispatcher| dispatcher.let_go_of_shadow(remote));
        let (_, phases) = written?;
        self.ahead = begun.outcome();
        Ok(phases)
    }

    /// Makes room for the copy that is made when the program stands still.
    fn make_copy_rooms(&self) -> Result<Phase, ControlError> {
        let (began, mut bytes) = (Instant::now(), 0);
        for request in self.remote.ask(|dispatcher| image::rooms(&mut dispatcher.client))? {
            let made = request.make().map(|made| {
                bytes += made.bytes();
                self.remote.ask(move |dispatcher| dispatcher.client.add_copy_room(made))
            });
            if let Err(code) | Ok(Ok(Err(code))) = made {
                log::debug!("there is no room for a copy ahead of the stop: {code}");
            }
        }
        fault::point("copy-room-made").map_err(ControlError::from)?;
        let duration_us = began.elapsed().as_micros() as u64;
        Ok(Phase { name: "room for a copy".to_string(), duration_us, bytes, ..Phase::default() })
    }

    /// What was written ahead is of no use any more.
    pub(super) fn forget_ahead(&mut self) {
        self.ahead = PreCopy::default();
        let remote = self.remote.clone();
        self.remote.run(move |dispatcher| dispatcher.let_go_of_copy_rooms(remote));
    }

    /// The program runs meanwhile.
    pub(super) fn save_code(&mut self, staging: PathBuf) -> Result<(), ControlError> {
        let (codes, whole) =
            self.remote.ask(|dispatcher| (dispatcher.client.codes(), dispatcher.client.whole_modules()))?;
        self.code = CodePreCopy::write(staging, &codes)?;
        whole.iter().for_each(|(device, module)| device.expect_globals(*module));
        Ok(())
    }

    /// Copies of the descriptors of memory that a save has left, from so many on: their names.
    pub(super) fn hand_over(&mut self, from: usize) -> Result<Vec<String>, ControlError> {
        let mut left: Vec<_> = self.left.iter().collect();
        left.sort_unstable_by_key(|(name, _)| *name);
        let some = left.into_iter().skip(from).take(MOST_DESCRIPTORS);
        let copies = some.map(|(name, memory)| Ok((name.clone(), memory.try_clone()?)));
        let copies: std::io::Result<(Vec<_>, Vec<_>)> = copies.collect();
        let (names, memory) = copies.map_err(ControlError::io("its memory cannot be handed over"))?;
        self.along = memory;
        Ok(names)
    }

    /// Waits for a copy behind the program's work; false if that is none.
    pub(super) fn await_copy(&self, stream: &UnixStream) -> Result<bool, ControlError> {
        let enqueued = |shadow: &Shadow| shadow.comes_behind().then(|| shadow.enqueued());
        let behind =
            self.remote.ask(move |dispatcher| dispatcher.client.shadow.as_ref().and_then(enqueued))?;
        let Some(copies) = behind else { return Ok(false) };
        Ok(copies.map_or(Ok(true), |copies| copies.wait(|| !is_closed(stream)))?)
    }

    /// Waits until what was shadowed is in the image, if that is still wanted.
    pub(super) fn drain(&mut self, stream: &UnixStream, request: ask::Drain) -> Result<Saved, ControlError> {
        if !request.wanted {
            self.forget_ahead();
            let remote = self.remote.clone();
            self.remote.run(move |dispatcher| dispatcher.give_up_shadow(remote));
            return Ok(Saved::default());
        }
        let shadow = self.remote.ask(|dispatcher| dispatcher.client.shadow.as_ref().map(Shadow::drain))?;
        let Some(drain) = shadow else { return Ok(Saved::default()) };
        let drained = drain.finish(Duration::from_micros(request.catch_up_us), || !is_closed(stream));
        let remote = self.remote.clone();
        self.remote.run(move |dispatcher| dispatcher.let_go_of_shadow(remote));
        if let Err(image::Error::Overwritten) = drained {
            self.remote.run(|dispatcher| dispatcher.client.writes_unnamed = true);
            return Ok(Saved { overwritten: true, ..Saved::default() });
        }
        let (parts, phases) = drained?;
        Ok(Saved { parts, phases, ..Saved::default() })
    }

    pub(super) fn save_pinned(&self, stream: &UnixStream, staging: PathBuf) -> Result<Saved, ControlError> {
        let save =
            move |dispatcher: &mut Dispatcher, _: &AtomicBool| image::save_pinned(dispatcher, &staging);
        let (parts, phases) = self.work(stream, save)?;
        Ok(Saved { parts, phases, ..Saved::default() })
    }

    pub(super) fn restore(
        &mut self,
        stream: &UnixStream,
        request: ask::Restore,
    ) -> Result<Vec<Phase>, ControlError> {
        let ask::Restore { image, run_directory, cached, beside, runs } = request;
        let (remote, left) = (self.remote.clone(), std::mem::take(&mut self.left));
        let (lent, stays) = (std::mem::take(&mut self.lent), std::mem::take(&mut self.stays));
        let (demand, journal) = self.demand.take().unwrap_or_default();
        let ask::OnDemand { run_ahead: on_demand, order, record } = demand;
        let phases = self.work(stream, move |dispatcher, _| {
            let directory = run_directory.into();
            let again = beside;
            let options = RestoreOptions {
                directory,
                left,
                lent,
                stays,
                cached,
                on_demand,
                order,
                record,
                again,
                journal,
                ..RestoreOptions::default()
            };
            let phases = image::restore(dispatcher, image.as_ref(), options, remote.clone())?;
            if let Some(board) = dispatcher.client.board {
                remote.use_board(board);
            }
            if runs {
                dispatcher.hold_requests();
            }
            Ok::<_, image::Error>(phases)
        })?;
        self.held_back = true;
        self.runs = runs;
        Ok(phases)
    }

    pub(super) fn take_cache(
        &self,
        memories: Vec<CacheMemory>,
        descriptors: Vec<OwnedFd>,
        register: bool,
    ) -> Result<(), ControlError> {
        if memories.len() != descriptors.len() {
            let (memories, descriptors) = (memories.len(), descriptors.len());
            return Err(ControlError::Memories { memories, descriptors });
        }
        self.remote.ask(move |dispatcher| {
            let device = if register { dispatcher.client.any_device().ok() } else { None };
            for (memory, descriptor) in memories.into_iter().zip(descriptors) {
                // What cannot be taken is loaded from elsewhere.
                if let Err(code) = dispatcher.cache.take(memory, descriptor, device.as_ref()) {
                    log::warn!("a cache cannot be used: {code}");
                }
            }
        })?;
        Ok(())
    }

    pub(super) fn fill_cache(
        &self,
        stream: &UnixStream,
        image: PathBuf,
        memory: (CacheMemory, OwnedFd),
        into: Vec<Cached>,
        cached: Vec<Cached>,
    ) -> Result<(), ControlError> {
        self.work(stream, move |dispatcher, stop| {
            image::fill_cache(dispatcher, &image, memory, &into, cached, stop)
        })?;
        Ok(())
    }
}
