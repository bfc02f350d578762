//! Onto which GPUs a program comes back, and whether it can.

use std::collections::HashSet;

use crate::message::{Gpu, UuidPair};

/// Pairs the GPUs of an image with those of this machine; all reasons where that cannot be. Without `given` (`OLD=NEW`)
/// each comes to the one of its own UUID, the others to those that are left, in order. No pairs mean that nothing moves.
pub fn plan(wanted: &[Gpu], present: &[Gpu], given: &[String]) -> Result<Vec<UuidPair>, Vec<String>> {
    let asked = parse(wanted, present, given).map_err(|reason| vec![reason])?;
    if asked.len() < wanted.len() && present.len() != wanted.len() {
        return Err(vec![format!(
            "it was taken on a machine with {} and this one has {}; use such a machine, or map each with --gpu-map",
            count(wanted.len()),
            count(present.len())
        )]);
    }
    let mut free: Vec<&Gpu> =
        present.iter().filter(|gpu| asked.iter().all(|(_, new)| new.uuid != gpu.uuid)).collect();
    let mut take = |fits: &dyn Fn(&Gpu) -> bool| {
        let at = free.iter().position(|gpu| fits(gpu))?;
        Some(free.remove(at))
    };
    let mut chosen: Vec<Option<&Gpu>> = Vec::new();
    for old in wanted {
        let given = asked.iter().find(|(uuid, _)| *uuid == old.uuid).map(|(_, new)| *new);
        chosen.push(given.or_else(|| take(&|gpu| gpu.uuid == old.uuid)));
    }
    for place in chosen.iter_mut().filter(|place| place.is_none()) {
        *place = take(&|_| true);
    }
    let (mut pairs, mut reasons) = (Vec::new(), Vec::new());
    for (old, new) in wanted.iter().zip(chosen) {
        match new {
            None => reasons.push(format!("no GPU is left for its {} ({})", old.model, old.uuid)),
            Some(new) => {
                reasons.extend(compare(old, new));
                pairs.push(UuidPair { old: old.uuid.clone(), new: new.uuid.clone() });
            }
        }
    }
    if !reasons.is_empty() {
        return Err(reasons);
    }
    if pairs.iter().all(|pair| pair.old == pair.new) {
        pairs.clear();
    }
    Ok(pairs)
}

/// What was given: the image's UUID and this machine's GPU.
fn parse<'a>(wanted: &[Gpu], present: &'a [Gpu], given: &[String]) -> Result<Vec<(String, &'a Gpu)>, String> {
    let (mut out, mut taken) = (Vec::new(), HashSet::new());
    for text in given {
        let bad = |reason: String| format!("--gpu-map {text:?}: {reason}");
        let (old, new) =
            text.split_once('=').ok_or_else(|| bad("expected OLD=NEW, two UUIDs".to_string()))?;
        let uuid = |text: &str| {
            let bytes = bytes_of(text)
                .ok_or_else(|| bad(format!("{text:?} is no UUID; `nvidia-smi -L` lists them")))?;
            Ok::<_, String>(text_of(&bytes))
        };
        let (old, new) = (uuid(old)?, uuid(new)?);
        if !wanted.iter().any(|gpu| gpu.uuid == old) {
            return Err(bad(format!("the image has no GPU {old}; it has {}", list(wanted))));
        }
        let new = present.iter().find(|gpu| gpu.uuid == new);
        let new = new.ok_or_else(|| bad(format!("this machine has {}", list(present))))?;
        if !taken.insert(old.clone()) || !taken.insert(format!("={}", new.uuid)) {
            return Err(bad("a GPU is named twice".to_string()));
        }
        out.push((old, new));
    }
    Ok(out)
}

fn compare(old: &Gpu, new: &Gpu) -> Option<String> {
    if old.model != new.model {
        return Some(format!(
            "it was taken on {} and {} is {}; the driver brings back onto the same model only",
            old.model, new.uuid, new.model
        ));
    }
    if old.driver_version != new.driver_version {
        return Some(format!(
            "it was taken with driver {} and this machine has {}; install that driver",
            old.driver_version, new.driver_version
        ));
    }
    let free = new.free_bytes.filter(|free| *free < old.used_bytes)?;
    Some(format!(
        "it needs {} MB of GPU memory and {} MB are free on {}; free some or map it elsewhere with --gpu-map",
        old.used_bytes >> 20,
        free >> 20,
        new.uuid
    ))
}

