//! An instance of a function: a thread, in the runner's context, with a stream of its own.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use rekindle_function::driver::{Stream, driver};
use rekindle_function::{Error, Reference, Value};

use crate::context::Context;
use crate::library::Loaded;
use crate::pending::Pending;
use crate::pool::{Number, Started};
use crate::reply::Reply;
use crate::server::Server;
use crate::trace::{self, SpanId, Trace};

/// Of a thread; what C and Rust give a program's first one.
const STACK: usize = 8 << 20;

/// A call, in the hands of an instance.
pub struct InstanceCall {
    pub message: Vec<u8>,
    /// References that are used up once it has a result.
    pub given: Vec<Reference>,
    pub connection: Arc<TcpStream>,
    pub stays: bool,
    pub pending: Arc<Pending>,
    /// Of its request, if that is followed, and the span until an instance has it.
    pub trace: Option<Arc<Trace>>,
    pub queue: SpanId,
}

/// Starts one for a call that it does first.
pub fn start(server: &'static Server, function: usize, number: Number, work: InstanceCall) {
    let began = Instant::now();
    let (pending, connection, stays) = (work.pending.clone(), work.connection.clone(), work.stays);
    let begun = std::thread::Builder::new()
        .name(format!("{}-{number}", server.functions[function].name))
        .stack_size(STACK)
        .spawn(move || run(server, function, number, work, began));
    if let Err(error) = begun {
        server.pool.ending();
        server.pool.ended();
        let error = Error::from(format!("no thread can be started for an instance ({error})"));
        if pending.claim() {
            finish(&pending, &connection, stays, &Reply::raised(&error, &server.name));
        }
    }
}

fn run(server: &'static Server, function: usize, number: Number, work: InstanceCall, began: Instant) {
    let loaded = &server.functions[function];
    let since = trace::now();
    let entered = Instance::enter(server, loaded, began);
    if let Some(trace) = &work.trace {
        trace.note("enter", since, work.queue);
    }
    match entered {
        Ok(instance) => Running { server, function, number, instance }.go_on(work),
        Err(error) => {
            if work.pending.claim() {
                server.pool.ending();
                let reply = Reply::raised(&error, &loaded.library).of(work.trace.as_ref());
                finish(&work.pending, &work.connection, work.stays, &reply);
            } else {
                server.pool.found();
            }
        }
    }
    server.pool.ended();
}

struct Instance {
    context: Box<Context>,
    own: *mut std::ffi::c_void,
    stream: Stream,
}

impl Instance {
    fn enter(server: &'static Server, loaded: &Loaded, began: Instant) -> Result<Instance, Error> {
        let driver = driver()?;
        driver.enter(server.gpu)?;
        let asked = Instant::now();
        let stream = driver.new_stream()?;
        let took = asked.elapsed();
        let mut context = Context::new(&loaded.name, stream, &server.data);
        let own = context.enter(loaded).inspect_err(|_| _ = driver.end_stream(stream))?;
        let started = Started { whole: began.elapsed().as_secs_f64(), stream: took.as_secs_f64() };
        server.pool.started(started);
        Ok(Instance { context, own, stream })
    }

    fn leave(mut self, loaded: &Loaded) {
        self.context.leave(loaded, self.own);
        if let Ok(driver) = driver()
            && let Err(error) = driver.end_stream(self.stream)
        {
            self.context.log(&format!("its stream cannot be given back: {error}"));
        }
    }
}

struct Running {
    server: &'static Server,
    function: usize,
    number: Number,
    instance: Instance,
}

impl Running {
    fn go_on(mut self, first: InstanceCall) {
        let mut next = Some(first);
        while let Some(work) = next.take() {
            next = self.carry(work).and_then(|receiver| self.wait(&receiver));
        }
        self.instance.leave(&self.server.functions[self.function]);
    }

    /// Does a call. Where the next one comes; none: it has no place in the pool any more.
    fn carry(&mut self, work: InstanceCall) -> Option<Receiver<InstanceCall>> {
        let InstanceCall { message, given, connection, stays, pending, trace, queue } = work;
        if let Some(trace) = &trace {
            trace.end(queue);
        }
        let loaded = &self.server.functions[self.function];
        let (result, is_broken) =
            self.instance.context.carry(loaded, self.instance.own, message, trace.clone());
        let result = result.and_then(|message| used(&given).map(|()| message));
        let fault = match &result {
            Ok(_) => None,
            Err(_) => driver().ok().and_then(|driver| driver.fault(self.instance.stream)),
        };
        let mut next = None;
        if !pending.claim() {
            self.server.pool.found();
        } else {
            // Its next call may come as soon as this one is answered.
            if is_broken || fault.is_some() {
                self.server.pool.ending();
            } else {
                let (sender, receiver) = channel();
                next = self.server.pool.put_back(self.number, self.function, sender).then_some(receiver);
            }
            let reply = match result {
                Ok(message) => Reply::result(message),
                Err(error) => Reply::raised(&error, &loaded.library),
            };
            finish(&pending, &connection, stays, &reply.of(trace.as_ref()));
        }
        if let Some(fault) = fault {
            self.server.end_by(&loaded.name, fault);
        }
        next
    }

    /// The next call; none: it is to end.
    fn wait(&self, receiver: &Receiver<InstanceCall>) -> Option<InstanceCall> {
        match receiver.recv_timeout(self.server.idle) {
            Ok(work) => Some(work),
            Err(RecvTimeoutError::Timeout) if self.server.pool.leave(self.number) => None,
            // Who has taken it is about to send, or has ended it.
            Err(_) => receiver.recv().ok(),
        }
    }
}

/// References of a message that are used up by its call; only those of workflows are.
pub fn given(value: &Value<'_>) -> Vec<Reference> {
    let mut found = Vec::new();
    if let Value::List(parts) = value
        && parts.len() > 2
    {
        parts[..2].iter().for_each(|part| collect(part, &mut found));
    }
    found
}

/// Whether the caller holds what the references of a message name, and has put them in place of arrays.
pub fn are_held(value: &Value<'_>) -> bool {
    let Value::List(parts) = value else { return false };
    let Some(Value::Dictionary(how)) = parts.get(2) else { return false };
    how.iter().any(|(key, value)| {
        matches!(key, Value::Text(key) if key == "held") && matches!(value, Value::Boolean(true))
    })
}

fn collect(value: &Value<'_>, found: &mut Vec<Reference>) {
    match value {
        Value::Reference(reference) if reference.given => found.push(reference.clone()),
        Value::List(items) | Value::Tuple(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Dictionary(pairs) => pairs.iter().for_each(|(_, value)| collect(value, found)),
        _ => (),
    }
}

fn used(references: &[Reference]) -> Result<(), Error> {
    references.iter().try_for_each(|reference| driver()?.drop_named(&reference.id, true))
}

fn finish(pending: &Pending, connection: &TcpStream, stays: bool, reply: &Reply) {
    // Whoever has gone needs no answer; the connection's thread finds that by itself.
    let _ = reply.write(connection, true, stays);
    pending.answered();
}
