//! The page that a browser shows of the daemon: where it is, and what it is told.

mod error;
mod images;
mod state;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use rekindle_page::{Collect, Documents, Hosts};
use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::error::Result;
use crate::images::machine;
use crate::metrics;
use images::Images;

pub use error::PageError;

/// Where the page is to be, and by which names of this machine it may be asked for beside its own.
#[derive(Clone, Debug)]
pub struct PageSettings {
    pub address: SocketAddr,
    pub names: Vec<String>,
}

/// `[ADDRESS:]PORT`; without an address it is for this machine alone.
pub fn parse_page_address(text: &str) -> std::result::Result<SocketAddr, String> {
    let port = || text.parse().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    text.parse().or_else(|_| port()).map_err(|_: std::num::ParseIntError| {
        "expected [ADDRESS:]PORT, such as 7070, 0.0.0.0:7070 or [::1]:7070".to_string()
    })
}

/// Has the page shown from now on. What stands in the way is noted: the daemon does its work without it.
pub fn open(daemon: &Arc<Daemon>, settings: &PageSettings) {
    let opened = begin(daemon, settings).map_err(|error| {
        let error = PageError::NoPort { address: settings.address, why: error.to_string() };
        log::error!("{error}");
        error.to_string()
    });
    if let Ok(address) = &opened {
        log::info!("the page is at {}", url(*address));
    }
    daemon.note_page(opened);
}

fn begin(daemon: &Arc<Daemon>, settings: &PageSettings) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(settings.address)?;
    let address = listener.local_addr()?;
    let hosts = Hosts::new(settings.names.iter().cloned().chain([machine::this().host]));
    let (daemon, images, began): (Weak<Daemon>, _, _) =
        (Arc::downgrade(daemon), Images::default(), SystemTime::now());
    let for_metrics = daemon.clone();
    let collect =
        move || daemon.upgrade().map_or(Value::Null, |daemon| state::collect(&daemon, &images, began));
    let state: Collect = Box::new(move || Some(collect().to_string()));
    let metrics: Collect = Box::new(move || metrics::collect(&*for_metrics.upgrade()?, began));
    rekindle_page::serve(listener, hosts, Documents { state, metrics })?;
    Ok(address)
}

/// Where the page is.
pub fn address(daemon: &Daemon) -> Result<Value> {
    match daemon.page() {
        Some(Ok(address)) => Ok(json!({ "address": url(*address) })),
        Some(Err(why)) => Err(PageError::NoPage { why: why.clone() }.into()),
        None => Err(PageError::Off.into()),
    }
}

/// As a browser on this machine is told it.
fn url(address: SocketAddr) -> String {
    let reached = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}/", SocketAddr::new(reached, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_for_this_machine() {
        let shown = |text: &str| parse_page_address(text).map(url);
        assert_eq!(shown("7070").unwrap(), "http://127.0.0.1:7070/");
        assert_eq!(shown("0.0.0.0:80").unwrap(), "http://127.0.0.1:80/");
        assert_eq!(shown("[::]:80").unwrap(), "http://[::1]:80/");
        assert_eq!(shown("10.0.0.7:80").unwrap(), "http://10.0.0.7:80/");
        for wrong in ["", "localhost:80", "70707", "-1", "10.0.0.7"] {
            assert!(shown(wrong).unwrap_err().contains("[ADDRESS:]PORT"), "{wrong}");
        }
    }
}
