//! The daemon, and the processes that it makes of itself: `rekindled worker`, `rekindled driver-helper`,
//! `rekindled memory`, `rekindled sandbox-init`, `rekindled sandbox-exec`, `rekindled criu-relay`, `rekindled criu-trial`.
//!
//! Which one is decided before anything is set up: a sandbox's init must have one thread, and a worker chooses its own
//! address layout.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ipnet::IpNet;
use rekindle_cli::PathArguments;
use rekindle_cli::settings::{self, Settings};
use rekindle_daemon::{
    CacheLimits, Daemon, DataLimits, PageSettings, Paths, PoolSize, ServiceSettings, parse_bytes,
    parse_page_address,
};
use rekindle_device::Platform;
use rekindle_nvidia::{NvidiaPlatform, placement};

/// Hold sandboxes, workers and images for the `rekindle` command, which starts this by itself.
#[derive(Debug, Parser)]
#[command(name = "rekindled", version)]
struct Arguments {
    #[command(flatten)]
    paths: PathArguments,
    /// The file with the settings; /etc/rekindle/rekindled.toml, or for others than root
    /// ~/.config/rekindle/rekindled.toml, if that is there.
    #[arg(long, value_name = "FILE", env = settings::VARIABLE)]
    config: Option<PathBuf>,
    /// Say which settings there are and where they come from, or what is wrong with the file, and start nothing.
    #[arg(long)]
    check_config: bool,
    /// Leave the terminal once the socket answers; the log then goes to a file in the state directory.
    #[arg(long)]
    background: bool,
    /// How many workers wait at least, their contexts ready, for each GPU that was used last. 0: none ever.
    #[arg(long, value_name = "N", env = "REKINDLE_POOL", default_value_t = 1)]
    pool: usize,
    /// How many workers wait at most, for all GPUs together.
    #[arg(long, value_name = "N", env = "REKINDLE_POOL_LIMIT", default_value_t = 8)]
    pool_limit: usize,
    /// For how many seconds as many workers wait as were wanted at once. 0: no more than --pool ever.
    #[arg(long, value_name = "SECONDS", env = "REKINDLE_POOL_WINDOW", default_value_t = 300)]
    pool_window: u64,
    /// The most bytes of pinned host memory that hold contents of images, ready for GPUs to copy; K, M, G or T may
    /// follow. 0: none.
    #[arg(long, value_name = "BYTES", env = "REKINDLE_HOST_CACHE", default_value = "0", value_parser = parse_bytes)]
    host_cache: u64,
    /// The most bytes of each GPU's memory that hold contents of images.
    #[arg(long, value_name = "BYTES", env = "REKINDLE_GPU_CACHE", default_value = "0", value_parser = parse_bytes)]
    gpu_cache: u64,
    /// The most bytes of each GPU's memory that instances of services have together; K, M, G or T may follow. All that the
    /// GPU has if nothing is said, or 0.
    #[arg(long, value_name = "BYTES", env = "REKINDLE_SERVICE_MEMORY", value_parser = parse_bytes)]
    service_memory: Option<u64>,
    /// The most bytes of each sandbox's log, and of the daemon's own, that are kept, the last ones; K, M, G or T may
    /// follow. 0: all.
    #[arg(long, value_name = "BYTES", env = "REKINDLE_LOG_MAX", default_value_t = rekindle_daemon::LOG_MAX, value_parser = parse_bytes)]
    log_max: u64,
    /// How long who comes to a published port waits for a program that is away, in seconds.
    #[arg(long, value_name = "SECONDS", env = "REKINDLE_PUBLISH_WAIT", default_value_t = rekindle_daemon::PUBLISH_WAIT.as_secs())]
    publish_wait: u64,
    /// How long a GPU context that programs have shared is kept without any, in seconds. 0: it goes with the last one.
    #[arg(long, value_name = "SECONDS", env = "REKINDLE_CONTEXT_KEEP", default_value_t = rekindle_daemon::CONTEXT_KEEP.as_secs())]
    context_keep: u64,
    /// The file that has a line of JSON for each request to a service, or - for standard output. None if nothing is said.
    #[arg(long, value_name = "PATH", env = "REKINDLE_ACCESS_LOG")]
    access_log: Option<PathBuf>,
    /// The collector that is told of requests to services as spans of traces, by OTLP over HTTP, such as
    /// http://localhost:4318. None if nothing is said.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// Proxies in front of services, by address or network: what they say in Forwarded and X-Forwarded-* headers is passed
    /// on. Of other clients it is taken away.
    #[arg(long, value_name = "ADDRESS[/BITS],...", env = "REKINDLE_TRUSTED_PROXIES", value_delimiter = ',', value_parser = parse_network)]
    trusted_proxies: Vec<IpNet>,
    /// Where the daemon's page is; without an address, for this machine alone. None if nothing is said.
    #[arg(long, value_name = "[ADDRESS:]PORT", env = "REKINDLE_PAGE_PORT", value_parser = parse_page_address)]
    page_port: Option<SocketAddr>,
    /// Names by which browsers may ask for the page, beside addresses, localhost and the machine's own name.
    #[arg(long, value_name = "NAME,...", env = "REKINDLE_PAGE_NAMES", value_delimiter = ',')]
    page_names: Vec<String>,
    /// The most bytes of the host's memory that hold objects of stores for programs; K, M, G or T may follow. A quarter of
    /// the memory if nothing is said.
    #[arg(long, value_name = "BYTES", env = "REKINDLE_DATA_MEMORY", value_parser = parse_bytes)]
    data_memory: Option<u64>,
    /// For how long what a store fails to do is tried again, in seconds.
    #[arg(long, value_name = "SECONDS", env = "REKINDLE_DATA_PATIENCE", default_value_t = 60)]
    data_patience: u64,
    /// The directory whose files programs may have as declared data; none if nothing is said.
    #[arg(long, value_name = "DIR", env = "REKINDLE_DATA_FILES")]
    data_files: Option<PathBuf>,
    /// How the URLs begin of objects that programs may write, as declared data that is dumped: such as s3://BUCKET/results/. None
    /// if nothing is said.
    #[arg(long, value_name = "URL,...", env = "REKINDLE_DATA_WRITE", value_delimiter = ',')]
    data_write: Vec<String>,
    /// The most bytes of each GPU's memory that arrays have which functions hand on to each other; K, M, G or T may follow.
    #[arg(long, value_name = "BYTES", env = "REKINDLE_EXCHANGE_GPU", default_value = "4G", value_parser = parse_bytes)]
    exchange_gpu: u64,
    /// The most bytes of the host's memory that arrays have which had to leave their GPU. An eighth of the memory if nothing is
    /// said.
    #[arg(long, value_name = "BYTES", env = "REKINDLE_EXCHANGE_HOST", value_parser = parse_bytes)]
    exchange_host: Option<u64>,
    /// Where other nodes are heard, to which programs can move and from which they come: a port, or ADDRESS:PORT. Nowhere if
    /// nothing is said.
    #[arg(long, value_name = "ADDRESS", env = "REKINDLE_NODE_PORT")]
    node_port: Option<String>,
}

