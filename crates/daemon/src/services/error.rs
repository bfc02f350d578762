//! What can go wrong with services.

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("there is no service named {name:?}; `rekindle services` lists them")]
    Unknown { name: String },

    #[error(
        "a service cannot be named {name:?}: expected 1 to 64 letters, digits, '.', '-' and '_', the first a letter or digit"
    )]
    BadName { name: String },

    #[error("the image {image:?} cannot be served: {reason}")]
    CannotServe { image: String, reason: String },

    #[error("the service {name:?} cannot be as asked: {reason}")]
    BadPlan { name: String, reason: String },

    #[error("the service {name:?} is not there yet; say by `--port [ADDRESS:]PORT` where it is to be found")]
    NoPort { name: String },

    #[error("the service {name:?} cannot have port {port}: {why}; choose another by `--port [ADDRESS:]PORT`")]
    CannotListen { name: String, port: u16, why: String },

    #[error("the certificate of the service {name:?} cannot be used: {reason}")]
    NoCertificate { name: String, reason: String },

    #[error("the service {name:?} {reason}")]
    Failed { name: String, reason: String },
}
