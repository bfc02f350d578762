//! Process B: pid 1 of the sandbox, which serves the daemon's commands one at a time.
//!
//! While no program has been started, init ends with its last connection; after that it lives as long as the
//! program, whether a daemon listens or not.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::exit;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use rekindle_protocol::fault;
use rekindle_protocol::mounts::Overlay;
use rekindle_protocol::terminal::WindowSize;

use super::findings::Cache;
use super::hold::Daemon;
use super::mounts::{HostPaths, RUN_PATH, set_up};
use super::outer::signals;
use super::program::{Started, open_index, open_log};
use super::reap::{end, reap, record_pid};
use super::{SOCKET, dump, program, restore};
use crate::conversation::{Failed, Service};
use crate::log_index::{Indexed, Stream};
use crate::message::{Command, Exit, NotStarted, Program, Reply};
use crate::outputs::Output;
use crate::overlay::Layers;
use crate::terminal::Terminal;
use crate::tracer::{PATIENCE, userfaultfd};
use crate::wire::Channel;

/// A daemon that dies in the middle of a message must not hold init up.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

struct Init<'a> {
    signals: SignalFd,
    listener: UnixListener,
    channels: Vec<Channel>,
    program: Option<Pid>,
    /// What the program writes to outside of its tree, which goes to the log.
    outputs: Vec<Output>,
    /// The one that it was started with first.
    terminals: Vec<Terminal>,
    log: Indexed,
    /// What is to have a layer, and what has one.
    overlays: &'a [Overlay],
    layers: Layers,
    /// CRIU that has brought the program back, or has let go of it, and may not have ended.
    criu: Option<Service>,
    /// CRIU that waits to dump the program, and the connection by which it was asked for.
    prepared: Option<(RawFd, dump::Prepared)>,
    /// Where CRIU's findings about the kernel are to be put once there are any.
    cache: Option<&'a Cache>,
}

pub fn main(places: &HostPaths<'_>, control: &Channel) -> ! {
    match prepare(places, control) {
        Ok(init) => init.serve(),
        Err(cause) => {
            // Where the daemon is gone there is nobody to tell.
            let _ = control.send(&Reply::Failed(cause), &[]);
            exit(1)
        }
    }
}

fn prepare<'a>(places: &HostPaths<'a>, control: &Channel) -> Result<Init<'a>, String> {
    set_up(places)?;
    let cache = places.cache.filter(|cache| !cache.exists());
    nix::unistd::chdir("/").map_err(|error| format!("chdir: {error}"))?;
    let path = Path::new(RUN_PATH).join(SOCKET);
    let listener = UnixListener::bind(&path).map_err(|error| format!("listening on {SOCKET}: {error}"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
        .map_err(|error| format!("protecting {SOCKET}: {error}"))?;
    let signals = SignalFd::with_flags(&signals(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|error| format!("taking signals: {error}"))?;
    let first = control.socket().try_clone().map_err(|error| format!("keeping the connection: {error}"))?;
    let first = Channel::new(first);
    first.send(&Reply::Ready, &[]).map_err(|error| format!("answering: {error}"))?;
    Ok(Init {
        signals,
        listener,
        channels: vec![first],
        program: None,
        outputs: Vec::new(),
        terminals: Vec::new(),
        log: Indexed::new(places.log_max),
        overlays: &places.mounts.overlays,
        layers: Layers::default(),
        criu: None,
        prepared: None,
        cache,
    })
}

/// The next connection, if it is a daemon's.
pub fn accept(listener: &UnixListener) -> Option<Channel> {
    let (socket, _) = listener.accept().ok()?;
    // A daemon is in no namespace of this one's, where it would have a pid.
    let is_daemon = getsockopt(&socket, PeerCredentials).is_ok_and(|peer| peer.pid() == 0);
    let is_bounded = socket.set_read_timeout(Some(MESSAGE_TIMEOUT)).is_ok();
    (is_daemon && is_bounded).then(|| Channel::new(socket))
}

/// Has processes make userfaultfds. Who traces them is a thread of its own, with which the kernel lets go of all.
fn watch(pids: &[i32], channel: &Channel) -> bool {
    let deadline = Instant::now() + PATIENCE;
    let one = |pid: i32| Some((pid, userfaultfd(pid, deadline).ok()?));
    let make = || pids.iter().copied().filter_map(one).collect::<Vec<_>>();
    let made = std::thread::scope(|scope| scope.spawn(make).join()).unwrap_or_default();
    let (pids, descriptors): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
    channel.send(&Reply::Watched { pids }, &descriptors).is_ok()
}

impl From<Failed> for Reply {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Aborted(cause) => Self::Aborted(cause),
            Failed::Criu(cause) => Self::Failed(cause),
        }
    }
}