macro_rules! exported {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            address: *mut c_void,
            bytes: usize,
            protection: c_int,
            flags: c_int,
            descriptor: c_int,
            offset: i64,
        ) -> *mut c_void {
            // SAFETY: the caller's promise is handed on.
            unsafe { placement::mmap(address, bytes, protection, flags, descriptor, offset) }
        }
    )*};
}

exported! {
    /// What a driver finds for the C library's `mmap`; see [`rekindle_nvidia::placement`].
    mmap;
    /// The same under the name that large offsets once had.
    mmap64;
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next().as_ref().and_then(|word| word.to_str()) {
        Some("worker") => return rekindle_worker::main(words),
        Some(rekindle_driver::HELPER_ARGUMENT) => return rekindle_driver::main(words),
        Some(rekindle_sandbox::RELAY_ARGUMENT) => return rekindle_sandbox::relay_main(words),
        Some(rekindle_sandbox::TRACER_ARGUMENT) => return rekindle_sandbox::tracer_main(words),
        Some(rekindle_sandbox::GUARD_ARGUMENT) => return rekindle_sandbox::guard_main(),
        Some(rekindle_sandbox::trial::TRIAL_ARGUMENT) => {
            return fail(&rekindle_sandbox::trial::trial_main().to_string());
        }
        Some(rekindle_memory::ARGUMENT) => return rekindle_memory::main(words),
        Some("gpus") => return gpus(),
        Some(word @ (rekindle_sandbox::INIT_ARGUMENT | rekindle_sandbox::EXEC_ARGUMENT)) => {
            let setup = words.next().and_then(|word| word.to_str()?.parse().ok());
            match setup {
                Some(setup) if word == rekindle_sandbox::INIT_ARGUMENT => rekindle_sandbox::init_main(setup),
                Some(setup) => rekindle_sandbox::exec_main(setup),
                None => {
                    return fail(&format!("{word} takes the number of a descriptor; the daemon runs this"));
                }
            }
        }
        _ => {}
    }
    // Twice: what says where the file is, and then with what the file says in place of variables.
    let first = Arguments::parse();
    let settings = match Settings::load(first.config.as_deref()) {
        Ok(settings) => settings,
        Err(error) => return fail(&error.to_string()),
    };
    if let Err(problem) = rekindle_protocol::tuning::check() {
        return fail(&problem);
    }
    if first.check_config {
        println!("{}", settings.shown());
        return ExitCode::SUCCESS;
    }
    // SAFETY: nothing has started a thread yet.
    unsafe { settings.into_environment() };
    match serve(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

fn serve(arguments: Arguments) -> rekindle_daemon::Result<()> {
    rekindle_protocol::descriptors::make_room();
    let window = Duration::from_secs(arguments.pool_window);
    let pool = PoolSize { per_gpu: arguments.pool, most: arguments.pool_limit, window };
    let given = arguments.paths;
    let mut paths = Paths::new(given.socket, given.state, given.run_dir)?;
    paths.log_max = arguments.log_max;
    paths.publish_wait = Duration::from_secs(arguments.publish_wait);
    paths.context_keep = Duration::from_secs(arguments.context_keep);
    if arguments.background {
        // Fails where this process leads a group already; then it has left the terminal's anyway.
        let _ = nix::unistd::setsid();
    }
    let log = env_logger::Env::default().filter_or("REKINDLE_LOG", "info");
    if arguments.background {
        paths.prepare()?;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(paths.daemon_log())
            .map_err(|source| rekindle_daemon::Error::Io {
                action: "open",
                path: paths.daemon_log(),
                source,
            })?;
        let words = rekindle_daemon::Words::new(file, arguments.log_max);
        env_logger::Builder::from_env(log).target(env_logger::Target::Pipe(Box::new(words))).init();
    } else {
        env_logger::Builder::from_env(log).init();
    }
    let caches = CacheLimits { host: arguments.host_cache, gpu: arguments.gpu_cache };
    let patience = Duration::from_secs(arguments.data_patience);
    let data = DataLimits {
        memory: arguments.data_memory,
        patience,
        files: arguments.data_files,
        writable: arguments.data_write,
        exchange_gpu: arguments.exchange_gpu,
        exchange_host: arguments.exchange_host,
    };
    let memory = arguments.service_memory.filter(|bytes| *bytes > 0);
    let otlp_endpoint = arguments.otlp_endpoint.filter(|endpoint| !endpoint.is_empty());
    let services = ServiceSettings {
        memory,
        access_log: arguments.access_log,
        otlp_endpoint,
        proxies: arguments.trusted_proxies,
    };
    let daemon = Daemon::open(paths, pool, caches, data, services)?;
    if let Some(address) = &arguments.node_port {
        rekindle_daemon::listen_to_nodes(&daemon, address)?;
    }
    if let Some(address) = arguments.page_port {
        rekindle_daemon::open_page(&daemon, &PageSettings { address, names: arguments.page_names });
    }
    let listener = rekindle_daemon::listen(&daemon.paths.socket)?;
    log::info!("listens on {}", daemon.paths.socket.display());
    if arguments.background {
        leave_stderr()
            .map_err(|source| rekindle_daemon::Error::System { action: "leave the terminal", source })?;
    }
    rekindle_daemon::serve(&daemon, &listener)
}

/// Closes standard error, which tells whoever started this that it is ready.
fn leave_stderr() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    Ok(nix::unistd::dup2_stderr(&null)?)
}

/// Prints a line for each NVIDIA GPU; fails where there is none. A process of its own, so that the daemon never has the
/// driver open.
fn gpus() -> ExitCode {
    let platform = match NvidiaPlatform::open() {
        Ok(platform) => platform,
        Err(error) => return fail(&error.to_string()),
    };
    for device in platform.devices() {
        let (memory, driver) = (device.total_memory >> 20, platform.driver_name());
        println!("{} ({memory} MB), driver {driver}", device.name);
    }
    ExitCode::SUCCESS
}

/// A network, or one address.
fn parse_network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    text.parse::<IpAddr>()
        .map(IpNet::from)
        .or_else(|_| text.parse())
        .map_err(|_| format!("{text:?} is no address and no network; write 10.0.0.7, 10.0.0.0/8 or fd00::/8"))
}

fn fail(sentence: &str) -> ExitCode {
    eprintln!("rekindled: {sentence}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    /// A library that is opened by this executable must find the executable's own functions.
    #[test]
    fn libraries_find_this_mmap() {
        for (name, own) in [(c"mmap", super::mmap as *const ()), (c"mmap64", super::mmap64 as *const ())] {
            // SAFETY: looks a name up.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(found.cast_const().cast(), own, "{name:?}");
        }
    }
}
