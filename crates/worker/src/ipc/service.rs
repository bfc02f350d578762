//! Where other processes of the program ask for memory of this one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rekindle_protocol::frame::{self, FrameError};
use rekindle_protocol::ipc::{Answer, MemoryRequest, Source, VERSION, socket_name, withdrawn_name};
use rekindle_protocol::peer;

use crate::start::listen;

/// How long either side may take to say something; who loads is asked again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Memory that others may have. It is given up with the last who holds this.
#[derive(Debug)]
pub(crate) struct Export {
    pub number: u64,
    pub descriptor: OwnedFd,
    pub bytes: u64,
    /// The GPU that it lies on, where whoever has it is to know.
    pub gpu: Option<[u8; 16]>,
}

/// What a process has given handles of.
pub(super) struct Service {
    pub key: u64,
    path: PathBuf,
    /// Of the socket's name: a worker that takes the program over has one of its own there.
    inode: u64,
    /// Until it answers.
    listener: Mutex<Option<UnixListener>>,
    exports: Arc<Mutex<BTreeMap<u64, Weak<Export>>>>,
    ends: Arc<AtomicBool>,
}

impl Service {
    /// Whoever asks waits from now on. A worker of this process before this one has ended.
    pub(super) fn new(directory: &Path, key: u64) -> io::Result<Service> {
        let path = directory.join(socket_name(key));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = Mutex::new(Some(listen(&path)?));
        let inode = std::fs::symlink_metadata(&path)?.ino();
        Ok(Service { key, path, inode, listener, exports: Arc::default(), ends: Arc::default() })
    }

    /// Answers from now on.
    pub(super) fn begin(&self) -> io::Result<()> {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(listener) = listener else { return Ok(()) };
        let (exports, ends) = (self.exports.clone(), self.ends.clone());
        let serve = move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                let answered = stream.map_err(FrameError::from).and_then(|stream| answer(&stream, &exports));
                match answered {
                    Ok(()) | Err(FrameError::Closed) => {}
                    Err(error) => log::warn!("another process's worker asked for memory: {error}"),
                }
            }
        };
        std::thread::Builder::new().name("ipc".into()).spawn(serve)?;
        Ok(())
    }

    /// Has its name again, if that was put aside for a worker that was to take its place.
    pub(super) fn take_name_back(&self) -> io::Result<()> {
        let aside = self.aside();
        match std::fs::symlink_metadata(&aside) {
            Ok(found) if found.ino() == self.inode => std::fs::rename(aside, &self.path),
            _ => Ok(()),
        }
    }

    /// Where its socket is while another worker is to be found by its name.
    fn aside(&self) -> PathBuf {
        self.path.with_file_name(withdrawn_name(&socket_name(self.key)))
    }

    /// Others may have this from now on.
    pub(super) fn offer(&self, export: Export) -> Arc<Export> {
        let export = Arc::new(export);
        let mut exports = lock(&self.exports);
        exports.retain(|_, export| export.strong_count() > 0);
        exports.insert(export.number, Arc::downgrade(&export));
        export
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let aside = self.aside();
        let is_own =
            |path: &&PathBuf| std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == self.inode);
        let Some(path) = [&self.path, &aside].into_iter().find(is_own) else { return };
        // Wakes the thread that listens, if there is one.
        if self.listener.get_mut().unwrap_or_else(PoisonError::into_inner).take().is_none() {
            let _ = UnixStream::connect(path);
        }
        let _ = std::fs::remove_file(path);
    }
}

