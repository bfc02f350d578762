//! Services.

use std::fmt::Write;

use serde_json::Value;

use super::{bytes, table, text};

/// Services, with how many instances of each are at which stage.
pub fn services(answer: &Value) -> String {
    let mut table = table(&[
        "SERVICE",
        "TENANT",
        "IMAGE",
        "ADDRESS",
        "INSTANCES",
        "QUEUED",
        "IN FLIGHT",
        "GPU MEMORY",
        "SERVED",
        "FAILED",
        "REFUSED",
        "PROBLEM",
    ]);
    for service in answer["services"].as_array().into_iter().flatten() {
        let (image, problem) = (text(&service["source"]["image"]), text(&service["problem"]));
        table.add_row(service_row(
            service,
            [text(&service["name"]), text(&service["tenant"]), image, address(service)],
            problem,
        ));
        let canary = &service["canary"];
        if let Some(share) = canary["share"].as_f64() {
            let name = format!("{} ({}% canary)", text(&service["name"]), share * 100.0);
            let first = [name, text(&service["tenant"]), text(&canary["image"]), String::new()];
            table.add_row(service_row(canary, first, text(&canary["stopped"])));
        }
    }
    let mut shown = table.trim_fmt();
    shown.extend(workflows(answer).map(|workflows| format!("\n\n{workflows}")));
    let limit = answer["memory"]["limit_bytes"].as_u64();
    for (gpu, used) in answer["memory"]["used_bytes"].as_object().into_iter().flatten() {
        let used = bytes(used.as_u64().unwrap_or_default());
        if let Some(limit) = limit {
            let _ = write!(shown, "\n{gpu}: {used} of the {} that services may have", bytes(limit));
        }
    }
    shown
}

/// Workflows, if there are any.
fn workflows(answer: &Value) -> Option<String> {
    let all = answer["workflows"].as_array().filter(|all| !all.is_empty())?;
    let columns =
        ["WORKFLOW", "TENANT", "ADDRESS", "STEPS", "IN FLIGHT", "SERVED", "FAILED", "REFUSED", "PROBLEM"];
    let mut table = table(&columns);
    for one in all {
        table.add_row([
            text(&one["name"]),
            text(&one["tenant"]),
            address(one),
            one["steps"].as_array().map_or(0, Vec::len).to_string(),
            one["in_flight"].to_string(),
            one["served"].to_string(),
            one["failed"].to_string(),
            one["refused"].to_string(),
            text(&one["problem"]),
        ]);
    }
    Some(table.trim_fmt())
}

fn service_row(row: &Value, [name, tenant, image, address]: [String; 4], problem: String) -> [String; 12] {
    [
        name,
        tenant,
        image,
        address,
        stages(row),
        row["queued"].to_string(),
        row["in_flight"].to_string(),
        bytes(row["gpu_bytes"].as_u64().unwrap_or_default()),
        row["served"].to_string(),
        row["failed"].to_string(),
        row["refused"].to_string(),
        problem,
    ]
}

/// Where a service's clients come.
pub fn address(service: &Value) -> String {
    let port = service["port"].as_u64().unwrap_or_default();
    match service["address"].as_str() {
        None => port.to_string(),
        Some(address) if address.contains(':') => format!("[{address}]:{port}"),
        Some(address) => format!("{address}:{port}"),
    }
}

fn stages(service: &Value) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for instance in service["instances"].as_array().into_iter().flatten() {
        let (stage, level) = (text(&instance["stage"]), instance["level"].as_str());
        *counts.entry(level.map_or(stage.clone(), |level| format!("{stage} ({level})"))).or_insert(0) += 1;
    }
    let shown = counts.iter().map(|(stage, count)| format!("{count} {stage}"));
    let shown = shown.chain((service["draining"] == true).then(|| "draining".to_string()));
    let shown = shown.collect::<Vec<_>>().join(", ");
    if shown.is_empty() { "none".to_string() } else { shown }
}
