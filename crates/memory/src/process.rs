//! The process: started by `rekindled` with its listening socket as standard input, and gone when that goes.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rekindle_protocol::{descriptors, peer};

use crate::connection::{self, MemoryServices};
use crate::copies::Copies;
use crate::exchange::{Exchange, ExchangeLimits, Node};
use crate::objects::Objects;
use crate::room::Budget;
use crate::store::Stores;

/// What `rekindled` is called with to be this.
pub const ARGUMENT: &str = "memory";

/// Threads that take bytes from stores: what one request at a time brings, each can copy.
const MOST_THREADS: usize = 16;

/// `rekindled memory BYTES SECONDS GPU_BYTES HOST_BYTES NODE SOCKET DIRECTORY [URL]…`: the most memory for objects, for how long
/// what fails is tried again, the most memory of each GPU and of the host for what is handed on, how names of arrays of this node
/// begin, where `rekindled` is asked for those of others, whose files programs may have (an empty word: nobody's), and how the URLs
/// begin that they may write to.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let log = env_logger::Env::new().filter_or("REKINDLE_LOG", "info");
    env_logger::Builder::from_env(log).init();
    let mut number = || arguments.next().and_then(|word| word.to_str()?.parse::<u64>().ok());
    let (Some(most), Some(patience), Some(gpu), Some(host)) = (number(), number(), number(), number()) else {
        log::error!(
            "`rekindled {ARGUMENT}` takes four numbers and more words, and a listening socket; rekindled runs this"
        );
        return ExitCode::from(2);
    };
    let name = arguments.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    let node = Node { name, socket: arguments.next().unwrap_or_default().into() };
    let files = arguments.next().filter(|word| !word.is_empty()).map(PathBuf::from);
    let writable = arguments.filter_map(|word| word.into_string().ok()).collect();
    let stores = Stores::new(Duration::from_secs(patience), files, writable);
    match run(most, stores, (ExchangeLimits { gpu, host }, node)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("the memory daemon cannot go on: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(most: u64, stores: Stores, (handed_on, node): (ExchangeLimits, Node)) -> std::io::Result<()> {
    end_on_panic();
    descriptors::make_room();
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get()).clamp(2, MOST_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let objects = Objects::new(stores, Budget::new(most), runtime.handle().clone());
    let has = MemoryServices { objects, exchange: Exchange::begin(handed_on, node)?, copies: Copies::new() };
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    loop {
        let (stream, _) = listener.accept()?;
        if !peer::is_beside(&stream) {
            log::warn!("a process of a sandbox is sent away that came where workers do");
            continue;
        }
        let has = has.clone();
        std::thread::spawn(move || connection::serve(&stream, &has));
    }
}

/// Who waits for a thread that is no more would wait for ever; the next process begins anew.
fn end_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        std::process::abort();
    }));
}
