//! What is kept on disk of a workflow.

use std::borrow::Cow;

use rekindle_protocol::network::Port;
use rekindle_protocol::service::TlsFiles;
use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::workflow::Graph;
use serde::{Deserialize, Serialize};

use crate::host::records::{RecordError, StoredRecord};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkflowRecord {
    pub name: String,
    /// Whose it is, if it is somebody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Where clients come.
    pub port: Port,
    pub graph: Graph,
    /// What clients speak TLS with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsFiles>,
}

impl StoredRecord for WorkflowRecord {
    const KIND: &'static str = "workflow";

    fn key(&self) -> Cow<'_, str> {
        Cow::Owned(self.named().word())
    }

    fn check(&self) -> std::result::Result<(), RecordError> {
        self.graph.check().map_err(|error| RecordError::Refused(error.into()))
    }
}

impl WorkflowRecord {
    pub fn named(&self) -> ServiceName {
        ServiceName::new(self.tenant.as_deref(), &self.name)
    }
}
