//! The part of CRIU's RPC protocol that we speak: protocol buffers, one message a packet, with `criu swrk`.
//!
//! Field numbers are those of CRIU's published `rpc.proto` and `stats.proto`. Unknown fields are skipped, so a
//! newer CRIU is understood; a packet that is not a protocol buffer is `None`, never a panic.

use crate::message::DumpStats;
use crate::proto::{Encoder, Value, field};

pub const REQUEST_DUMP: u64 = 1;
pub const REQUEST_RESTORE: u64 = 2;
const REQUEST_NOTIFY: u64 = 6;
const CGROUPS_IGNORE: u64 = 0;
const NETWORK_LOCK_SKIP: u64 = 3;
/// All that CRIU does, value by value; only its steps; only what goes wrong. It writes each line by itself, some for
/// every stretch of memory.
pub const LOG_DEBUG: u32 = 4;
pub const LOG_STEPS: u32 = 3;
pub const LOG_TROUBLE: u32 = 2;
/// Deleted files are kept whole in the images, up to CRIU's largest limit.
const GHOST_LIMIT: u64 = u32::MAX as u64;
/// Of a request: its kind, and its options.
pub const KIND: u32 = 1;
pub const OPTIONS: u32 = 2;
/// Of the options: directories as descriptors of whoever asks, how much goes to the log, who takes the pages, what
/// replaces what, and what is outside.
pub const IMAGES_DIR: u32 = 1;
pub const LOG_LEVEL: u32 = 9;
pub const PAGE_SERVER: u32 = 11;
pub const WORK_DIR: u32 = 17;
pub const INHERIT: u32 = 27;
pub const EXTERNAL: u32 = 37;

/// The options common to a dump and a restore, and those of each.
#[derive(Debug, Default)]
pub struct Options {
    pub images_dir: i32,
    /// Where the log and statistics go; the images directory where there is none.
    pub work_dir: Option<i32>,
    pub pid: Option<i32>,
    pub leave_running: bool,
    /// Whether established TCP connections are taken along or brought back; else a dump leaves them alone.
    pub tcp_established: bool,
    /// Whether the program's session is that of somebody outside of its tree.
    pub shell_job: bool,
    pub timeout_seconds: Option<u32>,
    pub log_file: &'static str,
    pub log_level: u32,
    pub external: Vec<String>,
    pub inherit: Vec<(String, i32)>,
    /// The connection to a page server that takes the pages of a dump.
    pub page_server: Option<i32>,
    /// A file of CRIU's descriptor with options that its protocol has no field for.
    pub config: Option<i32>,
}

fn options(options: &Options) -> Encoder {
    let mut out = Encoder::default();
    out.number(IMAGES_DIR, options.images_dir as u64);
    if let Some(pid) = options.pid {
        out.number(2, pid as u64);
    }
    out.number(3, options.leave_running.into())
        // Datagrams to a name of somebody else's, such as the system log's.
        .number(4, 1)
        .number(5, options.tcp_established.into())
        .number(7, options.shell_job.into())
        .number(8, 1)
        .number(LOG_LEVEL, options.log_level.into())
        .bytes(10, options.log_file.as_bytes())
        .number(12, 1)
        .number(18, 1)
        .number(34, CGROUPS_IGNORE)
        .number(35, GHOST_LIMIT)
        // Connections that nobody has accepted are those of a program that goes on; one that does not resets them.
        .number(46, 1)
        .number(52, (!options.tcp_established).into())
        // Ends of connections that come along stand still: nothing comes meanwhile, and no packet filter is needed
        // against it.
        .number(64, NETWORK_LOCK_SKIP);
    if let Some(fd) = options.page_server {
        out.bytes(PAGE_SERVER, &page_server(fd));
    }
    if let Some(fd) = options.config {
        out.bytes(51, format!("/proc/self/fd/{fd}").as_bytes());
    }
    if let Some(dir) = options.work_dir {
        out.number(WORK_DIR, dir as u64);
    }
    for (key, fd) in &options.inherit {
        out.bytes(INHERIT, &inherit(key, *fd));
    }
    for external in &options.external {
        out.bytes(EXTERNAL, external.as_bytes());
    }
    if let Some(seconds) = options.timeout_seconds {
        out.number(45, seconds.into());
    }
    out
}

