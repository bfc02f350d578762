//! Ring records: what a thread of the program asks its worker to do.
//!
//! [`table`] declares every operation once; from that come the request structs, their opcodes, the [`Handler`] trait
//! that a worker implements and [`dispatch`], which decodes a record and calls it. A record's body is the postcard
//! encoding of the request; its trailer, where an operation has bulk bytes, is those bytes.
//!
//! - `async` operations are not answered. An error becomes the device's asynchronous error on the board.
//! - `sync` operations are answered in the ring's reply area: a [`ReplyHead`], then the postcard encoding of the value.
//!   The thread that asked waits, so a ring has at most one unanswered `sync` operation.
//!
//! The client chooses the ids of the objects that it makes ([`Id`]), so that making one needs no answer.

mod node;
mod reply;
mod table;

pub use node::{CaptureEnds, NodeAction, NodeFound};
pub use reply::{Answer, ReplyHead, decode_reply, encode_reply};
pub use table::*;

/// The client's number for an object: streams, events, modules, functions, graphs, ... each kind counts for itself.
pub type Id = u32;

/// Stream id of the legacy default stream.
pub const LEGACY_STREAM: Id = 0;
/// Stream id of the default stream of the thread that owns the ring.
pub const PER_THREAD_STREAM: Id = 1;
/// The first id that the client gives to a stream that it makes.
pub const FIRST_STREAM: Id = 2;

/// An operation that the worker does not answer.
pub trait Asynchronous: serde::Serialize {
    const OPCODE: u32;
    const NAME: &'static str;
}

/// An operation that the worker answers.
pub trait Synchronous: serde::Serialize {
    const OPCODE: u32;
    const NAME: &'static str;
    type Reply: serde::de::DeserializeOwned + serde::Serialize;
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of the ring.
    pub ring: usize,
}

/// Why a record could not be dispatched: the program has overwritten shared memory, or versions differ.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    #[error("request with unknown operation {0}")]
    Opcode(u32),
    #[error("request {name} could not be decoded: {source}")]
    Body { name: &'static str, source: postcard::Error },
}

macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $kind:ident $method:ident $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* $field:ident : $type:ty),* $(,)?
        } $(-> $reply:ty)? ;
    )*) => {
        /// Numbers of the operations, in the table's order.
        #[repr(u32)]
        #[allow(clippy::enum_variant_names, reason = "variants are named as the operations")]
        enum Opcode { $($name,)* }

        $(
            $(#[$doc])*
            #[derive(Debug, serde::Serialize, serde::Deserialize)]
            pub struct $name $(<$life>)? {
                $($(#[$field_meta])* pub $field: $type,)*
            }
            operations!(@trait $kind $name $(<$life>)? $(-> $reply)?);
        )*

        /// What a worker does for each operation.
        pub trait Handler {
            $(operations!(@method $kind $(#[$doc])* $method $name $(<$life>)? $(-> $reply)?);)*
        }

        /// Decodes a record and calls its method. The bytes are the encoded answer of a `sync` operation that could be
        /// given at once; `None` for an `async` one (whose result is passed to `failed` if it is an error) and for one
        /// that the handler answers later.
        pub fn dispatch<H: Handler>(
            handler: &mut H,
            origin: $crate::operation::Origin,
            opcode: u32,
            body: &[u8],
            trailer: &[u8],
            failed: impl FnOnce(&mut H, &'static str, rekindle_cuda::CuResult),
        ) -> Result<Option<Vec<u8>>, $crate::operation::Malformed> {
            $(
                if opcode == Opcode::$name as u32 {
                    let request: $name = postcard::from_bytes(body)
                        .map_err(|source| $crate::operation::Malformed::Body { name: stringify!($name), source })?;
                    return operations!(@call $kind handler, origin, $method, $name, request, trailer, failed);
                }
            )*
            Err($crate::operation::Malformed::Opcode(opcode))
        }

        /// Decodes a record and does nothing with it; the operation's name if it could be.
        pub fn check(opcode: u32, body: &[u8]) -> Result<&'static str, $crate::operation::Malformed> {
            $(
                if opcode == Opcode::$name as u32 {
                    return postcard::from_bytes::<$name>(body)
                        .map(|_| stringify!($name))
                        .map_err(|source| $crate::operation::Malformed::Body { name: stringify!($name), source });
                }
            )*
            Err($crate::operation::Malformed::Opcode(opcode))
        }

        /// The operation's name, for logs.
        pub fn name(opcode: u32) -> Option<&'static str> {
            [$(stringify!($name)),*].get(opcode as usize).copied()
        }

        /// Whether a worker answers the operation.
        pub fn is_answered(opcode: u32) -> bool {
            [$(operations!(@answered $kind)),*].get(opcode as usize).copied().unwrap_or_default()
        }
    };

    (@answered async) => { false };
    (@answered sync) => { true };

    (@trait async $name:ident $(<$life:lifetime>)?) => {
        impl $(<$life>)? $crate::operation::Asynchronous for $name $(<$life>)? {
            const OPCODE: u32 = Opcode::$name as u32;
            const NAME: &'static str = stringify!($name);
        }
    };
    (@trait sync $name:ident $(<$life:lifetime>)? -> $reply:ty) => {
        impl $(<$life>)? $crate::operation::Synchronous for $name $(<$life>)? {
            const OPCODE: u32 = Opcode::$name as u32;
            const NAME: &'static str = stringify!($name);
            type Reply = $reply;
        }
    };
    (@method async $(#[$doc:meta])* $method:ident $name:ident $(<$life:lifetime>)?) => {
        $(#[$doc])*
        fn $method(&mut self, origin: $crate::operation::Origin, request: $name, trailer: &[u8]) -> rekindle_device::Result<()>;
    };
    (@method sync $(#[$doc:meta])* $method:ident $name:ident $(<$life:lifetime>)? -> $reply:ty) => {
        $(#[$doc])*
        fn $method(&mut self, origin: $crate::operation::Origin, request: $name, trailer: &[u8]) -> $crate::operation::Answer<$reply>;
    };
    (@call async $handler:ident, $origin:ident, $method:ident, $name:ident, $request:ident, $trailer:ident, $failed:ident) => {{
        if let Err(code) = $handler.$method($origin, $request, $trailer) {
            $failed($handler, stringify!($name), code);
        }
        Ok(None)
    }};
    (@call sync $handler:ident, $origin:ident, $method:ident, $name:ident, $request:ident, $trailer:ident, $failed:ident) => {
        Ok(match $handler.$method($origin, $request, $trailer) {
            $crate::operation::Answer::Now(result) => Some($crate::operation::encode_reply(&result)),
            $crate::operation::Answer::Later => None,
        })
    };
}
pub(crate) use operations;
