use super::*;
use moves::Move;
use rekindle_protocol::memory_file;
use room::RoomRequest;

const MB: u64 = 1 << 20;

fn exchange() -> Arc<Exchange> {
    Exchange::new(ExchangeLimits { gpu: 4 * MB, host: 4 * MB }, Node::default())
}

fn gpu() -> Gpu {
    gpu_of("g", &[])
}

fn gpu_of(uuid: &str, reaches: &[&str]) -> Gpu {
    let reaches = reaches.iter().map(ToString::to_string).collect();
    Gpu { uuid: uuid.into(), choice: "emulated".into(), reaches }
}

fn put(expiry_ms: u64, uses: u32) -> Put {
    Put { owner: "app:a".into(), gpu: gpu(), bytes: MB, room: 2 * MB, expiry_ms, uses, before: Vec::new() }
}

fn kept(exchange: &Arc<Exchange>, put: &Put) -> String {
    let Ok(RoomRequest::Room(room)) = exchange.reserve(&put.gpu.uuid, put.room) else {
        panic!("there is room")
    };
    exchange.keep(put, (memory_file::filled(MB).unwrap().into(), None), room).unwrap()
}

fn moved(exchange: &Arc<Exchange>) -> Option<Move> {
    match exchange.reserve("g", 2 * MB) {
        Ok(RoomRequest::MoveOut(out)) => Some(out),
        _ => None,
    }
}

fn counts(exchange: &Exchange) -> (u64, u64, u64, u64) {
    let count = exchange.counts().pop().unwrap_or_default();
    (count.arrays, count.held, count.gpu_bytes, count.host_bytes)
}

#[test]
fn the_array_that_was_used_longest_ago_is_moved_out_and_comes_back() {
    let exchange = exchange();
    let (first, second) = (kept(&exchange, &put(60_000, 0)), kept(&exchange, &put(60_000, 0)));
    drop(exchange.get("app:a", &first).unwrap());
    let out = moved(&exchange).unwrap();
    assert_eq!(out.id, second);
    assert!(out.done(None));
    assert_eq!(counts(&exchange), (2, 0, 2 * MB, MB));
    let Ok(Found::Host(back)) = exchange.get("app:a", &second) else { panic!("it is on the host") };
    let Ok(RoomRequest::Room(room)) = exchange.reserve("g", 2 * MB) else { panic!("there is room") };
    let holder = back.kept(&gpu(), memory_file::filled(MB).unwrap().into(), room);
    assert_eq!(counts(&exchange), (2, 1, 4 * MB, 0));
    let Ok(Found::Gpu { name, .. }) = exchange.get("app:a", &second) else { panic!("it is on the GPU") };
    assert_eq!(name, None, "that is other memory than the giver's");
    drop(holder);
    assert_eq!(counts(&exchange), (2, 0, 4 * MB, 0));
}

#[test]
fn an_array_goes_to_another_gpu_that_has_room_and_reaches_it_before_the_host() {
    let exchange = exchange();
    let here = gpu_of("g", &["near", "full", "one-way"]);
    let near = gpu_of("near", &["g"]);
    for gpu in [&here, &near, &gpu_of("full", &["g"]), &gpu_of("one-way", &[]), &gpu_of("far", &["g"])] {
        exchange.note_gpu(gpu);
    }
    let put_on = |gpu: &Gpu| Put { gpu: gpu.clone(), ..put(60_000, 0) };
    let held: Vec<_> = (0..2).map(|_| kept(&exchange, &put_on(&gpu_of("full", &["g"])))).collect();
    let ids: Vec<_> = (0..2).map(|_| kept(&exchange, &put_on(&here))).collect();
    let out = moved(&exchange).unwrap();
    assert_eq!((out.id.as_str(), out.gpu().as_deref()), (ids[0].as_str(), Some("near")));
    // One that is given up leaves its room, and is not tried again soon.
    drop(out);
    let out = moved(&exchange).unwrap();
    assert_eq!(out.gpu().as_deref(), Some("near"));
    assert!(!out.done(None), "no memory came");
    let out = moved(&exchange).unwrap();
    assert!(out.done(Some(memory_file::filled(MB).unwrap().into())));
    let Ok(Found::Gpu { gpu, name, .. }) = exchange.get("app:a", &ids[0]) else { panic!("it is on a GPU") };
    assert_eq!((gpu, name), (near, None));
    exchange.avoid("g", "near".into());
    kept(&exchange, &put_on(&here));
    assert_eq!(moved(&exchange).unwrap().gpu(), None, "the host is next");
    assert_eq!(counts(&exchange), (5, 0, 10 * MB, 0));
    assert_eq!(exchange.known().moves.to_gpus, 1);
    drop(held);
}

