//! What can go wrong with networks of programs, and ports that lead to them.

use std::io;

use rekindle_protocol::network::Port;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(
        "a network of the program's own cannot be made: {source}; the daemon needs CAP_SYS_ADMIN and a kernel with CONFIG_NET_NS, and `--network host` needs neither"
    )]
    NoNetwork { source: io::Error },

    #[error(
        "ports can only be published of a program with a network of its own: add `--network private`, or leave `-p` out, and the program's ports are the machine's"
    )]
    PortsOfHost,

    #[error(
        "port {port} cannot be published: {by} listens on it; choose another (`-p PORT:PORT`), or end that one"
    )]
    PortTaken { port: u16, by: String },

    #[error(
        "port {port} is published by the sandbox {name:?}; choose another (`-p PORT:PORT`), or end that one"
    )]
    PortPublished { port: u16, name: String },

    #[error("port {port} cannot be published: {source}; choose another (`-p [ADDRESS:]PORT:PORT`)")]
    CannotPublish { port: Port, source: io::Error },
}
