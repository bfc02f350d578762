//! Small copies that overtake what others copy: by a kernel, in place of the copy engine.
//!
//! ```text
//!   copy engine:  ═ a window of others' pieces, to its end ═▶ small copy      0.43 ms (64 KB, 16 MB before it)
//!   kernel:       ═ beside them, on the same link ═▶                          0.03 ms
//! ```
//!
//! A kernel needs multiprocessors. It would wait for those of a client whose kernels take all of them, which a copy engine
//! does not: so it is not for clients that have such a neighbour.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rekindle_device::{Code, Device, Function, Launch, ModuleKind, Result, Stream};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSORS: i32 = 16;
/// Threads of a block.
const THREADS: u32 = 256;
/// A kernel that takes all multiprocessors is taken to do so for so long.
const WIDE_FOR: Duration = Duration::from_millis(100);
/// What a thread copies, by the bytes that addresses and length are multiples of.
const KERNELS: [(u64, &str, &str, &str); 3] = [
    (16, "rekindle_copy_16", "v4.u32", "{%a, %b, %c, %d}"),
    (4, "rekindle_copy_4", "u32", "%a"),
    (1, "rekindle_copy_1", "u8", "%a"),
];

/// The kernels, in one context.
pub(super) struct CopyKernels {
    functions: [Function; KERNELS.len()],
}

impl CopyKernels {
    /// The device's context is current. None where they do not load.
    pub(super) fn open(device: &dyn Device) -> Option<CopyKernels> {
        let load = || {
            let text = KERNELS.map(|(bytes, name, kind, words)| text(bytes, name, kind, words)).concat();
            let code = format!(".version 7.0\n.target sm_70\n.address_size 64\n{text}\0").into_bytes();
            let loaded = device.module_load(Code::new(code), ModuleKind::Module, &[]);
            let module = loaded.map_err(|error| error.to_string())?.module;
            let [wide, word, byte] = KERNELS.map(|(_, name, ..)| device.function(module, name));
            let found = || Ok([wide?, word?, byte?]);
            found().map_err(|code: rekindle_cuda::CuResult| code.to_string())
        };
        match load() {
            Ok(functions) => Some(CopyKernels { functions }),
            Err(problem) => {
                log::warn!("small copies wait for the copy engine: {problem}");
                None
            }
        }
    }

    /// Enqueues a copy between memory of the GPU and memory of the host that it knows.
    pub(super) fn copy(
        &self,
        device: &dyn Device,
        (to, from, bytes): (u64, u64, u64),
        stream: Stream,
    ) -> Result<()> {
        let fits = |(width, ..): &(u64, _, _, _)| (to | from | bytes).is_multiple_of(*width);
        let kind = KERNELS.iter().position(fits).expect("all is a multiple of 1");
        let count = (bytes / KERNELS[kind].0) as u32;
        let grid = [count.div_ceil(THREADS), 1, 1];
        let launch = Launch { grid, block: [THREADS, 1, 1], ..Launch::default() };
        let mut parameters = [0; 20];
        parameters[..8].copy_from_slice(&to.to_le_bytes());
        parameters[8..16].copy_from_slice(&from.to_le_bytes());
        parameters[16..].copy_from_slice(&count.to_le_bytes());
        device.launch(self.functions[kind], &launch, stream, &parameters)
    }
}

/// Each thread copies one unit of so many bytes.
fn text(bytes: u64, name: &str, kind: &str, words: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 to, .param .u64 from, .param .u32 count)
.maxntid {THREADS}, 1, 1
{{
.reg .pred %p;
.reg .b32 %n, %i, %block, %a, %b, %c, %d;
.reg .b64 %from, %to, %at;
mov.u32 %i, %tid.x;
mov.u32 %block, %ctaid.x;
mad.lo.u32 %i, %block, {THREADS}, %i;
ld.param.u32 %n, [count];
setp.ge.u32 %p, %i, %n;
@%p bra done;
ld.param.u64 %from, [from];
cvta.to.global.u64 %from, %from;
ld.param.u64 %to, [to];
cvta.to.global.u64 %to, %to;
mul.wide.u32 %at, %i, {bytes};
add.u64 %from, %from, %at;
add.u64 %to, %to, %at;
ld.global.{kind} {words}, [%from];
st.global.{kind} [%to], {words};
done:
ret;
}}
"
    )
}

/// Which multiprocessors a client computes on, and when it last had a kernel for all of them.
pub(super) struct Computes {
    began: Instant,
    /// Microseconds since then, and one; 0: never.
    wide: AtomicU64,
    /// Those of a portion, by its address; 0: all.
    portion: AtomicUsize,
}

impl Computes {
    pub(super) fn new() -> Computes {
        Computes { began: Instant::now(), wide: AtomicU64::new(0), portion: AtomicUsize::new(0) }
    }

    /// It has its streams there from now on.
    pub(super) fn moved_to(&self, portion: usize) {
        self.portion.store(portion, Ordering::Relaxed);
    }

    /// It is about to launch a kernel of so many blocks.
    pub(super) fn launches(&self, device: &dyn Device, [x, y, z]: [u32; 3]) {
        let blocks = u64::from(x) * u64::from(y) * u64::from(z);
        if blocks >= device.info().attribute(MULTIPROCESSORS).unwrap_or(1) as u64 {
            self.launches_widely();
        }
    }

    /// It is about to launch what may take all multiprocessors.
    pub(super) fn launches_widely(&self) {
        self.wide.store(self.began.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    /// Whether this client's kernels may keep those of another one, on the same multiprocessors, waiting.
    pub(super) fn hinders(&self, other: &Computes) -> bool {
        let wide = self.wide.load(Ordering::Relaxed);
        let together = self.portion.load(Ordering::Relaxed) == other.portion.load(Ordering::Relaxed);
        together && wide > 0 && self.began.elapsed() < Duration::from_micros(wide) + WIDE_FOR
    }
}