fn count(gpus: usize) -> String {
    if gpus == 1 { "1 GPU".to_string() } else { format!("{gpus} GPUs") }
}

fn list(gpus: &[Gpu]) -> String {
    if gpus.is_empty() {
        return "none".to_string();
    }
    gpus.iter().map(|gpu| gpu.uuid.as_str()).collect::<Vec<_>>().join(", ")
}

/// A UUID as NVIDIA's tools write it.
pub fn text_of(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The number in a UUID, written with or without its prefix and hyphens.
pub fn bytes_of(text: &str) -> Option<[u8; 16]> {
    let text = text.trim();
    let hex: Vec<u8> =
        text.strip_prefix("GPU-").unwrap_or(text).bytes().filter(|byte| *byte != b'-').collect();
    if hex.len() != 32 {
        return None;
    }
    let mut out = [0; 16];
    for (byte, pair) in out.iter_mut().zip(hex.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: u8, model: &str) -> Gpu {
        Gpu {
            model: model.to_string(),
            uuid: text_of(&[number; 16]),
            memory_bytes: 1 << 37,
            free_bytes: Some(10 << 30),
            used_bytes: 5 << 30,
            driver_version: "580.1".to_string(),
        }
    }

    fn said(result: Result<Vec<UuidPair>, Vec<String>>) -> String {
        result.unwrap_err().join("; ")
    }

    #[test]
    fn uuids_are_read_as_written() {
        let text = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10";
        let bytes = bytes_of(text).unwrap();
        assert_eq!(text_of(&bytes), text);
        assert_eq!(bytes_of("0102030405060708090A0B0C0D0E0F10"), Some(bytes));
        for bad in ["", "GPU-", "GPU-0102", "é1020304-0506-0708-090a-0b0c0d0e0f10"] {
            assert_eq!(bytes_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_same_gpus_need_no_pairs_and_others_are_taken_in_order() {
        let two = [gpu(1, "H200"), gpu(2, "H200")];
        assert_eq!(plan(&two, &two, &[]), Ok(vec![]));
        let pairs = plan(&two, &[gpu(3, "H200"), gpu(1, "H200")], &[]).unwrap();
        let moved: Vec<_> = pairs.iter().map(|pair| (pair.old.as_str(), pair.new.as_str())).collect();
        let (one, two, three) = (text_of(&[1; 16]), text_of(&[2; 16]), text_of(&[3; 16]));
        assert_eq!(moved, [(one.as_str(), one.as_str()), (two.as_str(), three.as_str())]);
    }

    #[test]
    fn a_map_is_followed_or_refused_with_its_reason() {
        let (old, new) = ([gpu(1, "H200")], [gpu(2, "H200"), gpu(3, "H200")]);
        let ask = |given: &str| plan(&old, &new, &[given.to_string()]);
        let (one, three) = (&old[0].uuid, &new[1].uuid);
        let pairs = ask(&format!("{one}={three}")).unwrap();
        assert_eq!((&pairs[0].old, &pairs[0].new), (one, three));
        assert!(said(ask(one)).contains("OLD=NEW"));
        assert!(said(ask(&format!("{one}=x"))).contains("no UUID"));
        assert!(said(ask(&format!("{three}={three}"))).contains("the image has no GPU"));
        assert!(said(ask(&format!("{one}={one}"))).contains("this machine has"));
        let twice = [format!("{one}={three}"), format!("{one}={three}")];
        assert!(said(plan(&old, &new, &twice)).contains("twice"));
    }

    #[test]
    fn another_count_model_driver_or_too_little_memory_is_refused() {
        let old = [gpu(1, "H200")];
        assert!(said(plan(&old, &[], &[])).contains("1 GPU and this one has 0 GPUs"));
        assert!(said(plan(&old, &[gpu(1, "H200"), gpu(2, "H200")], &[])).contains("2 GPUs"));
        assert!(said(plan(&old, &[gpu(2, "A100")], &[])).contains("H200"));
        let other = Gpu { driver_version: "570.2".to_string(), ..gpu(1, "H200") };
        assert!(said(plan(&old, &[other], &[])).contains("570.2"));
        let full = Gpu { free_bytes: Some(1 << 30), ..gpu(1, "H200") };
        assert!(said(plan(&old, &[full], &[])).contains("1024 MB are free"));
        let unknown = Gpu { free_bytes: None, ..gpu(1, "H200") };
        assert_eq!(plan(&old, &[unknown], &[]), Ok(vec![]));
    }
}
