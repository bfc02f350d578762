//! A connection: its requests, one after the other.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rekindle_function::{Value, message};

use crate::http::{Request, Requests};
use crate::instance::{self, InstanceCall};
use crate::pending::Pending;
use crate::pool::Placement;
use crate::reply::{Kind, Reply};
use crate::server::Server;

const ABOUT: &str = "/-/about";
const READY: &str = "/-/ready";
const CALL: &str = "/-/call/";

/// Until it ends. What is no HTTP ends it.
pub fn serve(server: &'static Server, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let connection = Arc::new(stream.try_clone()?);
    let mut requests = Requests::new(stream);
    while let Some(request) = requests.next()? {
        let stays = request.stays;
        answer(server, request, &connection)?;
        if !stays {
            break;
        }
    }
    Ok(())
}

fn answer(server: &'static Server, request: Request, connection: &Arc<TcpStream>) -> io::Result<()> {
    let has_body = request.method != "HEAD";
    let reply = match (request.method.as_str(), request.path.as_str()) {
        ("GET", ABOUT) => said(server.about()),
        ("GET", READY) => said(Value::Boolean(true)),
        ("POST", path) if path.starts_with(CALL) => {
            let name = &path[CALL.len()..];
            if request.message > message::VERSION {
                let sentence = format!(
                    "{} understands messages up to version {}, and the call needs version {}; deploy it again",
                    server.name,
                    message::VERSION,
                    request.message
                );
                return Reply::say(Kind::Later, &sentence).write(connection, has_body, request.stays);
            }
            match server.functions.iter().position(|function| function.name == name) {
                Some(function) => return call(server, function, request, connection),
                None => {
                    let names: Vec<&str> =
                        server.functions.iter().map(|function| function.name.as_str()).collect();
                    let sentence =
                        format!("{} has no function {name:?}; it has {}", server.name, names.join(", "));
                    Reply::say(Kind::Unknown, &sentence)
                }
            }
        }
        (method, path) => {
            let sentence = format!(
                "{method} {path} is nothing that a function of Rekindle's answers; call it by the package rekindle"
            );
            Reply::say(Kind::Unknown, &sentence)
        }
    };
    reply.write(connection, has_body, request.stays)
}

fn said(value: Value<'_>) -> Reply {
    match message::encode(&value) {
        Ok(message) => Reply::result(message),
        Err(error) => Reply::raised(&error, "the runner"),
    }
}

/// The instance answers; this one only if that takes too long.
fn call(
    server: &'static Server,
    function: usize,
    request: Request,
    connection: &Arc<TcpStream>,
) -> io::Result<()> {
    let (stays, trace) = (request.stays, request.trace);
    let queue = trace.as_ref().map_or(0, |trace| trace.begin("queue", 0));
    let given = match message::decode(&request.body) {
        Ok(value) => {
            let given = instance::given(&value);
            // A function takes an array or a reference, as it says itself: what was passed as an array comes as one.
            if !given.is_empty() && instance::are_held(&value) {
                let sentence = "functions in C and Rust take arrays by their bytes; send them so";
                return Reply::say(Kind::Untaken, sentence).write(connection, true, stays);
            }
            given
        }
        Err(error) => return Reply::say(Kind::Misunderstood, &error.text).write(connection, true, stays),
    };
    let pending = Arc::new(Pending::new());
    let (message, connection) = (request.body, connection.clone());
    let mut work = InstanceCall {
        message,
        given,
        connection: connection.clone(),
        stays,
        pending: pending.clone(),
        trace: trace.clone(),
        queue,
    };
    loop {
        match server.pool.take(function) {
            Placement::Waiting(sender) => match sender.send(work) {
                Ok(()) => break,
                Err(back) => {
                    // It has ended by itself, which nothing here does: it is only to be counted out.
                    server.pool.ending();
                    work = back.0;
                }
            },
            Placement::New(number) => {
                instance::start(server, function, number, work);
                break;
            }
            Placement::Over => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
    if !pending.wait(server.timeout) {
        server.pool.lose();
        let (runner, name) = (&server.name, &server.functions[function].name);
        let limit = server.timeout.as_secs_f64();
        let sentence =
            format!("{runner}.{name} took longer than {limit} s; raise `timeout`, or have it do less");
        return Reply::say(Kind::Late, &sentence).of(trace.as_ref()).write(&connection, true, stays);
    }
    Ok(())
}
