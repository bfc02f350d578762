//! The runner's process: gets all functions ready, says so, and serves them until it is told to end.

use std::net::TcpListener;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rekindle_function::driver::{Context as Gpu, Failed, driver};
use rekindle_function::{Value, abi, message};

use crate::Error;
use crate::arguments::Arguments;
use crate::connection;
use crate::context::Context;
use crate::data::Declared;
use crate::instance::InstanceCall;
use crate::library::{self, Loaded};
use crate::pool::Pool;
use crate::report;

/// How long calls that are under way have once the runner is to end. An instance is killed 5 seconds after SIGTERM.
const ENDING: Duration = Duration::from_secs(4);

/// What all threads have.
pub struct Server {
    pub name: String,
    pub functions: Vec<Loaded>,
    pub pool: Pool<InstanceCall>,
    pub data: Vec<Declared>,
    pub gpu: Gpu,
    pub idle: Duration,
    pub timeout: Duration,
    retries: [f64; 4],
}

unsafe extern "C" {
    /// C's, which no library of Rust's names.
    static mut stdout: *mut libc::FILE;
}

/// What libraries print comes to the log line by line, and a line in one write.
fn print_lines() {
    // SAFETY: nothing has been printed yet, and no other thread is there.
    unsafe { libc::setvbuf(stdout, std::ptr::null_mut(), libc::_IOLBF, 0) };
}

pub fn serve(arguments: &Arguments, own: Option<&'static abi::Library>) -> Result<(), Error> {
    // Threads that are started have them blocked, too.
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    let system = |what: &str, source| Error::System { what: what.to_string(), source };
    signals.thread_block().map_err(|error| system("signals cannot be waited for", error.into()))?;
    print_lines();
    let gpu = driver().and_then(|driver| Ok((driver.open()?, driver.new_stream()?)));
    let (gpu, stream) = gpu.map_err(Error::Gpu)?;
    let functions = library::load(&arguments.libraries, own)?;
    let server: &'static mut Server = Box::leak(Box::new(Server {
        name: arguments.name.clone(),
        functions,
        pool: Pool::new(arguments.instances as usize),
        data: arguments.data.clone(),
        gpu,
        idle: arguments.idle,
        timeout: arguments.timeout,
        retries: [
            arguments.max_retries.into(),
            arguments.initial_delay,
            arguments.backoff,
            arguments.max_delay,
        ],
    }));
    let data: &'static [Declared] = Box::leak(arguments.data.clone().into_boxed_slice());
    let mut contexts = Vec::new();
    for loaded in &mut server.functions {
        let mut context = Context::new(&loaded.name, stream, data);
        loaded.shared = context.setup(loaded).map_err(|error| Error::Setup {
            function: loaded.name.clone(),
            library: loaded.library.clone(),
            error,
        })?;
        contexts.push(context);
    }
    let server: &'static Server = server;
    let listener = TcpListener::bind(&arguments.listen)
        .map_err(|source| Error::Listen { address: arguments.listen.clone(), source })?;
    std::thread::Builder::new()
        .name("listen".to_string())
        .spawn(move || listen(server, &listener))
        .map_err(|source| system("no thread can be started", source))?;
    let names: Vec<&str> = server.functions.iter().map(|function| function.name.as_str()).collect();
    report::tell(arguments.report.as_deref(), Ok(&names));
    // A wait that fails has no signals, and the runner goes on.
    while signals.wait().is_err() {}
    if server.pool.end(ENDING) {
        for (loaded, context) in server.functions.iter().zip(&mut contexts) {
            context.teardown(loaded);
        }
    } else {
        eprintln!(
            "{}: calls are under way after {} s, and nothing is torn down",
            server.name,
            ENDING.as_secs()
        );
    }
    end(0)
}

fn listen(server: &'static Server, listener: &TcpListener) {
    for stream in listener.incoming() {
        let begun = stream.and_then(|stream| {
            let thread = std::thread::Builder::new().name("connection".to_string());
            thread.spawn(move || {
                // What is wrong with a connection is its other side's to know, which it ends for.
                let _ = connection::serve(server, stream);
            })
        });
        if let Err(error) = begun {
            eprintln!("{}: a connection is not served: {error}", server.name);
            // There are too many of something; some of it comes back.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Server {
    /// What callers need to know, and what instances there are.
    pub fn about(&self) -> Value<'_> {
        let field = |name: &'static str, value: Value<'static>| (Value::from(name), value);
        let names = self.functions.iter().map(|function| function.name.clone().into());
        let [most, initial, backoff, longest] = self.retries;
        let counts = self.pool.counts();
        let count = |number: usize| Value::from(number as u64);
        let starts = |time: fn(&crate::pool::Started) -> f64| {
            Value::List(counts.starts.iter().map(|started| time(started).into()).collect())
        };
        let retries = Value::Dictionary(vec![
            field("max_retries", Value::Integer(most as i128)),
            field("initial_delay", initial.into()),
            field("backoff", backoff.into()),
            field("max_delay", longest.into()),
        ]);
        let instances = Value::Dictionary(vec![
            field("live", count(counts.live)),
            field("waiting", count(counts.waiting)),
            field("lost", count(counts.lost)),
            field("started", counts.started.into()),
            field("start_seconds", starts(|started| started.whole)),
            field("stream_seconds", starts(|started| started.stream)),
        ]);
        Value::Dictionary(vec![
            field("methods", Value::List(names.collect())),
            field("message", u64::from(message::VERSION).into()),
            field("timeout", self.timeout.as_secs_f64().into()),
            field("retries", retries),
            field("instances", instances),
        ])
    }

    /// The context is of no further use: another runner is restored for the calls that come.
    pub fn end_by(&self, function: &str, fault: Failed) {
        eprintln!(
            "{}: {function} has left the GPU's context unusable ({fault}), and this runner ends",
            self.name
        );
        end(1)
    }
}

/// Without what libraries would have done at exit: their threads may still be at work. What C has printed and not written yet is written.
fn end(code: i32) -> ! {
    // SAFETY: C's own file, which stays; then the process ends.
    unsafe {
        libc::fflush(stdout);
        libc::_exit(code)
    }
}
