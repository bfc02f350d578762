//! Tenants made, changed and listed.

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::Request;
use serde_json::Value;

use crate::arguments::TenantCommand;
use crate::commands::Printer;
use crate::connection::simply_ask;
use crate::error::Result;
use crate::show::{bytes, table, text};

pub fn perform(paths: &Paths, printer: &Printer, command: TenantCommand) -> Result<()> {
    match command {
        TenantCommand::Create { name, quota } => {
            let answer = simply_ask(paths, &Request::CreateTenant { name, quota: quota.request() })?;
            printer.print(&answer, || token(&answer));
        }
        TenantCommand::Ls => {
            let answer = simply_ask(paths, &Request::Tenants)?;
            printer.print(&answer, || shown(&answer));
        }
        TenantCommand::Set { name, quota } => {
            let answer = simply_ask(paths, &Request::SetTenant { name, quota: quota.request() })?;
            printer.print_json(&answer);
        }
        TenantCommand::Token { name, revoke: None } => {
            let answer = simply_ask(paths, &Request::TenantToken { name, revoke: None })?;
            printer.print(&answer, || token(&answer));
        }
        TenantCommand::Token { name, revoke } => {
            let answer = simply_ask(paths, &Request::TenantToken { name, revoke })?;
            printer.print_json(&answer);
        }
        TenantCommand::Rm { name } => {
            let answer = simply_ask(paths, &Request::RemoveTenant { name })?;
            printer.print_json(&answer);
        }
    }
    Ok(())
}

/// The token alone, so that it can be piped to where it is kept.
fn token(answer: &Value) -> String {
    answer["token"]["token"].as_str().unwrap_or_default().to_string()
}

/// Each with what its services have together, of what they may have.
fn shown(answer: &Value) -> String {
    let mut table = table(&["TENANT", "SERVICES", "GPU MEMORY", "INSTANCES", "RATE", "TOO OFTEN", "TOKENS"]);
    for tenant in answer["tenants"].as_array().into_iter().flatten() {
        let (quota, used) = (&tenant["quota"], &tenant["used"]);
        let each = |list: &Value, of: fn(&Value) -> String| {
            list.as_array().into_iter().flatten().map(of).collect::<Vec<_>>().join(", ")
        };
        table.add_row([
            text(&tenant["name"]),
            each(&tenant["services"], text),
            of(
                bytes(used["memory_bytes"].as_u64().unwrap_or_default()),
                quota["memory_bytes"].as_u64().map(bytes),
            ),
            of(text(&used["instances"]), quota["instances"].as_u64().map(|most| most.to_string())),
            text(&quota["rate"]),
            text(&tenant["too_often"]),
            each(&tenant["tokens"], |token| text(&token["id"])),
        ]);
    }
    table.trim_fmt()
}

/// What there is, of the most if there is one.
fn of(used: String, most: Option<String>) -> String {
    match most {
        Some(most) => format!("{used} of {most}"),
        None => used,
    }
}
