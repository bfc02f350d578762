//! Images, and what is inside them.

use serde_json::Value;

use super::{bytes, shorten, table, text, words};

/// Where the driver has put it.
const IN_CPU: &str = "in CPU part";

pub fn images(images: &Value) -> String {
    let mut table = table(&[
        "IMAGE", "SERIES", "CREATED", "MODE", "CPU", "GPU", "PINNED", "OWN", "SHARED", "CACHED", "COMMAND",
        "PROBLEM",
    ]);
    for image in images.as_array().into_iter().flatten() {
        let size = |field: &str| image["sizes"][field].as_u64().map(bytes).unwrap_or_default();
        let shared = image["shared_bytes"].as_u64().unwrap_or_default();
        table.add_row([
            text(&image["name"]),
            text(&image["series"]),
            text(&image["created"]),
            text(&image["mode"]),
            size("cpu"),
            if is_gpu_in_cpu(image) { IN_CPU.to_string() } else { size("gpu") },
            size("pinned"),
            image["sizes"]["stored"].as_u64().map(|stored| bytes(stored - shared)).unwrap_or_default(),
            bytes(shared),
            cached(&image["cached_bytes"]),
            shorten(&words(&image["command"]), 40),
            text(&image["problem"]),
        ]);
    }
    table.trim_fmt()
}

pub fn image(image: &Value) -> String {
    let mut table = table(&[]);
    let sizes = &image["sizes"];
    let size = |field: &str| sizes[field].as_u64().map(bytes).unwrap_or_default();
    let gpu_part = match image["gpu_in_cpu_bytes"].as_u64() {
        // NVML does not tell everywhere.
        Some(0) => IN_CPU.to_string(),
        Some(count) => format!("{IN_CPU}: {} of GPU memory", bytes(count)),
        None => size("gpu"),
    };
    for (label, value) in [
        ("image", text(&image["name"])),
        ("created", text(&image["created"])),
        ("mode", text(&image["mode"])),
        ("path", text(&image["path"])),
        ("command", words(&image["program"]["argv"])),
        ("directory", text(&image["program"]["cwd"])),
        (
            "machine",
            format!("{}, Linux {}", text(&image["machine"]["host"]), text(&image["machine"]["kernel"])),
        ),
        ("logical size", size("logical")),
        ("stored", size("stored")),
        ("zeros", size("zero")),
        ("CPU part", size("cpu")),
        ("GPU part", gpu_part),
        ("pinned part", size("pinned")),
        ("mapped files", image["files"].as_array().map_or(0, Vec::len).to_string()),
    ] {
        table.add_row([label.to_string(), value]);
    }
    for gpu in image["gpus"].as_array().into_iter().flatten() {
        let memory = gpu["memory_bytes"].as_u64().map(bytes).unwrap_or_default();
        table.add_row([
            "GPU".to_string(),
            format!("{}, {memory}, driver {}", text(&gpu["model"]), text(&gpu["driver_version"])),
        ]);
    }
    format!("{}\n\n{}", table.trim_fmt(), parts(&image["parts"]))
}

fn parts(parts: &Value) -> String {
    let mut table = table(&["PART", "NAME", "SIZE", "STORED", "FROM IMAGE"]);
    for part in parts.as_array().into_iter().flatten() {
        let size = |field: &str| part[field].as_u64().map(bytes).unwrap_or_default();
        let from = text(&part["from"]);
        table.add_row([text(&part["kind"]), text(&part["name"]), size("bytes"), size("stored"), from]);
    }
    table.trim_fmt()
}

fn is_gpu_in_cpu(image: &Value) -> bool {
    image["mode"] == "driver" && image["gpus"].as_u64().is_some_and(|count| count > 0)
}

/// What of an image lies in caches, those that have nothing of it left out.
fn cached(caches: &Value) -> String {
    let host = ("host", caches["host"].as_u64());
    let gpus = caches["gpus"].as_object().into_iter().flatten();
    let all = gpus.map(|(gpu, count)| (gpu.as_str(), count.as_u64())).chain([host]);
    let held = all.filter_map(|(place, count)| Some((place, count.filter(|count| *count > 0)?)));
    held.map(|(place, count)| format!("{place} {}", bytes(count))).collect::<Vec<_>>().join(", ")
}

/// What a prune has removed, a line each.
pub fn pruned(answer: &Value) -> String {
    let names = |kind: &str| answer[kind].as_array().cloned().unwrap_or_default();
    let lines = |kind: &str, word: &str| -> Vec<String> {
        names(kind).iter().map(|name| format!("removed {word} {}\n", shorten(&text(name), 1024))).collect()
    };
    let freed = answer["freed_bytes"].as_u64().map(bytes).unwrap_or_default();
    format!("{}{}{freed} freed", lines("sandboxes", "sandbox").concat(), lines("images", "image").concat())
}
