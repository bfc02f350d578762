//! Images of programs with several processes that use a GPU: each half is read, and written, as if it were alone.

mod support;

use rekindle_store::{Error, Image, PartKind, Staging};
use serde_json::Value;
use support::{contents, noise, store};

#[test]
fn each_half_of_several_is_written_and_read_as_if_it_were_the_only_one() {
    let (_root, store) = store();
    let draft = store.begin("two").unwrap();
    let contents_of = |process: u32| noise(process as u8, 3 << 20);
    for process in [7, 12] {
        let worker = Staging::open(&draft.half_path(process)).unwrap();
        let put = |kind, name, data: &[u8]| worker.put(kind, name, Value::Null, data).unwrap();
        let state = put(PartKind::WorkerState, "worker-state", &process.to_le_bytes());
        let writer = worker.part(PartKind::GpuBuffer, "b", Value::Null, 3 << 20).unwrap();
        writer.write_at(0, &contents_of(process)).unwrap();
        draft.adopt(vec![state, writer.finish().unwrap()]).unwrap();
    }
    draft.put(PartKind::CpuFile, "core", Value::Null, b"cpu").unwrap();
    draft.manifest().halves = vec![7, 12];
    let image = draft.commit().unwrap();
    assert_eq!((image.manifest().parts.len(), image.halves().unwrap().len()), (5, 2));
    assert!(matches!(image.half(8), Err(Error::NoHalf { process: 8, .. })));
    for process in [7, 12] {
        let half = Image::open(image.half(process).unwrap().path()).unwrap();
        assert_eq!((half.manifest().parts.len(), half.manifest().sizes.gpu), (2, 3 << 20));
        assert_eq!(contents(&half, half.part(PartKind::GpuBuffer, "b").unwrap()), contents_of(process));
        let state = half.part(PartKind::WorkerState, "worker-state").unwrap();
        assert_eq!(contents(&half, state), process.to_le_bytes());
        // What is learned of one is its own.
        half.set_unwritten(&[process.to_string()]).unwrap();
    }
    let learned = |process| image.half(process).unwrap().unwritten().unwrap().unwrap();
    assert_eq!((learned(7), learned(12)), (vec!["7".to_string()], vec!["12".to_string()]));
    let verified = || store.verify("two", &|_, _| {}).unwrap();
    assert!(verified().is_sound(), "{:?}", verified().problems);
    let advice = image.half(7).unwrap().path().join("unwritten.json");
    std::fs::write(&advice, "nonsense").unwrap();
    std::fs::write(image.path().join("load-order.json"), "{\"parts\":[]}").unwrap();
    assert_eq!(
        (verified().problems.len(), image.damaged_advice().len()),
        (2, 1),
        "{:?}",
        verified().problems
    );
    drop(image);
    let held = store.image("two").unwrap().half(12).unwrap();
    assert!(matches!(store.remove("two"), Err(Error::ImageInUse { .. })));
    drop(held);
    store.remove("two").unwrap();
    assert!(store.collect().unwrap().chunks > 0);
}

#[test]
fn several_halves_stay_what_they_are_under_another_name_and_as_one_file() {
    let (_root, store) = store();
    let draft = store.begin("two").unwrap();
    for process in [7u32, 12] {
        let worker = Staging::open(&draft.half_path(process)).unwrap();
        draft
            .adopt(vec![worker.put(PartKind::Module, "code", Value::Null, &noise(1, 9000)).unwrap()])
            .unwrap();
    }
    draft.manifest().halves = vec![7, 12];
    drop(draft.commit().unwrap());
    let mut file = Vec::new();
    store.export("two", &mut file, &|_, _| {}).unwrap();
    let imported = store.import(&file[..], Some("imported"), &|_| None, &|_, _| {}).unwrap();
    for image in [imported, store.tag("two", "tagged").unwrap()] {
        for half in image.halves().unwrap() {
            assert_eq!(contents(&half, half.part(PartKind::Module, "code").unwrap()), noise(1, 9000));
        }
        assert_eq!(image.manifest().halves, [7, 12]);
    }
}
