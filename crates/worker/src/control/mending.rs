//! The loss of a worker: what the daemon is to hold for it, and taking the place of one that was lost.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rekindle_protocol::client::ToClient;
use rekindle_protocol::worker::{Phase, ask};

use super::{Control, ControlError};
use crate::dispatch::Dispatcher;
use crate::ondemand::{self, Mend, MendTakeover};

impl Control {
    /// Keeps from now on what another worker would go on from, and tells the daemon of it by the socket that came along.
    pub(super) fn mend(
        &mut self,
        (store, name): (PathBuf, String),
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), ControlError> {
        let daemon = descriptors.into_iter().next().ok_or("no socket came along")?;
        let daemon = UnixStream::from(daemon);
        let client = self.link.socket().ok_or("the client has gone")?;
        self.unshare()?;
        self.remote.ask(move |dispatcher: &mut Dispatcher| {
            let mend = match dispatcher.mend.take() {
                Some(mend) => mend,
                None => Mend::new(store, name)
                    .map_err(ControlError::io("memory to mend the loss of this worker with cannot be had"))?,
            };
            dispatcher.mend.insert(mend).be_held_by(daemon, &client);
            Ok::<_, ControlError>(())
        })?
    }

    /// Takes the place of a worker that was lost.
    pub(super) fn take_up(
        &mut self,
        stream: &UnixStream,
        request: ask::TakeUp,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<Phase>, ControlError> {
        let ask::TakeUp { run_directory, pid, store, name, how, kept } = request;
        if descriptors.len() != kept.len() + 1 {
            let (descriptors, names) = (descriptors.len(), kept.len());
            return Err(ControlError::Names { descriptors, names });
        }
        let client = descriptors.remove(0);
        let held: Vec<_> = kept.into_iter().zip(descriptors).collect();
        let (remote, directory) = (self.remote.clone(), PathBuf::from(run_directory));
        let (taken, mut phases): (MendTakeover, Vec<Phase>) =
            self.work(stream, move |dispatcher, _| ondemand::take_up(dispatcher, held, directory, &remote))?;
        phases.extend(self.await_loaded()?);
        let place = (PathBuf::from(store), name);
        let go_on = move |dispatcher: &mut Dispatcher| taken.go_on(dispatcher, pid, how, place);
        let (driver_attached, replayed) = self.remote.ask(go_on)??;
        phases.extend(replayed);
        self.adopt(pid, driver_attached, vec![client])?;
        self.remote.run(Dispatcher::take_requests);
        // It may have been brought to a stand by the daemon that lost the worker.
        self.link.send(&ToClient::Resume { restored: false, driver_attached });
        Ok(phases)
    }
}
