//! The sandbox's network and its ports, as its record says.

use std::sync::Arc;

use rekindle_sandbox::Addresses;

use crate::error::Result;
use crate::network::Publisher;
use crate::sandboxes::Sandbox;

impl Sandbox {
    /// Makes the network that the record says, and takes its ports. A program that comes from an image may have sockets with
    /// addresses of the network that it had.
    pub fn furnish_network(&self, publisher: &Arc<Publisher>) -> Result<()> {
        let record = self.record();
        if record.network.is_host() {
            return Ok(());
        }
        self.network.furnish(if record.image.is_some() { Addresses::Any } else { Addresses::Loopback })?;
        self.take_ports(publisher)
    }

    /// Takes the ports again that it had from an earlier daemon. `init` is a process of it, if it runs.
    pub fn adopt_network(&self, publisher: &Arc<Publisher>, init: Option<i32>) {
        if self.record().network.is_host() {
            return;
        }
        if let Some(Err(error)) = init.map(|init| self.network.find(init)) {
            return self.report_problem(format!("its network cannot be found again: {error}"));
        }
        match self.take_ports(publisher) {
            Ok(()) if init.is_none() => self.network.stopped(),
            Ok(()) => {}
            Err(error) => self.report_problem(format!("its ports lead nowhere: {error}")),
        }
    }

    fn take_ports(&self, publisher: &Arc<Publisher>) -> Result<()> {
        let record = self.record();
        if record.ports.is_empty() {
            return Ok(());
        }
        let ports = self.network.take_ports(publisher, &record.name, &record.ports)?;
        if ports == record.ports { Ok(()) } else { self.update(|record| record.ports = ports) }
    }
}
