//! What can go wrong with framework images, and apps that start from them.

#[derive(Debug, thiserror::Error)]
pub enum FrameworkError {
    #[error(
        "the program of the framework image did not get ready: {reason}; `rekindle logs {name}` shows what it printed"
    )]
    NotReady { name: String, reason: String },

    #[error("the program that was to become an app did not: {reason}")]
    NoApp { reason: String },

    #[error(
        "{image:?} is no framework image, so that no app can start from it; `rekindle image framework` makes one"
    )]
    NoFramework { image: String },
}
