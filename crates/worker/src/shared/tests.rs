//! Random work of several clients on many streams of a GPU with a slow link has the results that CUDA's rules give.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rekindle_cuda::CUDA_ERROR_INVALID_HANDLE;
use rekindle_device::{
    Access, Code, Copy3D, DEVICE_RANGE, Device, Event, Function, Launch, MemorySet, ModuleKind, Stream,
};
use rekindle_emulated::Config;

use super::client_device::ClientDevice;
use super::division::{Division, DivisionMember, Wish};
use super::link::Link;
use super::memory_pool::MemoryPool;
use super::settings::Settings;

/// Device memory of a stream, and memory of the host that is copied to from there.
const REGION: usize = 256 << 10;
const STREAMS: usize = 4;
const EVENTS: usize = 2;
/// So many bytes a kernel adds to at most.
const ADDED: usize = 200;
/// Addresses of all clients of this process, one after the other.
static NEXT: AtomicU64 = AtomicU64::new(DEVICE_RANGE.start);

/// So much that most copies have to wait.
const SETTINGS: Settings = Settings { piece: 64 << 10, window: 128 << 10 };

#[derive(Clone, Debug)]
enum Action {
    Up {
        stream: usize,
        at: usize,
        bytes: usize,
        seed: usize,
    },
    Rows {
        stream: usize,
        rows: usize,
        width: usize,
        seed: usize,
    },
    Down {
        stream: usize,
        at: usize,
        bytes: usize,
    },
    Fill {
        stream: usize,
        at: usize,
        bytes: usize,
        value: u8,
    },
    /// A stream takes over what another one has, and that one goes on behind it.
    Take {
        stream: usize,
        from: usize,
        events: [usize; 2],
        destroy: bool,
    },
    /// Another stream in its place.
    Renew {
        stream: usize,
        event: usize,
    },
    /// It has another share of the multiprocessors from now on, if there is room for it.
    /// By a kernel.
    Add {
        stream: usize,
        at: usize,
        bytes: usize,
        value: u8,
    },
    Share {
        share: Option<u32>,
        weight: Option<u32>,
    },
    Check {
        stream: usize,
    },
    CheckAll,
}

fn action() -> impl Strategy<Value = Action> {
    let (stream, at, event) = (0..STREAMS, 0..REGION - 1, 0..EVENTS);
    let bytes = prop_oneof![1usize..4096, 1usize..REGION];
    prop_oneof![
        6 => (stream.clone(), at.clone(), bytes.clone(), 0usize..1000)
            .prop_map(|(stream, at, bytes, seed)| Action::Up { stream, at, bytes: bytes.min(REGION - at), seed }),
        2 => (stream.clone(), 1usize..60, 1usize..2000, 0usize..1000)
            .prop_map(|(stream, rows, width, seed)| Action::Rows { stream, rows, width, seed }),
        4 => (stream.clone(), at.clone(), bytes.clone())
            .prop_map(|(stream, at, bytes)| Action::Down { stream, at, bytes: bytes.min(REGION - at) }),
        3 => (stream.clone(), at, bytes, any::<u8>())
            .prop_map(|(stream, at, bytes, value)| Action::Fill { stream, at, bytes: bytes.min(REGION - at), value }),
        3 => (stream.clone(), 0..REGION - ADDED, 1..ADDED, any::<u8>())
            .prop_map(|(stream, at, bytes, value)| Action::Add { stream, at, bytes, value }),
        4 => (stream.clone(), stream.clone(), [event.clone(), event.clone()], any::<bool>())
            .prop_map(|(stream, from, events, destroy)| Action::Take { stream, from, events, destroy }),
        1 => (stream.clone(), event).prop_map(|(stream, event)| Action::Renew { stream, event }),
        1 => (prop::option::of(1u32..50), prop::option::of(1u32..50))
            .prop_map(|(share, weight)| Action::Share { share, weight }),
        2 => stream.prop_map(|stream| Action::Check { stream }),
        1 => Just(Action::CheckAll),
    ]
}

