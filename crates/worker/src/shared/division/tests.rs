//! Clients of one context whose parts of it change as they begin and end to have work.

use std::time::{Duration, Instant};

use rekindle_device::{Code, Function, Launch, ModuleKind, Stream};
use rekindle_emulated::Config;

use super::*;
use crate::shared::memory_pool::MemoryPool;

const KERNEL: &str =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n\0";
const LIMIT: Duration = Duration::from_secs(60);

fn gpu() -> Arc<dyn Device> {
    let config = Config::parse("memory=64M,threads=1,multiprocessors=132").unwrap();
    let device = rekindle_emulated::platform(&config).unwrap().open(0).unwrap();
    device.bind().unwrap();
    device
}

struct Client {
    device: Arc<ClientDevice>,
    member: DivisionMember,
    function: Function,
    work: Stream,
    other: Stream,
    /// What its work waits for, to go on.
    word: Box<[u32; 1024]>,
}

impl Client {
    fn join(gpu: &Arc<dyn Device>, division: &Arc<Division>, wish: Wish) -> Client {
        let pool = MemoryPool::new(gpu.clone(), Arc::default(), None);
        let device = ClientDevice::new(gpu.clone(), None, Arc::default(), pool, Arc::default()).unwrap();
        let member = division.join(&device, wish).unwrap();
        let code = Code::new(KERNEL.as_bytes().to_vec());
        let Ok(loaded) = device.module_load(code, ModuleKind::Module, &[]) else {
            panic!("it does not load")
        };
        let function = device.function(loaded.module, "nothing").unwrap();
        let [work, other] = [(); 2].map(|()| device.stream_create(1, 0).unwrap());
        let word = Box::new([0; 1024]);
        device.host_register(word.as_ptr() as u64, 4096).unwrap();
        Client { device, member, function, work, other, word }
    }

    /// Has work from now on.
    fn begin(&self) {
        self.device.write_value(self.other, self.word.as_ptr() as u64, 0, 4, 0).unwrap();
        self.device.stream_synchronize(self.other).unwrap();
        self.device.wait_value(self.work, self.word.as_ptr() as u64, 1, 4, 0).unwrap();
        let launch = Launch { grid: [1; 3], block: [1; 3], ..Launch::default() };
        self.device.launch(self.function, &launch, self.work, &[]).unwrap();
    }

    fn end(&self) {
        self.device.write_value(self.other, self.word.as_ptr() as u64, 1, 4, 0).unwrap();
        self.device.stream_synchronize(self.work).unwrap();
    }

    fn comes_to(&self, multiprocessors: u32) {
        let until = Instant::now() + LIMIT;
        while self.member.multiprocessors() != multiprocessors {
            assert!(Instant::now() < until, "it has {}", self.member.multiprocessors());
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn by_weight(weight: u32) -> Wish {
    Wish { weight: Some(weight), ..Wish::default() }
}

#[test]
fn who_rests_leaves_its_multiprocessors_to_who_works() {
    let gpu = gpu();
    let division = Division::new(gpu.clone());
    let heavy = Client::join(&gpu, &division, by_weight(30));
    let light = Client::join(&gpu, &division, by_weight(10));
    for client in [&heavy, &light] {
        client.comes_to(0);
    }
    heavy.begin();
    assert_eq!(heavy.member.multiprocessors(), 132);
    for _ in 0..20 {
        light.begin();
        // 16 units of 8, and 4 that make no unit.
        assert_eq!([&heavy, &light].map(|client| client.member.multiprocessors()), [96, 36]);
        light.end();
        light.comes_to(0);
        assert_eq!(heavy.member.multiprocessors(), 132);
    }
    assert_eq!(division.portions(), 2, "those that came again were there");
    heavy.member.set(Wish { most: Some(50), ..by_weight(30) }).unwrap();
    assert_eq!(heavy.member.multiprocessors(), 64);
    heavy.end();
    heavy.comes_to(0);
    for client in [heavy, light] {
        assert!(client.device.close(LIMIT));
    }
}

#[test]
fn a_client_without_a_word_is_divided_by_weight_too_while_others_are() {
    let gpu = gpu();
    let division = Division::new(gpu.clone());
    let plain = Client::join(&gpu, &division, Wish::default());
    let fixed = Client::join(&gpu, &division, Wish { share: Some(50), ..Wish::default() });
    assert_eq!([&plain, &fixed].map(|client| client.member.multiprocessors()), [68, 64]);
    let weighted = Client::join(&gpu, &division, by_weight(30));
    plain.comes_to(0);
    weighted.comes_to(0);
    assert_eq!(fixed.member.multiprocessors(), 64, "its share is fixed, also while it rests");
    plain.begin();
    assert_eq!(plain.member.multiprocessors(), 68);
    weighted.begin();
    let has = [&plain, &fixed, &weighted].map(|client| client.member.multiprocessors());
    assert_eq!(has.iter().sum::<u32>(), 132);
    assert_eq!(has[1], 64);
    assert!(has[0] < has[2], "{has:?}");
    weighted.member.set(Wish::default()).unwrap();
    // Nobody has a weight: it has what is left, together with the other one.
    assert_eq!([&plain, &weighted].map(|client| client.member.multiprocessors()), [68, 68]);
    plain.end();
    weighted.end();
    for client in [plain, fixed, weighted] {
        assert!(client.device.close(LIMIT));
    }
}
