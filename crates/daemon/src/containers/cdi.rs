//! Devices by their names in the container device interface: `VENDOR/CLASS=NAME`, described by files that say what
//! a container gets with them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Where descriptions lie.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Those of `names` that no description has.
pub fn missing<'a>(names: &'a [String], directories: &[&Path]) -> Vec<&'a str> {
    let mut described = Vec::new();
    for entry in
        directories.iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten())
    {
        described.extend(devices(&entry.path()));
    }
    names.iter().filter(|name| !described.contains(name)).map(String::as_str).collect()
}

/// The devices that a file describes; what is no description has none.
fn devices(path: &PathBuf) -> Vec<String> {
    let Ok(text) = fs::read_to_string(path) else { return Vec::new() };
    let found = match path.extension().and_then(|ending| ending.to_str()) {
        Some("json") => of_json(&text),
        Some("yaml" | "yml") => of_yaml(&text),
        _ => None,
    };
    let (kind, names) = found.unwrap_or_default();
    names.into_iter().map(|name| format!("{kind}={name}")).collect()
}

fn of_json(text: &str) -> Option<(String, Vec<String>)> {
    let value: Value = serde_json::from_str(text).ok()?;
    let names = value["devices"].as_array()?.iter().filter_map(|device| device["name"].as_str());
    Some((value["kind"].as_str()?.to_string(), names.map(String::from).collect()))
}

/// Of YAML what `nvidia-ctk` and its like write: keys at the left edge, one a line, and a device's name on a line of
/// its own. Nothing else in a description is called `name`.
fn of_yaml(text: &str) -> Option<(String, Vec<String>)> {
    let value = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.strip_prefix(':')?.trim();
        Some(value.trim_matches(['"', '\'']).to_string())
    };
    let (mut kind, mut names, mut of_devices) = (None, Vec::new(), false);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if !line.starts_with([' ', '-', '#']) {
            of_devices = line.starts_with("devices:");
            kind = kind.or_else(|| value(line, "kind"));
        } else if of_devices {
            names.extend(value(line.trim_start_matches([' ', '-']), "name"));
        }
    }
    Some((kind?, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_in_either_format() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        at(
            "a.json",
            r#"{"cdiVersion":"0.3.0","kind":"v.com/gpu","devices":[{"name":"0","containerEdits":{}}]}"#,
        );
        at(
            "nvidia.yaml",
            "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/nvidiactl\n  env:\n  - \
             name: x\ndevices:\n- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n  name: \"0\"\n- \
             name: all\nkind: nvidia.com/gpu\n",
        );
        at("bad.json", "{");
        at("note.txt", "kind: w.com/gpu\ndevices:\n- name: all\n");
        let names = [
            "v.com/gpu=0",
            "v.com/gpu=1",
            "nvidia.com/gpu=all",
            "nvidia.com/gpu=0",
            "nvidia.com/gpu=x",
            "w.com/gpu=all",
        ]
        .map(String::from);
        let missing = missing(&names, &[directory.path(), Path::new("/nowhere")]);
        assert_eq!(missing, ["v.com/gpu=1", "nvidia.com/gpu=x", "w.com/gpu=all"]);
    }
}