fn lock(exports: &Mutex<BTreeMap<u64, Weak<Export>>>) -> MutexGuard<'_, BTreeMap<u64, Weak<Export>>> {
    exports.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(stream: &UnixStream, exports: &Mutex<BTreeMap<u64, Weak<Export>>>) -> Result<(), FrameError> {
    if !peer::is_beside(stream) {
        log::warn!("a process of the sandbox is sent away that came where workers do");
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (MemoryRequest { version, number }, _) = frame::receive(stream)?;
    if version != VERSION {
        return frame::send(stream, &Answer::Version { version: VERSION }, &[]);
    }
    let export = lock(exports).get(&number).and_then(Weak::upgrade);
    match export {
        Some(export) => {
            let bytes = export.bytes;
            let answer = export.gpu.map_or(Answer::Here { bytes }, |gpu| Answer::On { bytes, gpu });
            frame::send(stream, &answer, &[export.descriptor.as_fd()])
        }
        None => frame::send(stream, &Answer::Gone {}, &[]),
    }
}

/// Memory of another process.
pub(super) struct ForeignMemory {
    pub descriptor: OwnedFd,
    pub bytes: u64,
    pub gpu: Option<[u8; 16]>,
}

/// What came of asking another process's worker.
pub(super) enum Found {
    Here(ForeignMemory),
    /// The process has it no more.
    Gone,
    /// Its own contents are still being loaded.
    NotYet,
    /// The process has ended.
    Nobody,
}

/// Asks the worker of another process for its memory.
pub(super) fn find(directory: &Path, source: Source) -> Result<Found, FrameError> {
    let stream = match UnixStream::connect(directory.join(socket_name(source.key))) {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(Found::Nobody),
        Err(error) => return Err(error.into()),
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let asked = frame::send(&stream, &MemoryRequest { version: VERSION, number: source.number }, &[]);
    match asked.and_then(|()| frame::receive(&stream)) {
        Ok((Answer::Here { bytes }, descriptors)) => given(descriptors, bytes, None),
        Ok((Answer::On { bytes, gpu }, descriptors)) => given(descriptors, bytes, Some(gpu)),
        Ok((Answer::Gone {}, _)) => Ok(Found::Gone),
        Ok((Answer::Version { version }, _)) => {
            Err(FrameError::OutOfOrder { expected: VERSION.into(), found: version.into() })
        }
        // It ended meanwhile.
        Err(FrameError::Closed) => Ok(Found::Nobody),
        Err(FrameError::Io(error)) if is_nobody(&error) => Ok(Found::Nobody),
        Err(FrameError::Io(error)) if is_late(&error) => Ok(Found::NotYet),
        Err(error) => Err(error),
    }
}

fn given(descriptors: Vec<OwnedFd>, bytes: u64, gpu: Option<[u8; 16]>) -> Result<Found, FrameError> {
    let descriptor = descriptors.into_iter().next().ok_or(FrameError::DescriptorsLost)?;
    Ok(Found::Here(ForeignMemory { descriptor, bytes, gpu }))
}

fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe)
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(number: u64) -> Export {
        Export {
            number,
            descriptor: std::fs::File::open("/dev/null").unwrap().into(),
            bytes: 4096,
            gpu: None,
        }
    }

    #[test]
    fn what_is_held_is_found_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let service = Service::new(directory.path(), 5).unwrap();
        let source = |number| Source { key: 5, number };
        let find = |number| find(directory.path(), source(number)).unwrap();
        let held = service.offer(export(1));
        assert!(matches!(find(1), Found::NotYet));
        service.begin().unwrap();
        assert!(matches!(find(1), Found::Here(ForeignMemory { bytes: 4096, .. })));
        assert!(matches!(find(2), Found::Gone));
        drop(held);
        assert!(matches!(find(1), Found::Gone));
        drop(service);
        assert!(matches!(find(1), Found::Nobody));
    }

    #[test]
    fn a_worker_that_ends_leaves_the_next_one_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let first = Service::new(directory.path(), 5).unwrap();
        let second = Service::new(directory.path(), 5).unwrap();
        second.begin().unwrap();
        drop(first);
        assert!(matches!(find(directory.path(), Source { key: 5, number: 1 }).unwrap(), Found::Gone));
    }

    #[test]
    fn one_that_goes_on_after_all_has_its_name_again() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join(socket_name(5));
        let aside = directory.path().join(withdrawn_name(&socket_name(5)));
        let find = || find(directory.path(), Source { key: 5, number: 1 }).unwrap();
        let stays = Service::new(directory.path(), 5).unwrap();
        stays.begin().unwrap();
        stays.take_name_back().unwrap();
        assert!(matches!(find(), Found::Gone));
        std::fs::rename(&place, &aside).unwrap();
        assert!(matches!(find(), Found::Nobody));
        let other = Service::new(directory.path(), 5).unwrap();
        assert!(matches!(find(), Found::NotYet));
        stays.take_name_back().unwrap();
        drop(other);
        assert!(matches!(find(), Found::Gone));
        // Or the other one goes on.
        std::fs::rename(&place, &aside).unwrap();
        let other = Service::new(directory.path(), 5).unwrap();
        other.begin().unwrap();
        drop(stays);
        assert!(matches!(find(), Found::Gone) && !aside.exists());
    }

    #[test]
    fn a_worker_takes_the_place_of_one_that_was_killed() {
        let directory = tempfile::tempdir().unwrap();
        drop(listen(&directory.path().join(socket_name(5))).unwrap());
        assert!(matches!(find(directory.path(), Source { key: 5, number: 1 }).unwrap(), Found::Nobody));
        let service = Service::new(directory.path(), 5).unwrap();
        service.begin().unwrap();
        assert!(matches!(find(directory.path(), Source { key: 5, number: 1 }).unwrap(), Found::Gone));
    }
}
