//! Other nodes: who they are, and programs that move to them.

use rekindle_daemon::Places;
use rekindle_protocol::daemon::{NodeMigrationReport, Request};
use serde_json::Value;

use crate::arguments::NodeCommand;
use crate::commands::Printer;
use crate::connection::simply_ask;
use crate::error::Result;
use crate::{cancel, show};

/// Moves a program to another node.
pub fn migrate(places: &Places, printer: &Printer, request: &Request) -> Result<()> {
    let cancel::Answer { value: answer, too_late } = cancel::ask(places, request)?;
    let report: NodeMigrationReport = serde_json::from_value(answer.clone())?;
    printer.print(&answer, || show::moved(&report, printer.verbose));
    if too_late {
        eprintln!("rekindle: it was too late to cancel: {:?} has moved", report.name);
    }
    Ok(())
}

pub fn take_back(places: &Places, printer: &Printer, name: String) -> Result<()> {
    let answer = simply_ask(places, &Request::TakeBack { name })?;
    printer.print(&answer, || {
        let (name, node) = (text(&answer, "name"), text(&answer, "node"));
        format!("{name:?} goes on here; be sure that it never does at {node:?}")
    });
    Ok(())
}

pub fn node(places: &Places, printer: &Printer, command: NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Id => {
            let answer = simply_ask(places, &Request::Node)?;
            printer.print(&answer, || text(&answer, "key"));
        }
        NodeCommand::Add { name, address, key } => {
            printer.print_json(&simply_ask(places, &Request::AddNode { name, address, key })?);
        }
        NodeCommand::Ls => {
            let answer = simply_ask(places, &Request::Nodes)?;
            printer.print(&answer, || list(&answer));
        }
        NodeCommand::Rm { name } => {
            printer.print_json(&simply_ask(places, &Request::RemoveNode { name })?);
        }
    }
    Ok(())
}

fn list(answer: &Value) -> String {
    let mut table = show::table(&["NODE", "ADDRESS", "KEY"]);
    for node in answer["nodes"].as_array().into_iter().flatten() {
        table.add_row([text(node, "name"), text(node, "address"), text(node, "key")]);
    }
    table.trim_fmt()
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_string()
}
