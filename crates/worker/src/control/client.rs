//! The client's socket comes from the daemon: that of a new client, of one that was restored, or of another worker's.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Control, ControlError};
use crate::client_thread::ClientThread;
use crate::dispatch::Dispatcher;
use crate::ondemand;

impl Control {
    /// Takes the client's socket and greets it.
    pub(super) fn welcome(
        &mut self,
        directory: PathBuf,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), ControlError> {
        let for_engine = directory.clone();
        let welcome = self.remote.ask(move |dispatcher| {
            dispatcher.client.directory = for_engine;
            dispatcher.client.welcome()
        })?;
        self.connect(directory, descriptors)?;
        if !self.link.send(&welcome) {
            return Err("the client closed its socket before it was welcomed".into());
        }
        Ok(())
    }

    pub(super) fn adopt(
        &mut self,
        pid: i32,
        driver_attached: bool,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), ControlError> {
        let directory = self.remote.ask(move |dispatcher| {
            dispatcher.client.pid = pid;
            dispatcher.client.driver_attached = driver_attached;
            dispatcher.client.output.of_pid(pid);
            dispatcher.client.directory.clone()
        })?;
        self.connect(directory, descriptors)?;
        Ok(())
    }

    /// Takes over what another worker has left, which the descriptors are of: its client's socket and its journal.
    pub(super) fn go_on_with(&mut self, pid: i32, mut descriptors: Vec<OwnedFd>) -> Result<(), ControlError> {
        let journal = descriptors.pop().ok_or("the journal did not come along")?;
        self.remote.ask(move |dispatcher| ondemand::go_on(dispatcher, journal, pid))??;
        self.adopt(pid, false, descriptors)?;
        self.remote.run(Dispatcher::take_requests);
        Ok(())
    }

    fn connect(&mut self, directory: PathBuf, descriptors: Vec<OwnedFd>) -> Result<(), ControlError> {
        let descriptor = descriptors.into_iter().next().ok_or("the client's socket did not come along")?;
        let socket = Arc::new(UnixStream::from(descriptor));
        if !self.link.connect(socket.clone()) {
            return Err("this worker has a client already".into());
        }
        let (remote, link) = (self.remote.clone(), self.link.clone());
        let told = remote.clone();
        remote.run(move |dispatcher| dispatcher.client.data.connect(told));
        let conversations = self.conversations.clone();
        let thread = ClientThread { socket, directory, remote, link, conversations };
        let spawned = std::thread::Builder::new().name("client".into()).spawn(move || thread.run());
        self.client = Some(spawned.map_err(ControlError::io("cannot start a thread"))?);
        Ok(())
    }
}
