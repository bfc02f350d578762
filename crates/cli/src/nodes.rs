//! Other nodes: who they are, and programs that move to them.

use rekindle_daemon::Paths;
use rekindle_protocol::daemon::{MigrationReport, NodeMigrationReport, Request};
use serde_json::Value;

use crate::arguments::{MigrateArguments, NodeCommand};
use crate::commands::Printer;
use crate::connection::simply_ask;
use crate::error::Result;
use crate::{cancel, show};

/// Moves a program to another GPU or node, or has it go on here.
pub fn migrate(paths: &Paths, printer: &Printer, arguments: MigrateArguments) -> Result<()> {
    let MigrateArguments { name, gpu, to, rounds, publish, forward: forward_ms, take_back } = arguments;
    if take_back {
        return take_back_from_node(paths, printer, name);
    }
    let to_node = to.is_some();
    let request = match to {
        Some(node) => Request::MigrateTo { name, node, gpu, rounds, publish, forward_ms },
        None => Request::Migrate { name, gpu: gpu.unwrap_or_default(), rounds },
    };
    let cancel::Answer { value: answer, too_late } = cancel::ask(paths, &request)?;
    let (text, name) = if to_node {
        let report: NodeMigrationReport = serde_json::from_value(answer.clone())?;
        (show::moved(&report, printer.verbose), report.name)
    } else {
        let report: MigrationReport = serde_json::from_value(answer.clone())?;
        (show::migrated(&report, printer.verbose), report.name)
    };
    printer.print(&answer, || text);
    if too_late {
        eprintln!("rekindle: it was too late to cancel: {name:?} has moved");
    }
    Ok(())
}

fn take_back_from_node(paths: &Paths, printer: &Printer, name: String) -> Result<()> {
    let answer = simply_ask(paths, &Request::TakeBack { name })?;
    printer.print(&answer, || {
        let (name, node) = (text(&answer, "name"), text(&answer, "node"));
        format!("{name:?} goes on here; be sure that it never does at {node:?}")
    });
    Ok(())
}

pub fn node(paths: &Paths, printer: &Printer, command: NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Id => {
            let answer = simply_ask(paths, &Request::Node)?;
            printer.print(&answer, || text(&answer, "key"));
        }
        NodeCommand::Add { name, address, key, arrays } => {
            printer.print_json(&simply_ask(paths, &Request::AddNode { name, address, key, arrays })?);
        }
        NodeCommand::Ls => {
            let answer = simply_ask(paths, &Request::Nodes)?;
            printer.print(&answer, || list(&answer));
        }
        NodeCommand::Rm { name } => {
            printer.print_json(&simply_ask(paths, &Request::RemoveNode { name })?);
        }
    }
    Ok(())
}

fn list(answer: &Value) -> String {
    let mut table = show::table(&["NODE", "ADDRESS", "ARRAYS", "KEY"]);
    for node in answer["nodes"].as_array().into_iter().flatten() {
        let arrays = if node["arrays"] == true { "yes" } else { "no" };
        table.add_row([text(node, "name"), text(node, "address"), arrays.to_string(), text(node, "key")]);
    }
    table.trim_fmt()
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_string()
}