/// A thread adds to each byte.
const ADD: &str = ".version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 at, .param .u32 value)
{
.reg .b32 %i, %a, %value;
.reg .b64 %at, %offset;
ld.param.u64 %at, [at];
ld.param.u32 %value, [value];
mov.u32 %i, %ctaid.x;
cvt.u64.u32 %offset, %i;
add.u64 %at, %at, %offset;
ld.global.u8 %a, [%at];
add.u32 %a, %a, %value;
st.global.u8 [%at], %a;
ret;
}
\0";

/// A client, and what its memory is to be when all that it asked for is done.
struct Model {
    device: Arc<ClientDevice>,
    member: Option<DivisionMember>,
    add: Function,
    streams: Vec<Stream>,
    events: Vec<Event>,
    base: u64,
    /// What is copied to the GPU, which does not change.
    source: Vec<u8>,
    host: Vec<u8>,
    expected: Vec<Vec<u8>>,
    expected_host: Vec<u8>,
    has_waited: bool,
}

impl Model {
    fn new(gpu: Arc<dyn Device>, link: Arc<Link>, number: usize) -> Model {
        let device = ClientDevice::new(
            gpu.clone(),
            Some(link),
            Arc::default(),
            MemoryPool::new(gpu, Arc::default(), None),
            Arc::default(),
        )
        .unwrap();
        device.bind().unwrap();
        let bytes = ((STREAMS * REGION) as u64).next_multiple_of(device.granularity());
        let base = NEXT.fetch_add(bytes, Ordering::Relaxed);
        device.reserve(base, bytes).unwrap();
        let memory = device.memory_create(bytes).unwrap();
        device.map(base, bytes, memory).unwrap();
        device.protect(base, bytes, Access::ReadWrite).unwrap();
        let set = MemorySet { address: base, pitch: 0, value: 0, element: 1, width: bytes, height: 1 };
        device.set(&set, Stream::LEGACY).unwrap();
        device.synchronize().unwrap();
        let source: Vec<u8> = (0..2 * REGION).map(|n| (n * 31 + (n >> 8) * 7 + number) as u8).collect();
        let host = vec![0; STREAMS * REGION];
        for memory in [&source, &host] {
            device.host_register(memory.as_ptr() as u64, memory.len() as u64).unwrap();
        }
        let flags = [0, 0, 1];
        let streams = [Stream::LEGACY]
            .into_iter()
            .chain(flags.map(|flags| device.stream_create(flags, 0).unwrap()))
            .collect();
        let events = (0..EVENTS).map(|_| device.event_create(2).unwrap()).collect();
        let expected = vec![vec![0; REGION]; STREAMS];
        let expected_host = vec![0; STREAMS * REGION];
        let code = Code::new(ADD.as_bytes().to_vec());
        let Ok(loaded) = device.module_load(code, ModuleKind::Module, &[]) else { panic!("no kernel") };
        let add = device.function(loaded.module, "add").unwrap();
        let member = None;
        Model {
            device,
            member,
            add,
            streams,
            events,
            base,
            source,
            host,
            expected,
            expected_host,
            has_waited: false,
        }
    }

    fn region(&self, stream: usize) -> u64 {
        self.base + (stream * REGION) as u64
    }

