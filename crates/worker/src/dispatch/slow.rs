//! Requests that took long, told at the log's level `debug`: what a driver does on a first use (loading code, making
//! room) shows nowhere else.

use std::time::{Duration, Instant};

use rekindle_protocol::operation::{Asynchronous, LaunchKernel, name};

use crate::client::Client;

/// What takes longer is told.
const LONG: Duration = Duration::from_micros(500);

/// When a request began, if anybody wants to know.
pub(super) fn begin() -> Option<Instant> {
    log::log_enabled!(log::Level::Debug).then(Instant::now)
}

/// Tells of a request that is done now.
pub(super) fn end(client: &Client, began: Option<Instant>, opcode: u32, body: &[u8]) {
    let Some(took) = began.map(|began| began.elapsed()).filter(|took| *took >= LONG) else { return };
    let launch = (opcode == LaunchKernel::OPCODE).then(|| postcard::from_bytes::<LaunchKernel>(body).ok());
    let function = launch.flatten().and_then(|launch| client.functions.get(launch.function).ok());
    let of = function.map_or_else(String::new, |function| {
        let device = client.context(function.device).map(|context| context.device.clone());
        let info =
            device.ok().zip(function.handle).and_then(|(device, handle)| device.function_info(handle).ok());
        format!(
            " of {} (attributes {:?})",
            function.name,
            info.map(|info| info.attributes).unwrap_or_default()
        )
    });
    log::debug!("{}{of} took {} us", name(opcode).unwrap_or("a request"), took.as_micros());
}