/// The log, open for as long as something is moved there. One that takes no more must not stop the program.
struct Opened<'a> {
    log: &'a mut Indexed,
    file: io::Result<File>,
    index: Option<File>,
}

impl<'a> Opened<'a> {
    fn new(log: &'a mut Indexed) -> Opened<'a> {
        Opened { log, file: open_log(), index: open_index() }
    }

    fn append(&mut self, stream: Stream, bytes: &[u8]) {
        match &self.file {
            Ok(file) => self.log.append(file, self.index.as_ref(), stream, bytes),
            Err(error) => self.log.lose(bytes.len(), error),
        }
    }
}

impl Init<'_> {
    fn serve(mut self) -> ! {
        loop {
            let ready = self.wait();
            let (channels, others) = ready.split_at(2 + self.channels.len());
            let (outputs, terminals) = others.split_at(self.outputs.len());
            if outputs.contains(&true) {
                self.drain();
            }
            if terminals.contains(&true) {
                self.serve_terminals();
            }
            if ready[0] {
                self.take_signals();
            }
            for index in (2..channels.len()).rev().filter(|&index| ready[index]) {
                let channel = self.channels.swap_remove(index - 2);
                if self.serve_one(&channel) {
                    self.channels.push(channel);
                }
            }
            if ready[1] {
                self.accept();
            }
            if self.program.is_none() && self.channels.is_empty() {
                exit(1)
            }
        }
    }

    /// Which of the signals, the listener, the channels, the outputs and the terminals have something.
    fn wait(&self) -> Vec<bool> {
        let fds = [self.signals.as_fd(), self.listener.as_fd()].into_iter();
        let fds = fds.chain(self.channels.iter().map(AsFd::as_fd));
        let fds = fds.chain(self.outputs.iter().map(AsFd::as_fd)).map(|fd| (fd, PollFlags::POLLIN));
        let terminals = self.terminals.iter().flat_map(Terminal::awaited);
        let mut polled: Vec<_> = fds.chain(terminals).map(|(fd, flags)| PollFd::new(fd, flags)).collect();
        // An interrupted poll leaves nothing ready; the next round asks again.
        let _ = poll(&mut polled, PollTimeout::NONE);
        polled.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect()
    }

