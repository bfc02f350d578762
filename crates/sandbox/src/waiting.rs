//! CRIU, asked for a dump and ready for it before the program is brought to a stand.

use std::fs::File;
use std::time::Duration;

use nix::unistd::Pid;

use crate::conversation::{ConversationOptions, Failed, Service, StepHandler};
use crate::severed::ConnectionPolicy;

/// How long CRIU may take to be loaded and to learn what the kernel can do, before the program is brought to a stand without
/// it.
const START: Duration = Duration::from_secs(2);

/// CRIU's step at which it has brought all of the program to a stand, and has not looked at it yet.
pub(crate) const STANDING_STEP: &str = "query-ext-files";

/// CRIU's step at which the images are written and it has left the processes, which stand still yet.
pub(crate) const POST_DUMP_STEP: &str = "post-dump";

/// It waits for leave at its first step, before it looks at the program. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// None once it has been told to begin, or to give up.
    criu: Option<Service>,
    /// CRIU opens it by our number for it.
    pub images: File,
    request: Vec<u8>,
    pub connections: ConnectionPolicy,
}

impl Waiting {
    pub fn begin(
        mut criu: Service,
        images: File,
        request: Vec<u8>,
        connections: ConnectionPolicy,
    ) -> Result<Self, Failed> {
        let asked = criu.ask(&request).and_then(|()| criu.await_first_step(START));
        let waiting = Self { criu: Some(criu), images, request, connections };
        asked.map(|()| waiting)
    }

    /// Whether it still waits, and was asked just this.
    pub fn is_asked(&mut self, request: &[u8]) -> bool {
        self.is_there() && self.request == request
    }

    /// Whether it has not ended.
    pub fn is_there(&mut self) -> bool {
        self.criu.as_mut().is_some_and(Service::is_there)
    }

    /// What it was asked.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    pub fn pid(&self) -> Option<Pid> {
        self.criu.as_ref().map(Service::pid)
    }

    /// Has it begin, and answers it until it is done and has ended.
    pub fn attend(self, course: &ConversationOptions, leave: &mut StepHandler<'_>) -> Result<(), Failed> {
        if let Some(mut criu) = self.attend_until_done(course, leave)? {
            criu.wait();
        }
        Ok(())
    }

    /// The same, and it need not have ended when it has let go of the program: that takes it a while longer.
    pub fn attend_until_done(
        mut self,
        course: &ConversationOptions,
        leave: &mut StepHandler<'_>,
    ) -> Result<Option<Service>, Failed> {
        let Some(mut criu) = self.criu.take() else { return Ok(None) };
        match criu.attend(course, leave) {
            Ok(_) => Ok(Some(criu)),
            Err(failed) => {
                criu.wait();
                Err(failed)
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(criu) = self.criu.take() {
            criu.dismiss();
        }
    }
}