/// A page server at the other end of CRIU's descriptor `fd`.
pub fn page_server(fd: i32) -> Vec<u8> {
    let mut server = Encoder::default();
    server.number(4, fd as u64);
    server.0
}

/// CRIU's descriptor `fd` in the place of what it calls `key`.
pub fn inherit(key: &str, fd: i32) -> Vec<u8> {
    let mut one = Encoder::default();
    one.bytes(1, key.as_bytes()).number(2, fd as u64);
    one.0
}

pub fn dump_request(with: &Options) -> Vec<u8> {
    let mut out = Encoder::default();
    out.number(KIND, REQUEST_DUMP).bytes(OPTIONS, &options(with).0);
    out.0
}

/// The restored program becomes a child of the process that started `criu swrk`.
pub fn restore_request(with: &Options) -> Vec<u8> {
    let mut inner = options(with);
    inner.number(26, 1);
    let mut out = Encoder::default();
    out.number(KIND, REQUEST_RESTORE).bytes(OPTIONS, &inner.0);
    out.0
}

pub fn notify_answer(success: bool) -> Vec<u8> {
    let mut out = Encoder::default();
    out.number(1, REQUEST_NOTIFY).number(3, success.into());
    out.0
}

#[derive(Debug, PartialEq, Eq)]
pub enum Response {
    /// CRIU has reached a step and waits for [`notify_answer`].
    Notify {
        step: String,
    },
    Finished {
        success: bool,
        pid: Option<i32>,
        message: Option<String>,
    },
}

/// Reads one packet from CRIU.
pub fn response(mut input: &[u8]) -> Option<Response> {
    let (mut kind, mut success, mut step, mut pid, mut message) = (0, false, None, None, None);
    while !input.is_empty() {
        match field(&mut input)? {
            (1, Value::Number(number)) => kind = number,
            (2, Value::Number(number)) => success = number != 0,
            (4, Value::Bytes(mut inner)) => {
                while !inner.is_empty() {
                    if let (1, Value::Number(number)) = field(&mut inner)? {
                        pid = Some(number as i32);
                    }
                }
            }
            (5, Value::Bytes(mut inner)) => {
                while !inner.is_empty() {
                    if let (1, Value::Bytes(name)) = field(&mut inner)? {
                        step = Some(String::from_utf8_lossy(name).into_owned());
                    }
                }
            }
            (9, Value::Bytes(text)) => message = Some(String::from_utf8_lossy(text).trim().to_owned()),
            _ => {}
        }
    }
    Some(match kind {
        REQUEST_NOTIFY => Response::Notify { step: step.unwrap_or_default() },
        _ => Response::Finished { success, pid, message },
    })
}

/// Reads the contents of CRIU's `stats-dump`: two magic words, a length, the entry.
pub fn dump_stats(file: &[u8]) -> Option<DumpStats> {
    let mut input = file.get(12..)?;
    let mut stats = DumpStats::default();
    while !input.is_empty() {
        let (1, Value::Bytes(mut inner)) = field(&mut input)? else { continue };
        while !inner.is_empty() {
            match field(&mut inner)? {
                (1, Value::Number(number)) => stats.freezing_us = number,
                (2, Value::Number(number)) => stats.frozen_us = number,
                (3, Value::Number(number)) => stats.memory_dump_us = number,
                (4, Value::Number(number)) => stats.memory_write_us = number,
                (5, Value::Number(number)) => stats.pages_scanned = number,
                (7, Value::Number(number)) => stats.pages_written = number,
                _ => {}
            }
        }
    }
    Some(stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_notification_and_a_result_are_told_apart() {
        let mut inner = Encoder::default();
        inner.bytes(1, b"post-dump").number(2, 1000);
        let mut packet = Encoder::default();
        packet.number(1, REQUEST_NOTIFY).number(2, 1).bytes(5, &inner.0);
        assert_eq!(response(&packet.0), Some(Response::Notify { step: "post-dump".into() }));

        let mut inner = Encoder::default();
        inner.number(1, 1000);
        let mut packet = Encoder::default();
        packet.number(1, REQUEST_RESTORE).number(2, 1).bytes(4, &inner.0).bytes(9, b"why\n").number(200, 7);
        let expected = Response::Finished { success: true, pid: Some(1000), message: Some("why".into()) };
        assert_eq!(response(&packet.0), Some(expected));
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_panic(bytes: Vec<u8>) {
            response(&bytes);
            dump_stats(&bytes);
        }
    }
}
