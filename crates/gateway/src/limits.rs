//! What a client may take of the gateway.

use std::time::Duration;

/// Of a connection, what is read ahead, and with it the longest head of a request: bytes.
pub const BUFFER: usize = 64 << 10;
pub const HEADERS: usize = 128;
/// How long the head of a request may take, and a connection of HTTP/1 rest between two.
pub const HEAD_TIME: Duration = Duration::from_secs(60);
/// How long a connection may rest of which it is not known what it speaks, or that speaks HTTP/2: a little longer, so that
/// the limit of HTTP/1 comes first where it holds.
pub const REST_TIME: Duration = Duration::from_secs(61);
/// How long an instance may take to let a connection in: as long as nothing is in its way, none at all.
pub const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How often is looked whether a certificate is another one by now.
pub const CERTIFICATE_TIME: Duration = Duration::from_secs(1);
/// Requests that a connection of HTTP/2 has at once.
pub const STREAMS: u32 = 256;
/// What is carried at a time of a connection that is no HTTP any more: bytes.
pub const PIECE: usize = 32 << 10;
/// Of a workflow's request, or of what one of its steps has answered: bytes. It is in memory whole.
pub const MESSAGE: usize = 1 << 30;
/// How many calls a step has at once that is one for each element.
pub const WINDOW: usize = 32;
/// How long nobody is let in after that failed, as it does without descriptors.
pub const PAUSE: Duration = Duration::from_millis(100);
