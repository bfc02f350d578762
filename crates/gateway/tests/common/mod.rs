//! A gateway with a service of a program that is a thread of the test.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rekindle_gateway::{Failure, Gateway, Holding, Instance, Maker, Plan, Service, Source, TcpSocket};
use rekindle_protocol::daemon::Level;
use rekindle_protocol::data::{Problem, ProblemKind};

/// A program that listens on a port of this machine's.
struct Program {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Instance for Program {
    fn sleep(&self, _: Level) -> Result<(), Failure> {
        Err(Failure { why: "it has no GPU".to_string(), missing: None })
    }

    fn call_off(&self) {}

    fn wake(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn memory(&self) -> Option<Holding> {
        None
    }

    fn fault(&self) -> Option<String> {
        None
    }

    fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait_end(&self) -> String {
        let ended = self.ended.lock().unwrap();
        let _ended = self.changed.wait_while(ended, |ended| !*ended).unwrap();
        "ended".to_string()
    }

    fn socket(&self, is_v6: bool) -> io::Result<TcpSocket> {
        if is_v6 { TcpSocket::new_v6() } else { TcpSocket::new_v4() }
    }
}

struct Programs;

impl Maker for Programs {
    fn start(&self, _: &Source, _: &str) -> Result<Arc<dyn Instance>, Failure> {
        Ok(Arc::new(Program { ended: Mutex::new(false), changed: Condvar::new() }))
    }

    fn fetch_data(&self, url: &str) -> Option<Problem> {
        url.ends_with("missing").then(|| Problem::new(ProblemKind::NotFound, format!("{url} is not there")))
    }

    fn locate(&self, _: &[String]) -> Option<String> {
        None
    }

    fn drop_arrays(&self, _: &Source, _: &[String]) {}
}

/// A service `web` of one instance, and where its clients come.
pub struct Web {
    pub service: Arc<Service>,
    pub port: u16,
    _gateway: Gateway,
}

impl Web {
    /// Of a program that serves each connection with this.
    pub fn of(program: impl Fn(TcpStream) + Send + Clone + 'static) -> Web {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let program = program.clone();
                std::thread::spawn(move || program(stream.unwrap()));
            }
        });
        let source = Source { image: "i".into(), id: "i".into(), to, ..Source::default() };
        let gateway = Gateway::new(10, None);
        let service = gateway.make(("web", "web-"), None, plan(), None, Arc::new(Programs)).unwrap();
        gateway.add(&service, None);
        service.roll_out(source, plan()).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        gateway.listen(&service.name, listener).unwrap();
        Web { service, port, _gateway: gateway }
    }
}

pub fn plan() -> Plan {
    Plan { min: 0, max: 1, concurrency: 2, idle_ms: 60_000, queue: 9, timeout_ms: 60_000, ..Plan::default() }
}

/// A head of HTTP/1.1, if one comes.
pub fn head(mut stream: &TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        io::Read::read_exact(&mut stream, &mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}
