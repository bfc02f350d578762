//! What people see of the daemon's answers.

mod images;
mod reports;
mod sandboxes;
mod services;

use comfy_table::{Table, presets};
use serde_json::Value;

pub use images::{image, images, pruned};
pub use reports::{findings, migrated, moved, operation, report, slept, trace};
pub use sandboxes::{happened, log, mode, pool, sandboxes, stats};
pub use services::{address, services};

pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    // Lines stay whole, however narrow the terminal says that it is: they can then be searched.
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    table
}

pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn words(value: &Value) -> String {
    value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" ")
}

/// At most so many characters; control characters replaced, so that nothing plays with the terminal.
fn shorten(text: &str, most: usize) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    match text.char_indices().nth(most) {
        None => clean.collect(),
        Some(_) => clean.take(most - 1).chain(['…']).collect(),
    }
}

pub fn milliseconds(microseconds: u64) -> String {
    format!("{:.1}", microseconds as f64 / 1000.0)
}

/// A size in the largest unit that leaves a number of at least one.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
    }

    #[test]
    fn long_and_odd_commands_stay_on_a_line() {
        assert_eq!(shorten("a\n\u{1b}b", 40), "a  b");
        assert_eq!(shorten(&"é".repeat(50), 5), "éééé…");
    }
}
