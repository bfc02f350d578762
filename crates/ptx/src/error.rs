//! What can be wrong with a module or a launch before any thread runs.

/// Why a module could not be loaded or a kernel not be launched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is not PTX as documented.
    #[error("line {line}: {message}")]
    Syntax { line: u32, message: String },
    /// The instruction, or this combination of its modifiers, is not one the emulated GPU runs.
    #[error("line {line}: unknown instruction `{instruction}`; the emulated GPU cannot run this module")]
    UnknownInstruction { line: u32, instruction: String },
    /// An instruction's operands do not fit it.
    #[error("line {line}: `{instruction}`: {message}")]
    Operand { line: u32, instruction: String, message: String },
    /// Modules do not fit together.
    #[error("cannot link: {message}")]
    Link { message: String },
    /// A launch that the module or the device does not allow.
    #[error("cannot launch `{kernel}`: {message}")]
    Launch { kernel: String, message: String },
}

impl Error {
    pub(crate) fn syntax(line: u32, message: impl Into<String>) -> Self {
        Self::Syntax { line, message: message.into() }
    }

    pub(crate) fn link(message: impl Into<String>) -> Self {
        Self::Link { message: message.into() }
    }

    /// The PTX line that the error is about, where there is one.
    pub fn line(&self) -> Option<u32> {
        match self {
            Self::Syntax { line, .. }
            | Self::UnknownInstruction { line, .. }
            | Self::Operand { line, .. } => Some(*line),
            Self::Link { .. } | Self::Launch { .. } => None,
        }
    }
}
