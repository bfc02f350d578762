//! CRIU's `files.img`: all that a dump's processes have open, by numbers, and the fields of what we read and change there.
//!
//! Field numbers are those of CRIU's published `fdinfo.proto`, `regfile.proto`, `sk-inet.proto`, `sk-opts.proto`,
//! `sk-unix.proto` and `timerfd.proto`. Each kind has a type of its own, which keeps every field that it was read with.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::proto::Message;

pub const FILES: &str = "files.img";

/// Of an entry.
const KIND: u64 = 1;
const ID: u64 = 2;
/// For each kind in its order, from 1 on, the field of an entry that has what there is to be known.
const FIELDS: [u64; 20] = [3, 18, 17, 4, 16, 8, 9, 13, 10, 6, 19, 14, 7, 5, 11, 15, 12, 20, 21, 22];

/// Kinds, in CRIU's `fd_types`.
pub const REGULAR: u64 = 1;
pub const INTERNET: u64 = 4;
pub const UNIX: u64 = 5;
pub const TIMER: u64 = 17;
pub const MEMFD: u64 = 18;

/// TCP's numbers of states, which sockets of all kinds have.
pub const CLOSED: u64 = 7;
pub const LISTENS: u64 = 10;

/// The number by which others refer to an entry.
pub fn id(entry: &Message) -> Option<u64> {
    entry.number(ID)
}

pub fn kind(entry: &Message) -> Option<u64> {
    entry.number(KIND)
}

/// What an entry says of what it is; nothing of a kind that is not known.
pub fn about(entry: &Message) -> Option<Message> {
    Message::read(entry.all_bytes(field_of(kind(entry)?)?).next()?)
}

fn field_of(kind: u64) -> Option<u64> {
    FIELDS.get(usize::try_from(kind.checked_sub(1)?).ok()?).copied()
}

/// A kind of open file that is read, and written again.
pub trait Described: Sized {
    const KIND: u64;

    fn with(about: Message) -> Self;

    fn message(&self) -> &Message;

    /// What an entry says, if it is of this kind.
    fn of(entry: &Message) -> Option<Self> {
        Message::read(entry.all_bytes(field_of(Self::KIND)?).next()?).map(Self::with)
    }

    /// All of this kind in a dump.
    fn all(entries: &[Message]) -> impl Iterator<Item = Self> {
        entries.iter().filter_map(Self::of)
    }

    /// A new entry.
    fn entry(&self, id: u64) -> Message {
        let mut entry = Message::default();
        entry.set(KIND, Self::KIND).set(ID, id);
        self.put(&mut entry);
        entry
    }

    /// Has the entry say this.
    fn put(&self, entry: &mut Message) {
        if let Some(field) = field_of(Self::KIND) {
            entry.set_bytes(field, self.message().write());
        }
    }
}

/// A file or directory with a path.
pub struct Regular(Message);

/// A socket of the internet.
pub struct Internet(Message);

/// A Unix socket.
pub struct Unix(Message);

/// A timer that is a descriptor.
pub struct Timer(Message);

macro_rules! described {
    ($type:ident, $kind:expr) => {
        impl Described for $type {
            const KIND: u64 = $kind;

            fn with(about: Message) -> Self {
                Self(about)
            }

            fn message(&self) -> &Message {
                &self.0
            }
        }
    };
}

described!(Regular, REGULAR);
described!(Internet, INTERNET);
described!(Unix, UNIX);
described!(Timer, TIMER);

impl Regular {
    const ID: u64 = 1;
    const FLAGS: u64 = 2;
    const PLACE: u64 = 3;
    const OWNER: u64 = 5;
    const NAME: u64 = 6;
    const MOUNT: u64 = 7;
    const EXTERNAL: u64 = 9;

    /// One that is opened with these flags and is at its beginning; whoever sends signals for it is nobody.
    pub fn new(id: u64, flags: u64, path: &Path, mount: Option<u64>) -> Regular {
        let mut nobody = Message::default();
        for field in 1..=5 {
            nobody.set(field, 0);
        }
        let mut regular = Message::default();
        regular
            .set(Self::ID, id)
            .set(Self::FLAGS, flags)
            .set(Self::PLACE, 0)
            .set_bytes(Self::OWNER, nobody.write());
        regular.set_bytes(Self::NAME, path.as_os_str().as_bytes().to_vec());
        if let Some(mount) = mount {
            regular.set(Self::MOUNT, mount);
        }
        Regular(regular)
    }

    /// The path.
    pub fn name(&self) -> &[u8] {
        self.0.all_bytes(Self::NAME).next().unwrap_or_default()
    }

    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.name()))
    }

    pub fn mount(&self) -> Option<u64> {
        self.0.number(Self::MOUNT)
    }

    /// Whether a restore is given it by whoever asks for that.
    pub fn is_external(&self) -> bool {
        self.0.number(Self::EXTERNAL) == Some(1)
    }

    /// Has it be the file of this name, wherever it came from.
    pub fn rename(&mut self, to: &Path) {
        self.0.remove(Self::EXTERNAL).set_bytes(Self::NAME, to.as_os_str().as_bytes().to_vec());
    }

    /// Whether it has all that CRIU needs.
    pub fn is_whole(&self) -> bool {
        [Self::ID, Self::FLAGS, Self::PLACE].iter().all(|field| self.0.number(*field).is_some())
    }
}