    fn act(&mut self, action: &Action) {
        let device = self.device.clone();
        match *action {
            Action::Up { stream, at, bytes, seed } => {
                let from = &self.source[seed..seed + bytes];
                let to = self.region(stream) + at as u64;
                device.copy(to, from.as_ptr() as u64, bytes as u64, self.streams[stream]).unwrap();
                self.expected[stream][at..at + bytes].copy_from_slice(from);
            }
            Action::Rows { stream, rows, width, seed } => {
                let copy = Copy3D {
                    to: self.region(stream),
                    to_pitch: 3000,
                    to_slice: 3000 * 60,
                    from: self.source[seed..].as_ptr() as u64,
                    from_pitch: 2500,
                    from_slice: 2500 * 60,
                    width: width as u64,
                    height: rows as u64,
                    depth: 1,
                };
                device.copy_3d(&copy, self.streams[stream]).unwrap();
                for row in 0..rows {
                    let from = &self.source[seed + row * 2500..][..width];
                    self.expected[stream][row * 3000..][..width].copy_from_slice(from);
                }
            }
            Action::Down { stream, at, bytes } => {
                let place = stream * REGION + at;
                let to = self.host[place..].as_ptr() as u64;
                device.copy(to, self.region(stream) + at as u64, bytes as u64, self.streams[stream]).unwrap();
                let (from, to) = (&self.expected[stream], &mut self.expected_host);
                to[place..place + bytes].copy_from_slice(&from[at..at + bytes]);
            }
            Action::Fill { stream, at, bytes, value } => {
                let address = self.region(stream) + at as u64;
                let (value, width) = (value.into(), bytes as u64);
                let set = MemorySet { address, pitch: 0, value, element: 1, width, height: 1 };
                device.set(&set, self.streams[stream]).unwrap();
                self.expected[stream][at..at + bytes].fill(value as u8);
            }
            Action::Add { stream, at, bytes, value } => {
                let launch = Launch { grid: [bytes as u32, 1, 1], block: [1; 3], ..Launch::default() };
                let mut parameters = [0; 12];
                parameters[..8].copy_from_slice(&(self.region(stream) + at as u64).to_le_bytes());
                parameters[8..].copy_from_slice(&u32::from(value).to_le_bytes());
                device.launch(self.add, &launch, self.streams[stream], &parameters).unwrap();
                for byte in &mut self.expected[stream][at..at + bytes] {
                    *byte = byte.wrapping_add(value);
                }
            }
            Action::Take { stream, from, events: [before, behind], destroy } => {
                let (to, source) = (self.streams[stream], self.streams[from]);
                device.event_record(self.events[before], source, 0).unwrap();
                device.stream_wait_event(to, self.events[before], 0).unwrap();
                device.copy(self.region(stream), self.region(from), REGION as u64, to).unwrap();
                device.event_record(self.events[behind], to, 0).unwrap();
                device.stream_wait_event(source, self.events[behind], 0).unwrap();
                if destroy {
                    device.event_destroy(self.events[behind]).unwrap();
                    self.events[behind] = device.event_create(2).unwrap();
                }
                self.expected[stream] = self.expected[from].clone();
            }
            Action::Renew { stream: 0, .. } => {}
            Action::Renew { stream, event } => {
                device.event_record(self.events[event], self.streams[stream], 0).unwrap();
                device.stream_destroy(self.streams[stream]).unwrap();
                self.streams[stream] = device.stream_create((stream % 2) as u32, 0).unwrap();
                device.stream_wait_event(self.streams[stream], self.events[event], 0).unwrap();
            }
            Action::Share { share, weight } => {
                // One that would leave others nothing is refused.
                let _ = self.member.as_ref().map(|member| member.set(Wish { share, weight, most: None }));
            }
            Action::Check { stream } => {
                let handle = self.streams[stream];
                self.has_waited |= self.device.is_behind(handle);
                if stream % 2 == 0 {
                    device.stream_synchronize(handle).unwrap();
                } else {
                    device.event_record(self.events[0], handle, 0).unwrap();
                    match stream {
                        1 => device.event_synchronize(self.events[0]).unwrap(),
                        _ => while !device.event_query(self.events[0]).unwrap() {},
                    }
                }
                assert!(device.stream_query(handle).unwrap());
                self.check(stream);
            }
            Action::CheckAll => {
                device.synchronize().unwrap();
                (0..STREAMS).for_each(|stream| self.check(stream));
            }
        }
    }

