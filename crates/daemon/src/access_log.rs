//! The access log of services: a line of JSON for each request.
//!
//! ```text
//!   gateway ── record ─▶ a queue with an end ─▶ a thread ─▶ file, or standard output
//!                 └ full: counted                  └ not taken: counted, and said once there is room
//! ```
//!
//! A request never waits for it. The file is bounded as other logs are: when it has half of what may be kept, it becomes
//! `FILE.1` in place of the one that was that, so that no line is cut and whoever reads it needs to know nothing of ours. One
//! that somebody else has moved away is begun anew.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rekindle_gateway::Record;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::host::clock;

/// How many requests wait to be written.
const ROOM: usize = 8192;
/// How much is written at once.
const PIECE: usize = 64 << 10;
/// How often is looked whether the file is still in its place.
const LOOK: Duration = Duration::from_secs(1);
/// Standard output.
const OUTPUT: &str = "-";

pub struct AccessLog {
    to: PathBuf,
    sender: SyncSender<Record>,
    lost: Arc<AtomicU64>,
}

impl AccessLog {
    /// Into this file, of which so many bytes are kept (0: all), or for `-` to standard output.
    pub fn open(to: &Path, limit: u64) -> Result<Arc<AccessLog>> {
        let sink: Box<dyn Sink> = match to == Path::new(OUTPUT) {
            true => Box::new(io::stdout()),
            false => Box::new(
                Rolling::open(to, limit).map_err(|source| Error::io("write the access log", to, source))?,
            ),
        };
        AccessLog::begin(to, sink, ROOM).map_err(|source| Error::system("start a thread", source))
    }

    fn begin(to: &Path, sink: Box<dyn Sink>, room: usize) -> io::Result<Arc<AccessLog>> {
        let (sender, records) = sync_channel(room);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer { sink, lost: lost.clone(), told: 0 };
        std::thread::Builder::new().name("access-log".into()).spawn(move || writer.run(&records))?;
        Ok(Arc::new(AccessLog { to: to.to_path_buf(), sender, lost }))
    }

    /// Never waits.
    pub fn note(&self, record: Record) {
        if self.sender.try_send(record).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn shown(&self) -> Value {
        json!({ "to": self.to, "lost": self.lost() })
    }

    /// How many lines it lacks.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Where lines go: all of them, or none.
trait Sink: Send {
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;
}

impl Sink for io::Stdout {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.write_all(lines)?;
        self.flush()
    }
}

struct Writer {
    sink: Box<dyn Sink>,
    lost: Arc<AtomicU64>,
    /// How many of those it was said of.
    told: u64,
}

impl Writer {
    fn run(mut self, records: &Receiver<Record>) {
        while let Ok(first) = records.recv() {
            let (mut lines, mut count) = (line(&first), 1);
            while lines.len() < PIECE
                && let Ok(next) = records.try_recv()
            {
                lines += &line(&next);
                count += 1;
            }
            self.write(&lines, count);
        }
    }