#[test]
fn a_move_that_is_given_up_changes_nothing_and_what_is_held_stays() {
    let exchange = exchange();
    let ids = [kept(&exchange, &put(60_000, 0)), kept(&exchange, &put(60_000, 0))];
    drop(moved(&exchange).unwrap());
    assert_eq!(counts(&exchange), (2, 0, 4 * MB, 0));
    let held: Vec<_> = ids.iter().map(|id| exchange.get("app:a", id).unwrap()).collect();
    let Err(problem) = exchange.reserve("g", 2 * MB) else { panic!("both are held") };
    assert_eq!(problem.kind, ProblemKind::Memory);
    assert!(problem.sentence.contains("--exchange-gpu"), "{}", problem.sentence);
    drop(held);
    assert!(moved(&exchange).is_some());
}

#[test]
fn what_is_dropped_goes_when_nobody_holds_it() {
    let exchange = exchange();
    let id = kept(&exchange, &put(60_000, 2));
    let holder = exchange.get("app:a", &id).unwrap();
    assert_eq!(exchange.get("app:b", &id).err().unwrap().kind, ProblemKind::Access);
    exchange.drop_item("app:a", &id, true).unwrap();
    exchange.drop_item("app:a", &id, true).unwrap();
    assert_eq!(exchange.get("app:a", &id).err().unwrap().kind, ProblemKind::NotFound);
    assert_eq!(counts(&exchange), (1, 1, 2 * MB, 0));
    drop(holder);
    assert_eq!(counts(&exchange), (0, 0, 0, 0));
}

#[test]
fn the_memory_of_an_array_is_for_the_next_one_once_nobody_has_it() {
    let exchange = exchange();
    let id = kept(&exchange, &put(60_000, 0));
    let before = ["unknown".to_string(), id.clone()];
    assert_eq!(exchange.over(&before), None);
    let Ok(Found::Gpu { name, holder, .. }) = exchange.get("app:a", &id) else { panic!("it is on the GPU") };
    assert_eq!(name.as_ref(), Some(&id));
    exchange.drop_item("app:a", &id, false).unwrap();
    assert_eq!(exchange.over(&before), None, "it is held");
    drop(holder);
    assert_eq!(exchange.over(&before).as_ref(), Some(&id));
    let Ok(RoomRequest::Room(room)) = exchange.reserve("g", 2 * MB) else { panic!("there is room") };
    let memory = memory_file::filled(MB).unwrap().into();
    let next = exchange.keep(&put(60_000, 0), (memory, Some(id.clone())), room).unwrap();
    let Ok(Found::Gpu { name, .. }) = exchange.get("app:a", &next) else { panic!("it is on the GPU") };
    assert_eq!(name, Some(id));
}

#[test]
fn what_nobody_uses_expires() {
    let exchange = exchange();
    let id = kept(&exchange, &put(0, 0));
    assert_eq!(exchange.known().items[&id].left(Instant::now()), Some(Duration::ZERO));
    let holder = exchange.get("app:a", &id).unwrap();
    assert_eq!(exchange.known().items[&id].left(Instant::now()), None);
    drop(holder);
}
