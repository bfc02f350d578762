//! Why a call has no result, as its caller is told.

use std::borrow::Cow;

/// A type's name and a sentence. A Python program raises its own exception if it has one built in of that name, such as
/// `ValueError`, and else `RemoteError`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {text}")]
pub struct Error {
    pub kind: Cow<'static, str>,
    pub text: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(kind: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Error {
        Error { kind: kind.into(), text: text.into() }
    }

    /// Arguments that are not as the function wants them.
    pub fn argument(text: impl Into<String>) -> Error {
        Error::new("TypeError", text)
    }

    /// A message that cannot be understood, or a value that cannot be sent.
    pub fn message(text: impl Into<String>) -> Error {
        Error::new("SerializationError", text)
    }
}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::new("FunctionError", text)
    }
}

impl From<&str> for Error {
    fn from(text: &str) -> Error {
        Error::from(text.to_string())
    }
}