    /// What the stream was given is done.
    fn check(&self, stream: usize) {
        // SAFETY: the device's memory is mapped at its addresses, and none of its work on this region is under way.
        let found = unsafe { std::slice::from_raw_parts(self.region(stream) as *const u8, REGION) };
        assert!(found == self.expected[stream], "device memory of stream {stream}");
        let place = stream * REGION..(stream + 1) * REGION;
        assert!(self.host[place.clone()] == self.expected_host[place], "host memory of stream {stream}");
    }
}

fn gpu() -> Arc<dyn Device> {
    let config = Config::parse("memory=256M,bandwidth=300M,threads=1").unwrap();
    let device = rekindle_emulated::platform(&config).unwrap().open(0).unwrap();
    device.bind().unwrap();
    device
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_work_of_several_clients_has_the_results_of_its_order(
        work in prop::collection::vec(prop::collection::vec(action(), 1..60), 3),
        ends in 0usize..40,
    ) {
        let gpu = gpu();
        let link = Link::new(gpu.clone(), Some(SETTINGS), None).unwrap().unwrap();
        let division = Division::new(gpu.clone());
        std::thread::scope(|scope| {
            for (number, actions) in work.iter().enumerate() {
                let (gpu, link, division) = (gpu.clone(), link.clone(), division.clone());
                scope.spawn(move || {
                    gpu.bind().unwrap();
                    let mut model = Model::new(gpu, link, number);
                    model.member = Some(division.join(&model.device, Wish::default()).unwrap());
                    // One ends in the middle, whatever it has under way.
                    let actions = if number == 2 { &actions[..ends.min(actions.len())] } else { &actions[..] };
                    actions.iter().for_each(|action| model.act(action));
                    if number != 2 {
                        model.act(&Action::CheckAll);
                    }
                    assert!(model.device.close(Duration::from_secs(20)));
                });
            }
        });
    }
}

#[test]
fn a_copy_behind_work_that_does_not_end_holds_up_nobody() {
    let gpu = gpu();
    let link = Link::new(gpu.clone(), Some(SETTINGS), None).unwrap().unwrap();
    let mut stuck = Model::new(gpu.clone(), link.clone(), 0);
    let mut other = Model::new(gpu.clone(), link, 1);
    // The second half of the host's memory is a word that the first stream waits for.
    let word = stuck.host[REGION..].as_ptr() as u64;
    stuck.device.wait_value(stuck.streams[1], word, 1, 4, 0).unwrap();
    stuck.act(&Action::Up { stream: 1, at: 0, bytes: REGION, seed: 3 });
    stuck.act(&Action::Take { stream: 2, from: 1, events: [0, 1], destroy: true });
    assert!(stuck.device.is_behind(stuck.streams[1]) && stuck.device.is_behind(stuck.streams[2]));
    assert!(!stuck.device.stream_query(stuck.streams[2]).unwrap());
    for seed in 0..4 {
        other.act(&Action::Up { stream: 1, at: 0, bytes: REGION, seed });
        other.act(&Action::Check { stream: 1 });
    }
    assert!(!stuck.device.stream_query(stuck.streams[1]).unwrap());
    stuck.device.write_value(stuck.streams[3], word, 1, 4, 0).unwrap();
    stuck.device.synchronize().unwrap();
    stuck.host[REGION] = 0;
    (1..3).for_each(|stream| stuck.check(stream));
    assert!(stuck.device.close(Duration::from_secs(20)) && other.device.close(Duration::from_secs(20)));
}