    fn take_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            match (Signal::try_from(info.ssi_signo as i32), self.program) {
                (Ok(Signal::SIGCHLD), _) | (Err(_), _) => {}
                (Ok(signal), Some(program)) => {
                    // A program that has just ended is reaped below.
                    let _ = kill(program, signal);
                }
                (Ok(_), None) => exit(1),
            }
        }
        self.reap();
    }

    /// Ends with the program if that has ended. All that it wrote is in the log then, and seen by who uses its terminal.
    fn reap(&mut self) {
        // A fault here can but hang or kill: an end is not to be refused.
        let _ = fault::point("reaping");
        if let Some(how) = reap(self.program) {
            self.drain();
            self.drain_terminals();
            self.terminals.iter_mut().for_each(Terminal::part);
            end(how)
        }
    }

    /// Moves what the program wrote to the log; outputs that it has closed are dropped.
    fn drain(&mut self) {
        if !self.outputs.is_empty() {
            let mut log = Opened::new(&mut self.log);
            self.outputs.retain(|output| output.drain(|bytes: &[u8]| log.append(output.stream, bytes)));
        }
        self.serve_terminals();
    }

    /// Moves what is printed on terminals and typed there.
    fn serve_terminals(&mut self) {
        if !self.terminals.is_empty() {
            let mut log = Opened::new(&mut self.log);
            let terminals = self.terminals.iter_mut();
            terminals.for_each(|terminal| terminal.serve(|bytes| log.append(Stream::Stdout, bytes)));
        }
    }

    /// Takes what is printed on terminals, whoever has not taken what was before that.
    fn drain_terminals(&mut self) {
        if !self.terminals.is_empty() {
            let mut log = Opened::new(&mut self.log);
            let terminals = self.terminals.iter_mut();
            terminals.for_each(|terminal| terminal.drain(|bytes| log.append(Stream::Stdout, bytes)));
        }
    }

    fn accept(&mut self) {
        self.channels.extend(accept(&self.listener));
    }

    /// Serves one command; whether the channel is to be kept.
    fn serve_one(&mut self, channel: &Channel) -> bool {
        let Ok(Some((command, descriptors))) = channel.recv::<Command>() else {
            // Whoever has prepared a dump does not want it any more.
            self.prepared.take_if(|(of, _)| *of == channel.as_fd().as_raw_fd());
            return false;
        };
        if let Command::Watch { pids } = &command {
            let told = watch(pids, channel);
            // A signal that told of an end may have been taken by whoever has traced.
            self.reap();
            return told;
        }
        let (reply, stopped) = self.answer(command, descriptors, channel);
        let told = channel.send(&reply, &[]).is_ok();
        self.cache.take_if(|cache| cache.copy_out());
        self.drain();
        if stopped {
            self.drain_terminals();
            self.terminals.iter_mut().for_each(Terminal::part);
            end(Exit::Stopped)
        }
        // Whoever waited for CRIU and what it held may have taken the signal that tells of an end.
        self.reap();
        told
    }

    /// The answer, and whether the program was stopped as asked.
    fn answer(
        &mut self,
        command: Command,
        mut descriptors: Vec<OwnedFd>,
        channel: &Channel,
    ) -> (Reply, bool) {
        match (command, self.program) {
            (Command::Flush, _) => {
                self.drain();
                (Reply::Flushed, false)
            }
            (Command::Start { program, terminal }, None) => {
                match self.start(&program, terminal, descriptors.pop()) {
                    Ok(Started { program, outputs, terminal }) => {
                        self.outputs = outputs;
                        self.terminals.extend(terminal);
                        (self.run(program), false)
                    }
                    Err(why) => (Reply::NotStarted(why), false),
                }
            }
            // One that is held is settled where it is dumped.
            (Command::Settle(_), _) => (Reply::Settled(false), false),
            (Command::Attach, Some(_)) => match (self.terminals.first_mut(), descriptors.pop()) {
                (Some(terminal), Some(user)) => {
                    terminal.join(user);
                    (Reply::Attached, false)
                }
                (None, _) => (Reply::NoTerminal, false),
                (_, None) => (Reply::Failed("no socket came with the command".into()), false),
            },
            (Command::Restore(asked), None) => {
                let restored = restore::restore(&asked, self.overlays, descriptors, channel);
                match restored {
                    Ok(restore::Restored { program, outputs, terminals, layers, mut criu, warnings }) => {
                        (self.outputs, self.terminals) = (outputs, terminals);
                        self.layers = layers;
                        self.run(program);
                        let steps = criu.take_steps();
                        self.criu = Some(criu);
                        (Reply::Restored { pid: program.as_raw(), steps, warnings }, false)
                    }
                    Err(failed) => (failed.into(), false),
                }
            }
            (Command::Prepare(asked), Some(program)) => {
                self.wait_for_criu();
                match dump::Prepared::begin(asked, descriptors, program) {
                    Ok(prepared) => {
                        self.prepared = Some((channel.as_fd().as_raw_fd(), prepared));
                        (Reply::Prepared, false)
                    }
                    Err(failed) => (failed.into(), false),
                }
            }
            (Command::Dump(asked), Some(program)) => {
                self.wait_for_criu();
                // What is left in a pipe goes into the image too, for nobody.
                self.drain();
                self.drain_terminals();
                let of = channel.as_fd().as_raw_fd();
                let prepared = self.prepared.take().filter(|(by, _)| *by == of).map(|(_, prepared)| prepared);
                let daemon = Daemon { channel, listener: &self.listener };
                match dump::dump(&asked, prepared, &self.layers, descriptors, program, &daemon) {
                    Ok(dumped) => {
                        self.criu = dumped.criu;
                        (Reply::Dumped { stats: dumped.stats }, !asked.leave_running)
                    }
                    Err(failed) => (failed.into(), false),
                }
            }
            (_, Some(_)) => (Reply::Failed("a program runs in this sandbox already".into()), false),
            (_, None) => (Reply::Failed("no program runs in this sandbox".into()), false),
        }
    }

    /// CRIU that has brought the program back ends beside it.
    fn wait_for_criu(&mut self) {
        if let Some(mut criu) = self.criu.take() {
            criu.wait();
        }
    }

    fn start(
        &mut self,
        program: &Program,
        terminal: Option<WindowSize>,
        comes: Option<OwnedFd>,
    ) -> Result<Started, NotStarted> {
        self.layers = Layers::mount(self.overlays, None)?;
        program::start(program, terminal, comes)
    }

    fn run(&mut self, pid: Pid) -> Reply {
        self.program = Some(pid);
        if let Err(error) = record_pid(pid) {
            eprintln!("sandbox-init: the program's pid {pid} cannot be recorded: {error}");
        }
        Reply::Running(pid.as_raw())
    }
}
