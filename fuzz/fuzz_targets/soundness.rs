//! Whatever CRIU's images hold, their check ends with sentences or without.
//!
//! The input is cut into images: a byte that says which, two for the length, and the contents, to which the right magic
//! numbers are added, since they would stop nearly every input.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use rekindle_sandbox::soundness::{Source, faults_of};

const COMMON: u32 = 0x5456_4319;
const IMAGES: [(&str, u32); 14] = [
    ("inventory.img", 0x5831_3116),
    ("pstree.img", 0x5027_3030),
    ("files.img", 0x5630_3138),
    ("remap-fpath.img", 0x5913_3954),
    ("ghost-file-1.img", 0x5258_3605),
    ("core-1.img", 0x5505_3847),
    ("core-2.img", 0x5505_3847),
    ("ids-1.img", 0x5443_2030),
    ("fdinfo-1.img", 0x5621_3732),
    ("fs-1.img", 0x5140_3912),
    ("mm-1.img", 0x5749_2820),
    ("pagemap-1.img", 0x5608_4025),
    ("pagemap-shmem-1.img", 0x5608_4025),
    ("pipes-data.img", 0x5645_3709),
];

struct Images(BTreeMap<&'static str, Vec<u8>>);

impl Source for Images {
    fn names(&self) -> Vec<String> {
        self.0.keys().map(|name| name.to_string()).collect()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        self.0.get(name).cloned().ok_or_else(|| "it is missing".to_string())
    }

    fn length(&self, name: &str) -> Option<u64> {
        self.0.get(name).map(|image| image.len() as u64)
    }

    fn page_file(&self, name: &str) -> Option<u64> {
        Some(name.len() as u64 * 4096)
    }
}

fuzz_target!(|data: &[u8]| {
    let mut images = BTreeMap::new();
    let mut rest = data;
    while let Some(([which, low, high], after)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (contents, after) = after.split_at(length);
        let (name, magic) = IMAGES[usize::from(*which) % IMAGES.len()];
        let mut image = Vec::new();
        if name != "inventory.img" {
            image.extend(COMMON.to_le_bytes());
        }
        image.extend(magic.to_le_bytes());
        image.extend(contents);
        images.insert(name, image);
        rest = after;
    }
    assert!(faults_of(&Images(images)).len() <= 20);
});