impl Internet {
    const INODE: u64 = 2;
    const FAMILY: u64 = 3;
    const PROTOCOL: u64 = 5;
    const STATE: u64 = 6;
    const SOURCE_PORT: u64 = 7;
    const DESTINATION_PORT: u64 = 8;
    const SOURCE_ADDRESS: u64 = 11;
    const OPTIONS: u64 = 14;
    const SHUTDOWN: u64 = 19;
    /// Of the options.
    const SHARES_ADDRESS: u64 = 7;
    const SHARES_PORT: u64 = 17;

    /// CRIU keeps the lower half of it.
    pub fn inode(&self) -> u32 {
        self.0.number(Self::INODE).unwrap_or(0) as u32
    }

    pub fn is_tcp(&self) -> bool {
        self.0.number(Self::PROTOCOL) == Some(libc::IPPROTO_TCP as u64)
    }

    pub fn state(&self) -> Option<u64> {
        self.0.number(Self::STATE)
    }

    pub fn source_port(&self) -> Option<u16> {
        self.0.number(Self::SOURCE_PORT)?.try_into().ok()
    }

    pub fn destination_port(&self) -> Option<u16> {
        self.0.number(Self::DESTINATION_PORT)?.try_into().ok()
    }

    pub fn source_address(&self) -> Option<IpAddr> {
        let words: Vec<u32> = self.0.all_numbers(Self::SOURCE_ADDRESS).map(|word| word as u32).collect();
        let count = if self.0.number(Self::FAMILY)? == libc::AF_INET6 as u64 { 4 } else { 1 };
        address(words.get(..count)?)
    }

    /// Whether the program said that others may have its port too (`SO_REUSEPORT`); nothing where its options are not there.
    pub fn shares_port(&self) -> Option<bool> {
        self.option(Self::SHARES_PORT)
    }

    /// The same of connections that have ended (`SO_REUSEADDR`).
    pub fn shares_address(&self) -> Option<bool> {
        self.option(Self::SHARES_ADDRESS)
    }

    fn option(&self, field: u64) -> Option<bool> {
        let options = Message::read(self.0.all_bytes(Self::OPTIONS).next()?)?;
        Some(options.number(field).unwrap_or(0) != 0)
    }

    /// Has it be a socket that was never connected, with all else that it is.
    pub fn sever(&mut self) {
        self.0.set(Self::STATE, CLOSED).set(Self::SOURCE_PORT, 0).set(Self::DESTINATION_PORT, 0);
        self.0.remove(Self::SHUTDOWN);
    }
}

/// Of one or four words, each with its bytes in the order of the network.
pub fn address(words: &[u32]) -> Option<IpAddr> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    match words {
        [_] => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
    }
}

impl Unix {
    const TYPE: u64 = 3;
    const STATE: u64 = 4;
    const NAME: u64 = 11;
    const PERMISSIONS: u64 = 13;
    const DIRECTORY: u64 = 14;
    /// Of the permissions.
    const USER: u64 = 2;
    const GROUP: u64 = 3;

    /// A path, with a zero byte behind it or not; an abstract name behind a zero byte; or nothing.
    pub fn name(&self) -> &[u8] {
        self.0.all_bytes(Self::NAME).next().unwrap_or_default()
    }

    /// The user and the group that its file belongs to.
    pub fn owner(&self) -> Option<(u32, u32)> {
        let permissions = Message::read(self.0.all_bytes(Self::PERMISSIONS).next()?)?;
        Some((permissions.number(Self::USER)? as u32, permissions.number(Self::GROUP)? as u32))
    }

    /// What a name that is no whole path begins at.
    pub fn directory(&self) -> &[u8] {
        self.0.all_bytes(Self::DIRECTORY).next().unwrap_or_default()
    }

    /// Gives it another name, which is a whole path, abstract, or none.
    pub fn rename(&mut self, to: Vec<u8>) {
        self.0.set_bytes(Self::NAME, to).remove(Self::DIRECTORY);
    }

    /// Has it be one to which nothing comes: without a name, and of datagrams. Whoever waits at one that listened, or was
    /// connected, and does so no more, would be told at once, and again and again.
    pub fn silence(&mut self) {
        self.rename(Vec::new());
        self.0.set(Self::TYPE, libc::SOCK_DGRAM as u64).set(Self::STATE, CLOSED);
    }
}

impl Timer {
    /// Periods that are over and were not read.
    const OVER: u64 = 5;
    /// Seconds and nanoseconds that are left, and of each period.
    const LEFT: [u64; 2] = [7, 8];
    const PERIOD: [u64; 2] = [9, 10];

    /// Whether it has a period that is over, and the next one has not begun.
    pub fn has_run_out(&self) -> bool {
        let is_set = |fields: [u64; 2]| fields.iter().any(|field| self.0.number(*field).unwrap_or(0) != 0);
        self.0.number(Self::OVER).unwrap_or(0) > 0 && !is_set(Self::LEFT) && is_set(Self::PERIOD)
    }

    /// Has all of a period be left.
    pub fn begin_period(&mut self) {
        for (left, period) in Self::LEFT.into_iter().zip(Self::PERIOD) {
            let all = self.0.number(period).unwrap_or(0);
            self.0.set(left, all);
        }
    }
}