#[test]
fn an_error_of_what_was_issued_later_is_kept_for_whoever_tells_it_and_looks_take_nothing_of_it() {
    let gpu = gpu();
    let link = Link::new(gpu.clone(), Some(SETTINGS), None).unwrap().unwrap();
    let mut model = Model::new(gpu, link, 0);
    let (device, stream) = (model.device.clone(), model.streams[3]);
    let fail = || {
        let launch = Launch { grid: [1; 3], block: [1; 3], ..Launch::default() };
        device.launch(Function(u64::MAX), &launch, stream, &[]).unwrap();
    };
    // The copy is not done, and what comes behind it not issued, before the word is there.
    let word = model.host[REGION..].as_ptr() as u64;
    device.wait_value(stream, word, 1, 4, 0).unwrap();
    model.act(&Action::Up { stream: 3, at: 0, bytes: REGION, seed: 1 });
    assert_eq!(device.take_late(), None);
    fail();
    fail();
    let event = device.event_create(2).unwrap();
    device.event_record(event, stream, 0).unwrap();
    device.write_value(model.streams[1], word, 1, 4, 0).unwrap();
    while !device.event_query(event).unwrap() {}
    assert!(device.stream_query(stream).unwrap());
    model.host[REGION] = 0;
    model.act(&Action::Fill { stream: 3, at: 9, bytes: 20, value: 7 });
    model.act(&Action::CheckAll);
    assert_eq!(device.take_late(), Some(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(device.take_late(), None);
    assert!(device.close(Duration::from_secs(20)));
}

#[test]
fn copies_larger_than_the_window_wait_and_come() {
    let gpu = gpu();
    let link = Link::new(gpu.clone(), Some(SETTINGS), None).unwrap().unwrap();
    let mut model = Model::new(gpu, link, 0);
    for seed in 0..8 {
        model.act(&Action::Up { stream: 3, at: 0, bytes: REGION, seed });
    }
    model.act(&Action::Check { stream: 3 });
    assert!(model.has_waited);
    assert!(model.device.close(Duration::from_secs(20)));
}

#[test]
fn a_small_copy_overtakes_what_another_client_copies_unless_that_computes_everywhere() {
    let config = Config::parse("memory=256M,bandwidth=2M,threads=1").unwrap();
    let gpu = rekindle_emulated::platform(&config).unwrap().open(0).unwrap();
    gpu.bind().unwrap();
    let link = Link::new(gpu.clone(), Some(SETTINGS), None).unwrap().unwrap();
    let mut large = Model::new(gpu.clone(), link.clone(), 0);
    let mut small = Model::new(gpu, link, 1);
    // A window takes 65 ms on this link. It is timed from before the large copy: else a thread that is kept from running would look
    // as if it had overtaken.
    let window = SETTINGS.window as usize;
    let mut least = |large: &mut Model, computes: bool| {
        let one = |seed: usize| {
            let began = Instant::now();
            large.act(&Action::Up { stream: 1, at: 0, bytes: window, seed });
            if computes {
                large.device.computes().launches_widely();
            }
            small.act(&Action::Up { stream: 1, at: 16 * seed, bytes: 4096 + seed, seed });
            small.act(&Action::Check { stream: 1 });
            let took = began.elapsed();
            large.act(&Action::Check { stream: 1 });
            took
        };
        (0..4).map(one).min().unwrap()
    };
    let overtaking = least(&mut large, false);
    assert!(overtaking < Duration::from_millis(40), "{overtaking:?}");
    let behind = least(&mut large, true);
    assert!(behind > Duration::from_millis(60), "{behind:?}");
    assert!(large.device.close(Duration::from_secs(20)) && small.device.close(Duration::from_secs(20)));
}

#[test]
fn a_client_that_has_ended_keeps_none_of_its_memory() {
    let gpu = gpu();
    let link = Link::new(gpu.clone(), Some(SETTINGS), None).unwrap().unwrap();
    let model = Model::new(gpu, link, 0);
    let memory = model.device.memory_create(model.device.granularity()).unwrap();
    // As a client at rest has it, to go on in another context.
    assert!(model.device.keep(Instant::now() + Duration::from_secs(20)).unwrap());
    let own = File::from(model.device.memory_export(memory).unwrap());
    let file = |file: &File| file.metadata().map(|found| (found.dev(), found.ino())).ok();
    let holders = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter_map(|entry| File::open(entry.path()).ok()).filter(|one| file(one) == file(&own)).count()
    };
    assert!(holders() > 1);
    assert!(model.device.close(Duration::from_secs(20)));
    assert_eq!(holders(), 1, "somebody beside this test has a descriptor of it");
}
