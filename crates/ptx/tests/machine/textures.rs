//! Textures and surfaces by their numbers: forms of instructions that compilers seldom write, queries, wrong numbers.

use std::sync::Arc;

use crate::common::{Memory, Run, TestHost, kernel};
use rekindle_ptx::{AddressMode, Fault, Image, TexelFormat, Texture, View, ViewKind};

const TEXTURE: u64 = 3;
const SURFACE: u64 = 4;
const NOTHING: u64 = 5;
const WIDTH: usize = 8;
const HEIGHT: usize = 4;

struct Stage {
    memory: Memory,
    host: TestHost,
}

impl Stage {
    /// A texture of two levels and a surface, both over numbers that count up; results go behind them.
    fn new() -> Stage {
        let memory = Memory::new(8192);
        let data: Vec<f32> = (0..2 * WIDTH * HEIGHT).map(|value| value as f32).collect();
        memory.put(4096, &data);
        let image = |size: [u32; 3]| Image {
            address: memory.start + 4096,
            format: TexelFormat::F32,
            channels: 1,
            size,
            pitch: 4 * u64::from(size[0]),
            slice: 4 * u64::from(size[0] * size[1]),
        };
        let (width, height) = (WIDTH as u32, HEIGHT as u32);
        let texture = Texture {
            levels: vec![image([width, height, 1]), image([width / 2, height / 2, 1])],
            address: [AddressMode::Clamp, AddressMode::Border, AddressMode::Clamp],
            linear: false,
            normalized: false,
            integer: false,
            srgb: false,
            linear_levels: false,
            level_bias: 0.0,
            level_clamp: [0.0, 9.0],
            border: [0.0; 4],
            bounded: false,
        };
        let mut host = TestHost::default();
        let mut add = |number, kind| host.views.insert(number, Arc::new(View { kind, memory: None }));
        add(TEXTURE, ViewKind::Texture(texture));
        add(SURFACE, ViewKind::Surface(image([width, height, 2])));
        Stage { memory, host }
    }

    fn run(&self, body: &str, number: u64) -> Result<Vec<u32>, Fault> {
        let module = kernel(2, "", body);
        Run::shape(1, 1).on(&self.host, &module, "k", &[self.memory.start, number])?;
        Ok(self.memory.get(0, 4))
    }

    fn floats(&self, body: &str) -> Vec<f32> {
        let body = format!("{body}\nst.global.v4.f32 [%p0], {{%f0, %f1, %f2, %f3}};");
        self.run(&body, TEXTURE).unwrap().into_iter().map(f32::from_bits).collect()
    }
}

#[test]
fn queries_tell_what_a_number_stands_for() {
    let stage = Stage::new();
    let ask = |question: &str, number| {
        stage.run(&format!("{question}\nst.global.u32 [%p0], %r1;"), number).map(|found| found[0])
    };
    let cases = [
        ("txq.width.b32 %r1, [%p1];", TEXTURE, WIDTH as u32),
        ("txq.height.b32 %r1, [%p1];", TEXTURE, HEIGHT as u32),
        ("txq.level.width.b32 %r1, [%p1], 1;", TEXTURE, WIDTH as u32 / 2),
        ("txq.num_mipmap_levels.b32 %r1, [%p1];", TEXTURE, 2),
        ("txq.normalized_coords.b32 %r1, [%p1];", TEXTURE, 0),
        ("txq.addr_mode_1.b32 %r1, [%p1];", TEXTURE, 3),
        ("suq.width.b32 %r1, [%p1];", SURFACE, WIDTH as u32),
        ("suq.array_size.b32 %r1, [%p1];", SURFACE, 2),
    ];
    for (question, number, answer) in cases {
        assert_eq!(ask(question, number).unwrap(), answer, "{question}");
    }
    for (kind, numbers) in [("texref", [1, 0, 0]), ("samplerref", [1, 0, 0]), ("surfref", [0, 1, 0])] {
        let question = format!("istypep.{kind} %q1, %p1;\nselp.u32 %r1, 1, 0, %q1;");
        assert_eq!(
            [TEXTURE, SURFACE, NOTHING].map(|number| ask(&question, number).unwrap()),
            numbers,
            "{kind}"
        );
    }
}

#[test]
fn offsets_levels_and_parts_of_results() {
    let stage = Stage::new();
    let one = |fetch: &str| stage.floats(fetch)[0];
    assert_eq!(one("tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%p1, {2.5, 1.5}];"), 10.0);
    assert_eq!(one("tex.2d.v4.f32.f32 {%f0, _, _, _}, [%p1, {2.5, 1.5}], {1, -1};"), 3.0);
    assert_eq!(one("tex.base.2d.v4.f32.f32 {%f0, _, _, _}, [%p1, {2.5, 9.0}];"), 0.0);
    assert_eq!(one("tex.2d.v4.f32.s32 {%f0, _, _, _}|%q1, [%p1, {3, 2}];"), 19.0);
    assert_eq!(one("tex.level.2d.v4.f32.s32 {%f0, _, _, _}, [%p1, {3, 1}], 1;"), 7.0);
    assert_eq!(one("tex.level.2d.v4.f32.f32 {%f0, _, _, _}, [%p1, {1.5, 1.5}], 1.0;"), 5.0);
    let gathered = stage.floats("tld4.r.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%p1, {2.0, 2.0}], {1, 0};");
    assert_eq!(gathered, [18.0, 19.0, 11.0, 10.0]);
}

#[test]
fn values_of_several_widths_go_to_a_surface() {
    let stage = Stage::new();
    let body = "mov.u32 %r1, 7;\nmov.u32 %r2, 9;\nmov.u64 %d1, 0x123456789;\n\
         sust.b.3d.v2.b32.trap [%p1, {8, 1, 1, 0}], {%r1, %r2};\nsust.b.2d.b64.zero [%p1, {16, 0}], {%d1};\n\
         sust.b.2d.b64.zero [%p1, {32, 0}], {%d1};\nsuld.b.2d.b64.trap {%d2}, [%p1, {16, 0}];\n\
         suld.b.a2d.v2.b32.clamp {%r3, %r4}, [%p1, {9, 8, 1, 0}];\nst.global.v2.u32 [%p0], {%r3, %r4};\n\
         st.global.u64 [%p0+8], %d2;";
    assert_eq!(stage.run(body, SURFACE).unwrap(), [7, 9, 0x2345_6789, 1]);
}

#[test]
fn wrong_numbers_and_places_end_the_kernel_with_a_sentence() {
    let stage = Stage::new();
    let fetch = "tex.1d.v4.f32.f32 {%f0, _, _, _}, [%p1, {0.0}];";
    let cases = [(fetch, NOTHING, "no texture object"), (fetch, SURFACE, "of a surface object")];
    for (body, number, words) in cases {
        let fault = stage.run(body, number).unwrap_err();
        assert!(
            matches!(fault, Fault::IllegalInstruction { .. }) && fault.to_string().contains(words),
            "{fault}"
        );
    }
    let store = |x| format!("sust.b.2d.b32.trap [%p1, {{{x}, 0}}], {{%tid32}};");
    let fault = |x| stage.run(&store(x), SURFACE).unwrap_err();
    assert!(matches!(fault(4 * WIDTH as i32), Fault::Trap { .. }));
    assert!(matches!(fault(-4), Fault::Trap { .. }));
    assert!(matches!(fault(2), Fault::MisalignedAddress { .. }));
}
