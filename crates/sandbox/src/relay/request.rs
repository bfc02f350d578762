//! What a runtime asks of CRIU, and what is planned put into it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use super::{PassedDescriptor, Plan};
use crate::pages;
use crate::proto::Message;
use crate::rpc::{self, EXTERNAL, IMAGES_DIR, INHERIT, LOG_LEVEL, OPTIONS, PAGE_SERVER, WORK_DIR};

/// A runtime's request, the directories that it names open here.
pub struct Request {
    whole: Message,
    options: Message,
    images: File,
    /// Kept open, for CRIU opens them by our numbers.
    _work: Option<File>,
}

/// A request for CRIU.
pub struct Amended {
    pub packet: Vec<u8>,
    /// What CRIU finds under the same numbers as we.
    pub shared: Vec<OwnedFd>,
    /// Kept open, for CRIU opens them by our numbers.
    _directories: (File, Option<OwnedFd>, Option<File>),
}

impl Request {
    /// Reads a packet of the process `asker`.
    pub fn read(packet: &[u8], asker: i32) -> io::Result<Request> {
        let odd =
            || io::Error::new(io::ErrorKind::InvalidData, "the runtime's request is not in CRIU's protocol");
        let whole = Message::read(packet).ok_or_else(odd)?;
        let mut options = whole.all_bytes(OPTIONS.into()).next().and_then(Message::read).ok_or_else(odd)?;
        let mut open = |field: u32| -> io::Result<Option<File>> {
            let number = options.number(field.into()).and_then(|number| i32::try_from(number as i64).ok());
            let Some(number) = number.filter(|number| *number >= 0) else { return Ok(None) };
            let directory = File::open(format!("/proc/{asker}/fd/{number}"))?;
            options.set(field.into(), directory.as_raw_fd() as u64);
            Ok(Some(directory))
        };
        let (images, work) = (open(IMAGES_DIR)?.ok_or_else(odd)?, open(WORK_DIR)?);
        Ok(Request { whole, options, images, _work: work })
    }

    pub fn images(&self) -> BorrowedFd<'_> {
        self.images.as_fd()
    }

    /// The request with what is planned; `passed` came with the plan.
    pub fn amend(self, plan: &Plan, passed: Vec<OwnedFd>) -> io::Result<Amended> {
        let Request { mut whole, mut options, images, _work: work } = self;
        let (mut shared, mut other) = (Vec::new(), None);
        for inode in &plan.sockets {
            options.add_bytes(EXTERNAL.into(), format!("unix[{inode}]").into_bytes());
        }
        if !plan.steps_told {
            options.set(LOG_LEVEL.into(), rpc::LOG_TROUBLE.into());
        }
        let mut inherit = |key: &str, fd: RawFd| {
            options.add_bytes(INHERIT.into(), rpc::inherit(key, fd));
        };
        let mut server = None;
        for (what, descriptor) in plan.passed.iter().zip(passed) {
            match what {
                PassedDescriptor::Socket(inode) => {
                    inherit(&format!("socket:[{inode}]"), descriptor.as_raw_fd());
                    shared.push(descriptor);
                }
                PassedDescriptor::PageServer => {
                    server = Some(descriptor.as_raw_fd());
                    shared.push(descriptor);
                }
                PassedDescriptor::Images => other = Some(descriptor),
                PassedDescriptor::PageFiles(names) => {
                    let directory = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                    for name in names {
                        let file = File::open(Path::new(&directory).join(name))?;
                        inherit(&pages::inherit_key(name), file.as_raw_fd());
                        shared.push(file.into());
                    }
                }
            }
        }
        if let Some(server) = server {
            options.set_bytes(PAGE_SERVER.into(), rpc::page_server(server));
        }
        if let Some(other) = &other {
            options.set(IMAGES_DIR.into(), other.as_raw_fd() as u64);
        }
        whole.set_bytes(OPTIONS.into(), options.write());
        Ok(Amended { packet: whole.write(), shared, _directories: (images, other, work) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Encoder;
    use crate::rpc::{KIND, REQUEST_DUMP};

    fn file() -> OwnedFd {
        OwnedFd::from(File::open("/dev/null").unwrap())
    }

    fn plan(passed: Vec<PassedDescriptor>) -> Plan {
        Plan { sockets: vec![5], passed, steps_told: false, step: String::new() }
    }

    /// A request that names our directory `/proc`, as its options are after `with` is put into it.
    fn amended(plan: &Plan, passed: Vec<OwnedFd>) -> (Amended, Message) {
        let here = File::open("/proc").unwrap();
        let mut inner = Encoder::default();
        inner.number(IMAGES_DIR, here.as_raw_fd() as u64).number(LOG_LEVEL, 4).number(200, 7);
        inner.bytes(EXTERNAL, b"mnt[/x]:/y");
        let mut packet = Encoder::default();
        packet.number(KIND, REQUEST_DUMP).bytes(OPTIONS, &inner.0);
        let request = Request::read(&packet.0, std::process::id() as i32).unwrap();
        let amended = request.amend(plan, passed).unwrap();
        let whole = Message::read(&amended.packet).unwrap();
        assert_eq!(whole.number(KIND.into()), Some(REQUEST_DUMP));
        let options = Message::read(whole.all_bytes(OPTIONS.into()).next().unwrap()).unwrap();
        (amended, options)
    }

    #[test]
    fn a_request_keeps_what_it_has_and_gets_what_is_planned() {
        let plan = plan(vec![PassedDescriptor::Socket(5), PassedDescriptor::PageServer]);
        let (amended, options) = amended(&plan, vec![file(), file()]);
        assert_eq!(options.number(IMAGES_DIR.into()), Some(amended._directories.0.as_raw_fd() as u64));
        assert_eq!((options.number(200), options.number(LOG_LEVEL.into())), (Some(7), Some(2)));
        let external: Vec<_> = options.all_bytes(EXTERNAL.into()).collect();
        assert_eq!(external, [&b"mnt[/x]:/y"[..], b"unix[5]"]);
        let [socket, server] = &amended.shared[..] else { panic!("{} descriptors", amended.shared.len()) };
        let inherited: Vec<_> = options.all_bytes(INHERIT.into()).collect();
        assert_eq!(inherited, [rpc::inherit("socket:[5]", socket.as_raw_fd())]);
        let servers: Vec<_> = options.all_bytes(PAGE_SERVER.into()).collect();
        assert_eq!(servers, [rpc::page_server(server.as_raw_fd())]);
        assert!(Request::read(b"\xff", 1).is_err());
    }

    #[test]
    fn other_images_take_the_place_of_the_runtime_s() {
        let pages = tempfile::tempdir().unwrap();
        std::fs::write(pages.path().join("anon-7"), "contents").unwrap();
        let directory = || OwnedFd::from(File::open(pages.path()).unwrap());
        let planned =
            plan(vec![PassedDescriptor::Images, PassedDescriptor::PageFiles(vec!["anon-7".into()])]);
        let (amended, options) = amended(&planned, vec![directory(), directory()]);
        let other = amended._directories.1.as_ref().unwrap();
        assert_eq!(options.number(IMAGES_DIR.into()), Some(other.as_raw_fd() as u64));
        let inherited: Vec<_> = options.all_bytes(INHERIT.into()).collect();
        let expected = rpc::inherit("run/rekindle/pages/anon-7", amended.shared[0].as_raw_fd());
        assert_eq!(inherited, [expected]);
    }
}
