//! Runs a program on a GPU without a daemon: `launcher [--gpu GPU] PROGRAM ARGUMENT...`
//!
//! It admits every process, each with a worker of its own. The client's tests run programs through it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rekindle_protocol::client::{ADMISSION_SOCKET, Admission, AdmissionRequest, RUN_DIRECTORY};
use rekindle_protocol::frame;
use rekindle_protocol::worker::{FIRST_CLIENT, Message, Reply, ask, greet, socket_name};

/// How long a worker may take until it listens, and until it greets.
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "worker") {
        return rekindle_worker::main(arguments.skip(1));
    }
    let mut gpu = OsString::from("emulated");
    if arguments.next_if(|first| first == "--gpu").is_some() {
        gpu = arguments.next().unwrap_or(gpu);
    }
    match run(&gpu, arguments.collect()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("launcher: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(gpu: &OsString, command: Vec<OsString>) -> io::Result<u8> {
    let directory = PathBuf::from(format!("/dev/shm/rekindle-launcher-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let result = serve(gpu, &command, &directory);
    std::fs::remove_dir_all(&directory)?;
    result
}

fn serve(gpu: &OsString, command: &[OsString], directory: &Path) -> io::Result<u8> {
    let listener = UnixListener::bind(directory.join(ADMISSION_SOCKET))?;
    let library = library()?;
    std::os::unix::fs::symlink(&library, directory.join("libcuda.so.1"))?;
    std::os::unix::fs::symlink(&library, directory.join("libcuda.so"))?;
    let (gpu, at) = (gpu.clone(), directory.to_owned());
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            if let Err(error) = admit(&stream, &gpu, &at, number as u32) {
                eprintln!("launcher: {error}");
            }
        }
    });
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut program = Command::new(program);
    program.args(arguments).env(RUN_DIRECTORY, directory).env("LD_LIBRARY_PATH", directory);
    let status = program.env("LD_PRELOAD", directory.join("libcuda.so.1")).status()?;
    Ok(status.code().unwrap_or(255) as u8)
}

/// The client's library: `cargo build` puts it above this example's folder, `cargo test` beside that in `deps`.
fn library() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).ok_or(io::ErrorKind::NotFound)?;
    let built = |path: &PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let newest =
        ["libcuda.so", "deps/libcuda.so"].map(|name| folder.join(name)).into_iter().max_by_key(built);
    std::fs::canonicalize(newest.ok_or(io::ErrorKind::NotFound)?)
}

fn admit(stream: &UnixStream, gpu: &OsString, directory: &Path, number: u32) -> io::Result<()> {
    let (AdmissionRequest::Knock { .. }, _) = frame::receive(stream).map_err(io::Error::other)? else {
        return Err(io::Error::other("a process came that did not knock"));
    };
    let socket = directory.join(socket_name(number + 1));
    let mut worker = Command::new(std::env::current_exe()?)
        .args(["worker".as_ref(), "--listen".as_ref(), socket.as_os_str(), "--gpu".as_ref(), gpu])
        .env("REKINDLE_LOG", std::env::var("REKINDLE_LOG").unwrap_or("warn".to_owned()))
        .spawn()?;
    let (ours, theirs) = UnixStream::pair()?;
    let daemon = connect(&socket)?;
    greet(&daemon, "daemon", "worker", LIMIT).map_err(io::Error::other)?;
    let serve = ask::Serve { run_directory: directory.to_string_lossy().into_owned() };
    let message = Message { id: 1, client: FIRST_CLIENT, request: serve.into() };
    frame::send(&daemon, &message, &[theirs.as_fd()]).map_err(io::Error::other)?;
    match frame::receive::<Reply<()>>(&daemon).map_err(io::Error::other)?.0.answer {
        Err(why) => {
            let refused = Admission::Refused(why);
            frame::send(stream, &refused, &[]).map_err(io::Error::other)?;
        }
        Ok(()) => frame::send(stream, &Admission::Admitted, &[ours.as_fd()]).map_err(io::Error::other)?,
    }
    std::thread::spawn(move || worker.wait());
    Ok(())
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let until = Instant::now() + LIMIT;
    loop {
        match UnixStream::connect(socket) {
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
            connected => return connected,
        }
    }
}
