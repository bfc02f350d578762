//! What can go wrong with services.

use rekindle_gateway::{PlanError, TlsError};
use rekindle_protocol::service_name::ServiceName;
use rekindle_protocol::workflow::GraphError;

use crate::host::records::RecordError;

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("there is no service named {name}; `rekindle services` lists them")]
    Unknown { name: ServiceName },

    #[error(
        "each of the tenants {} has a service {name:?}; say by `--tenant` whose is meant", tenants.join(", ")
    )]
    Ambiguous { name: String, tenants: Vec<String> },

    #[error(
        "a service cannot be named {name:?}: expected 1 to 64 letters, digits, '.', '-' and '_', the first a letter or digit"
    )]
    BadName { name: String },

    #[error(
        "{name} is a workflow, and no service of an image; take another name, or remove it by `rekindle unserve`"
    )]
    IsWorkflow { name: ServiceName },

    #[error(
        "{name} is a service of an image, and no workflow; take another name, or remove it by `rekindle unserve`"
    )]
    IsService { name: ServiceName },

    #[error("the workflow {name} cannot be as asked: {source}")]
    BadGraph { name: ServiceName, source: Box<GraphError> },

    #[error(
        "the step {step:?} of the workflow {name} calls {service}, and may call its own tenant's services and nobody's alone"
    )]
    ForeignStep { name: ServiceName, step: String, service: Box<ServiceName> },

    #[error("the step {step:?} of the workflow {name} calls {service}, which is not there; serve that first")]
    NoService { name: ServiceName, step: String, service: Box<ServiceName> },

    #[error("the image {image:?} cannot be served: {reason}")]
    CannotServe { image: String, reason: String },

    #[error("the service {name} cannot be as asked: {source}")]
    BadPlan { name: ServiceName, source: PlanError },

    #[error("the service {name} is not there yet; say by `--port [ADDRESS:]PORT` where it is to be found")]
    NoPort { name: ServiceName },

    #[error("the service {name} cannot have port {port}: {why}; choose another by `--port [ADDRESS:]PORT`")]
    CannotListen { name: ServiceName, port: u16, why: String },

    #[error("the certificate of the service {name} cannot be used: {source}")]
    NoCertificate { name: ServiceName, source: Box<TlsError> },

    #[error("the service {name} cannot be changed, for its record cannot be read: {source}")]
    NoRecord { name: ServiceName, source: RecordError },
}