    fn write(&mut self, lines: &str, count: u64) {
        let lost = self.lost.load(Ordering::Relaxed);
        let gap = match lost - self.told {
            0 => String::new(),
            missing => format!("{}\n", json!({ "time": time(SystemTime::now()), "lost": missing })),
        };
        match self.sink.append(format!("{gap}{lines}").as_bytes()) {
            Ok(()) => self.told = lost,
            Err(error) => {
                // The first one that is missing tells.
                if lost == self.told {
                    log::warn!("the access log is not written: {error}");
                }
                self.lost.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

fn line(record: &Record) -> String {
    let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let row = json!({
        "time": time(record.time),
        "service": record.service.name,
        "tenant": record.service.tenant,
        "instance": record.instance,
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "queued_us": microseconds(record.queued),
        "instance_us": record.at_instance.map(microseconds),
        "client": record.client,
        "request_id": record.request_id,
    });
    format!("{row}\n")
}

fn time(at: SystemTime) -> String {
    clock::microseconds(at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64))
}

/// A file that becomes another one when it is long.
struct Rolling {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// 0: none.
    limit: u64,
    looked: Instant,
}

impl Rolling {
    fn open(path: &Path, limit: u64) -> io::Result<Rolling> {
        let path = std::path::absolute(path)?;
        // A pipe would be waited for.
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is no file; name one, or - for standard output"));
        }
        Ok(Rolling { path, file, bytes: found.len(), limit, looked: Instant::now() })
    }

    fn open_again(&mut self) -> io::Result<()> {
        *self = Rolling::open(&self.path, self.limit)?;
        Ok(())
    }

    fn is_elsewhere(&self) -> bool {
        let place = |found: fs::Metadata| (found.dev(), found.ino());
        fs::metadata(&self.path).map(place).ok() != self.file.metadata().map(place).ok()
    }
}

impl Sink for Rolling {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            if self.is_elsewhere() {
                self.open_again()?;
            }
        }
        let is_full = self.bytes + lines.len() as u64 > self.limit / 2;
        if self.limit > 0 && self.bytes > 0 && is_full {
            fs::rename(&self.path, self.path.with_added_extension("1"))?;
            self.open_again()?;
        }
        if let Err(error) = self.file.write_all(lines) {
            // No part of a line stays.
            let _ = self.file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use rekindle_protocol::service_name::ServiceName;

    use super::*;

    fn record(path: &str) -> Record {
        Record {
            time: UNIX_EPOCH,
            service: ServiceName::new(Some("blue"), "web"),
            instance: Some("web-1".into()),
            method: "GET".into(),
            path: path.into(),
            status: Some(200),
            bytes_in: 0,
            bytes_out: 7,
            queued: Duration::from_micros(3),
            at_instance: None,
            took: Duration::ZERO,
            client: [127, 0, 0, 1].into(),
            request_id: "a\"b".into(),
            span: None,
        }
    }

    /// Takes lines when it is told to, and says what it has taken.
    struct Slow {
        go: Receiver<bool>,
        taken: Arc<Mutex<String>>,
    }

    impl Sink for Slow {
        fn append(&mut self, lines: &[u8]) -> io::Result<()> {
            if !self.go.recv().unwrap() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *self.taken.lock().unwrap() += std::str::from_utf8(lines).unwrap();
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_log_that_is_slow_and_what_is_lost_is_counted() {
        let ((go, told), taken) = (channel(), Arc::new(Mutex::new(String::new())));
        let log =
            AccessLog::begin(Path::new("log"), Box::new(Slow { go: told, taken: taken.clone() }), 2).unwrap();
        let wait = |what: &str, done: &dyn Fn() -> bool| {
            let begin = Instant::now();
            while !done() {
                assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for number in 0..100 {
            log.note(record(&format!("/{number}")));
        }
        let lost = || log.shown()["lost"].as_u64().unwrap();
        // One may be in the thread's hands, or two together with a third.
        let first = lost();
        assert!((95..=98).contains(&first), "{first}");
        // What is not taken counts too.
        go.send(false).unwrap();
        wait("the failure to be counted", &|| lost() > first);
        for _ in 0..8 {
            let _ = go.send(true);
        }
        wait("room", &|| {
            log.note(record("/last"));
            taken.lock().unwrap().contains("/last")
        });
        let text = taken.lock().unwrap().clone();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines[0]["lost"].as_u64().unwrap() > first && lines[0]["time"].is_string(), "{text}");
        assert_eq!(lines[1]["request_id"], "a\"b");
    }

    #[test]
    fn the_file_is_bounded_and_begun_anew_where_it_was_moved_away() {
        const LIMIT: u64 = 8000;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let mut log = Rolling::open(&path, LIMIT).unwrap();
        for number in 0..1000 {
            log.append(line(&record(&format!("/{number}"))).as_bytes()).unwrap();
        }
        let size = |name: &str| fs::metadata(directory.path().join(name)).unwrap().len();
        assert!(size("access.log") <= LIMIT / 2 && size("access.log.1") <= LIMIT / 2);
        let text = fs::read_to_string(directory.path().join("access.log.1")).unwrap()
            + &fs::read_to_string(&path).unwrap();
        let numbers: Vec<u32> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["path"].as_str().unwrap()[1..].parse().unwrap()
            })
            .collect();
        assert!(numbers.len() > 20 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
        assert_eq!(numbers.last(), Some(&999));
        assert_eq!(log.file.metadata().unwrap().mode() & 0o777, 0o600);
        // By somebody else's rotation.
        fs::rename(&path, directory.path().join("old")).unwrap();
        log.looked = Instant::now() - 2 * LOOK;
        log.append(b"{}\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/full"), directory.path(), Path::new("/nothing/here")] {
            let refused = AccessLog::open(path, 0).map(drop).unwrap_err().to_string();
            assert!(refused.contains("access log") && !refused.contains('\n'), "{refused}");
        }
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(AccessLog::open(&pipe, 0).is_err());
    }
}
