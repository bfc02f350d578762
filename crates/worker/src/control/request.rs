//! Requests of the daemon: each is done, by the dispatch thread where it concerns the client, and answered.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::worker::{Ask, Phase, Reply, Request, Status, ask};

use super::{Control, ControlError, Kind, is_closed};
use crate::dispatch::{DispatchError, Dispatcher};
use crate::image::{self, Loading};
use crate::ondemand;
use crate::succession::NextPlace;

/// What a request is answered with, to be sent with descriptors.
pub(crate) type Answer = Box<dyn FnOnce(&UnixStream, u64, &[BorrowedFd<'_>]) -> Result<(), FrameError>>;

/// The answer to a request of this type.
pub(crate) fn answer<A: Ask>(answer: A::Answer) -> Answer {
    Box::new(move |stream, id, along| frame::send(stream, &Reply { id, answer: Ok(answer) }, along))
}

pub(crate) fn refuse(stream: &UnixStream, id: u64, error: &impl std::error::Error) -> Result<(), FrameError> {
    frame::send(stream, &Reply::<()> { id, answer: Err(error.to_string()) }, &[])
}

impl Control {
    pub(super) fn obey(
        &mut self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        stream: &UnixStream,
    ) -> Result<Answer, ControlError> {
        match request {
            Request::GetStatus(_) => self.status().map(answer::<ask::GetStatus>),
            Request::Take(_) => {
                self.take(descriptors)?;
                self.status().map(answer::<ask::Take>)
            }
            Request::ServeAnother(ask::ServeAnother { socket, log }) => {
                let word = descriptors.into_iter().next().ok_or("no descriptor to say it by came along")?;
                let next = NextPlace { socket: socket.into(), log: log.into(), word: word.into() };
                self.succession.ask_for(next);
                Ok(answer::<ask::ServeAnother>(()))
            }
            Request::Register(ask::Register { image }) => self
                .work(stream, move |dispatcher, _| image::register(dispatcher, image.as_ref()))
                .map(answer::<ask::Register>),
            Request::Serve(ask::Serve { run_directory }) => {
                self.welcome(run_directory.into(), descriptors).map(answer::<ask::Serve>)
            }
            Request::Mend(ask::Mend { store, name }) => {
                self.mend((store.into(), name), descriptors).map(answer::<ask::Mend>)
            }
            Request::TakeUp(request) => self.take_up(stream, request, descriptors).map(answer::<ask::TakeUp>),
            Request::Belong(ask::Belong { owner, gpu }) => {
                self.remote.run(move |dispatcher| dispatcher.client.exchange.belong(owner, gpu));
                Ok(answer::<ask::Belong>(()))
            }
            Request::CopyArray(ask::CopyArray { gpu, bytes, room }) => self
                .work(stream, move |dispatcher, _| {
                    let copied = dispatcher.client.copy_for_node(&gpu, (bytes, room), &descriptors);
                    copied.map_err(DispatchError::Array)
                })
                .map(answer::<ask::CopyArray>),
            Request::AwaitMoment(ask::AwaitMoment { limit_ms }) => {
                self.await_moment(Duration::from_millis(limit_ms)).map(answer::<ask::AwaitMoment>)
            }
            Request::Quiesce(ask::Quiesce { limit_ms, contents }) => {
                self.quiesce(Duration::from_millis(limit_ms), contents).map(answer::<ask::Quiesce>)
            }
            Request::Step(ask::Step { calls, limit_ms, contents }) => {
                self.step(calls, Duration::from_millis(limit_ms), contents).map(answer::<ask::Step>)
            }
            Request::Detach(ask::Detach { pid, limit_ms }) => {
                self.detach(pid, limit_ms).map(answer::<ask::Detach>)
            }
            Request::Release(ask::Release { processes, limit_ms }) => {
                self.release(&processes, limit_ms).map(answer::<ask::Release>)
            }
            Request::SaveCode(ask::SaveCode { staging }) => {
                self.save_code(staging.into()).map(answer::<ask::SaveCode>)
            }
            Request::SaveAhead(ask::SaveAhead { staging }) => {
                self.save_ahead(stream, staging.into()).map(answer::<ask::SaveAhead>)
            }
            Request::Pinned(_) => {
                let places = |dispatcher: &mut Dispatcher| dispatcher.client.pinned_places();
                Ok(answer::<ask::Pinned>(self.remote.ask(places)?))
            }
            Request::FollowPinned(_) => {
                self.remote.run(|dispatcher| dispatcher.client.pinned_is_followed = true);
                Ok(answer::<ask::FollowPinned>(()))
            }
            Request::Save(ask::Save { staging, contents }) => {
                self.save(stream, staging.into(), contents).map(answer::<ask::Save>)
            }
            Request::AwaitCopy(_) => self.await_copy(stream).map(answer::<ask::AwaitCopy>),
            Request::Drain(request) => self.drain(stream, request).map(answer::<ask::Drain>),
            Request::SavePinned(ask::SavePinned { staging }) => {
                self.save_pinned(stream, staging.into()).map(answer::<ask::SavePinned>)
            }
            Request::Sleep(_) if self.is_shared() => {
                Err("a program that shares its context cannot be put to sleep".into())
            }
            Request::Sleep(_) if self.quiesced && self.link.is_connected() => {
                let pipe = descriptors.into_iter().next().ok_or("no pipe came along")?;
                self.to_sleep = Some(File::from(pipe));
                Ok(answer::<ask::Sleep>(()))
            }
            Request::Sleep(_) => Err("only a program that stands still can be put to sleep".into()),
            Request::HandOver(ask::HandOver { from }) if self.stands_still() => {
                self.hand_over(from).map(answer::<ask::HandOver>)
            }
            Request::HandOver(_) | Request::LetGo(_) => Err("this worker is awake and keeps nothing".into()),
            Request::StandStill(_) => self.stand_still().map(answer::<ask::StandStill>),
            Request::Memory(ask::Memory { names, copy, stays }) => {
                self.stays = stays;
                let memory = if copy { &mut self.lent } else { &mut self.left };
                memory.extend(names.into_iter().zip(descriptors));
                Ok(answer::<ask::Memory>(()))
            }
            Request::Cache(ask::Cache { memories, register }) => {
                self.take_cache(memories, descriptors, register).map(answer::<ask::Cache>)
            }
            Request::MakeCacheMemory(ask::MakeCacheMemory { memory }) => {
                let made =
                    self.work(stream, move |dispatcher, _| image::make_cache_memory(dispatcher, memory))?;
                self.along.push(made);
                Ok(answer::<ask::MakeCacheMemory>(()))
            }
            Request::FillCache(ask::FillCache { image, memory, into, cached }) => {
                let descriptor = descriptors.into_iter().next().ok_or("no memory came along")?;
                self.fill_cache(stream, image.into(), (memory, descriptor), into, cached)
                    .map(answer::<ask::FillCache>)
            }
            Request::OnDemand(demand) => {
                // A fault that were to be mended would end the context of others.
                let run_ahead = demand.run_ahead && !self.is_shared();
                let demand = ask::OnDemand { run_ahead, ..demand };
                self.demand = Some((demand, descriptors.into_iter().next()));
                Ok(answer::<ask::OnDemand>(()))
            }
            Request::Unwritten(ask::Unwritten { image, cheaply }) => self
                .work(stream, move |dispatcher, stop| {
                    image::unwritten(dispatcher, image.as_ref(), cheaply, stop)
                })
                .map(answer::<ask::Unwritten>),
            Request::Mark(_) => {
                self.unshare()?;
                self.work(stream, image::mark).map(answer::<ask::Mark>)
            }
            Request::Unshare(_) => self.unshare().map(answer::<ask::Unshare>),
            Request::Uses(_) => {
                let names =
                    self.remote.ask(|dispatcher| dispatcher.uses.as_ref().map(|uses| uses.names()))?;
                let names = names.ok_or("this worker was not asked to record what is used first")?;
                Ok(answer::<ask::Uses>(names))
            }
            Request::Profile(_) => Ok(answer::<ask::Profile>(self.remote.ask(Dispatcher::profile)?)),
            Request::Restore(request) => self.restore(stream, request).map(answer::<ask::Restore>),
            Request::Replace(ask::Replace { image, run_directory }) => {
                let remote = self.remote.clone();
                self.work(stream, move |dispatcher, _| {
                    ondemand::restore(dispatcher, image.as_ref(), run_directory.into(), &remote)
                })
                .map(answer::<ask::Replace>)
            }
            Request::GoOn(ask::GoOn { pid }) => self.go_on_with(pid, descriptors).map(answer::<ask::GoOn>),
            Request::Leave(_) => self.leave().map(answer::<ask::Leave>),
            Request::Part(_) => self.part(descriptors).map(answer::<ask::Part>),
            Request::TakeOver(ask::TakeOver { pid, driver_attached, next }) => {
                self.take_over(pid, driver_attached, next, descriptors).map(answer::<ask::TakeOver>)
            }
            Request::Loaded(_) => Err("what is loaded is told beside other requests only".into()),
            Request::Adopt(ask::Adopt { pid, driver_attached }) => {
                self.adopt(pid, driver_attached, descriptors).map(answer::<ask::Adopt>)
            }
            Request::Admit(_) | Request::GetSharing(_) => Err("this worker's contexts are not shared".into()),
            Request::SetPortion(ask::SetPortion { portion }) => self
                .remote
                .ask(move |dispatcher| dispatcher.client.gpus.set_portion(portion))?
                .map_err(ControlError::from)
                .map(answer::<ask::SetPortion>),
            Request::Watch(_) => self.watch(descriptors).map(answer::<ask::Watch>),
            Request::Resume(ask::Resume { restored, driver_attached }) => {
                self.resume(restored, driver_attached).map(answer::<ask::Resume>)
            }
            Request::Shutdown(_) => Ok(answer::<ask::Shutdown>(())),
        }
    }

    pub(super) fn status(&self) -> Result<Status, ControlError> {
        let status = self.remote.ask(|dispatcher| dispatcher.client.status())?;
        Ok(Status { held_back: self.held_back, parted: self.parted.is_some(), ..status })
    }

    /// Kernels print to the descriptor from now on; the daemon's end is no longer this worker's.
    pub(super) fn take(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), ControlError> {
        let output = descriptors.into_iter().next();
        let output = output.ok_or("no descriptor for what kernels print came along")?;
        let printed = self.remote.ask(move |dispatcher| dispatcher.client.output.fall_back_to(output))?;
        printed.map_err(ControlError::io("cannot print to another file"))?;
        self.kind = Kind::Alone;
        Ok(())
    }

    /// Waits until no buffer is shared with other programs.
    pub(super) fn unshare(&self) -> Result<(), ControlError> {
        let (answer, outcome) = channel();
        self.remote.run(move |dispatcher| dispatcher.unshare(answer));
        Ok(outcome.recv().unwrap_or_else(|_| Err(self.remote.problem()))?)
    }

    /// Waits until the contents of buffers are there.
    pub(super) fn await_loaded(&self) -> Result<Vec<Phase>, ControlError> {
        let (answer, outcome) = channel();
        self.remote.run(move |dispatcher| Loading::await_outcome(dispatcher, answer));
        Ok(outcome.recv().map_err(|_| self.remote.problem())??)
    }

    /// Has the dispatch thread do something long, and tells it to stop when the daemon goes away meanwhile.
    pub(super) fn work<T: Send + 'static, E: Into<ControlError> + Send + 'static>(
        &self,
        stream: &UnixStream,
        work: impl FnOnce(&mut Dispatcher, &AtomicBool) -> Result<T, E> + Send + 'static,
    ) -> Result<T, ControlError> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let result = self.remote.start(move |dispatcher| work(dispatcher, &told));
        loop {
            match result.recv_timeout(Duration::from_millis(50)) {
                Ok(done) => return done.map_err(Into::into),
                Err(RecvTimeoutError::Disconnected) => return Err(self.remote.problem().into()),
                Err(RecvTimeoutError::Timeout) if is_closed(stream) => stop.store(true, Ordering::Relaxed),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}
