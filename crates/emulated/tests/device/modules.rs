use rekindle_cuda::*;
use rekindle_device::{Code, LinkInput, ModuleKind, Stream};
use rekindle_emulated::OPTION_MODULE_ADDRESS;

use crate::support::{MIB, PTX, buffer, download, load, machine, parameters, shape, upload};

const CALLER: &str = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 result) twice(.param .b32 value);
.visible .entry apply(.param .u64 p)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    ld.global.u32 %r1, [%rd1];
    {
        .param .b32 argument;
        .param .b32 answer;
        st.param.b32 [argument], %r1;
        call.uni (answer), twice, (argument);
        ld.param.b32 %r2, [answer];
    }
    st.global.u32 [%rd1], %r2;
    ret;
}
";

const CALLEE: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [value];
    add.s32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}
";

const GLOBALS: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .const .align 4 .u32 table[2] = {7, 8};
.visible .global .align 8 .u32 counter = 5;
.visible .global .align 8 .u64 pointer = counter;
.visible .entry bump()
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.global.u64 %rd1, [pointer];
    ld.global.u32 %r1, [%rd1];
    ld.const.u32 %r2, [table+4];
    add.s32 %r3, %r1, %r2;
    st.global.u32 [counter], %r3;
    ret;
}
";

fn inputs<'a>(texts: &[(&'a str, &'a str)]) -> Vec<LinkInput<'a>> {
    texts
        .iter()
        .map(|(name, text)| LinkInput { kind: LinkInput::PTX, name, bytes: text.as_bytes() })
        .collect()
}

#[test]
fn two_modules_link() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let (linked, _) = gpu.link(&inputs(&[("caller.ptx", CALLER), ("callee.ptx", CALLEE)]), &[]).unwrap();
    let module = gpu.module_load(Code::new(linked.clone()), ModuleKind::Library, &[]).unwrap().module;
    assert_eq!(gpu.function_names(module).unwrap(), ["apply"]);
    let apply = gpu.function(module, "apply").unwrap();
    assert_eq!(gpu.function(module, "apply"), Ok(apply));
    assert_eq!(gpu.function(module, "other"), Err(CUDA_ERROR_NOT_FOUND));
    let device = buffer(gpu.as_ref(), 2 * MIB);
    upload(gpu, device.address, &[21]);
    gpu.launch(apply, &shape(1, 1), Stream::LEGACY, &parameters(&[device.address])).unwrap();
    assert_eq!(download(gpu, device.address, 1), [42]);

    let again =
        gpu.link(&[LinkInput { kind: LinkInput::CUBIN, name: "linked", bytes: &linked }], &[]).unwrap().0;
    assert_eq!(again.len(), linked.len(), "what was linked links again");
    let undefined = gpu.link(&inputs(&[("caller.ptx", CALLER)]), &[]).unwrap_err();
    assert!(undefined.log.contains("`twice`"), "{undefined}");
    assert!(gpu.link(&[], &[]).is_err());
}

#[test]
fn a_fatbin_is_linked_as_one_and_not_as_an_object_of_the_host() {
    let machine = machine("");
    let gpu = &machine.gpu;
    let (fatbin, _) = gpu.link(&inputs(&[("callee.ptx", CALLEE)]), &[]).unwrap();
    let linked_as = |kind, bytes: &[u8]| gpu.link(&[LinkInput { kind, name: "", bytes }], &[]);
    assert!(linked_as(LinkInput::FATBIN, &fatbin).is_ok());
    assert!(linked_as(LinkInput::OBJECT, &fatbin).unwrap_err().log.contains("could not find a fatbin in ''"));
    let object = [b"\x7fELF of the host", &fatbin[..]].concat();
    assert!(linked_as(LinkInput::OBJECT, &object).is_ok());
}

#[test]
fn registers_are_limited_where_asked() {
    const REGISTERS: usize = 4;
    let machine = machine("");
    let gpu = &machine.gpu;
    let registers = |code: &[u8], options: &[(i32, u64)]| {
        let module = gpu.module_load(Code::new(code.to_vec()), ModuleKind::Module, options).unwrap().module;
        gpu.function_info(gpu.function(module, "apply").unwrap()).unwrap().attributes[REGISTERS]
    };
    let loads: String = (0..80).map(|i| format!("ld.global.u64 %w{i}, [%rd1+{}];", 8 * i)).collect();
    let stores: String = (0..80).map(|i| format!("st.global.u64 [%rd1+{}], %w{i};", 8 * i + 8)).collect();
    let body = format!(".reg .b64 %w<80>; {loads} {stores}\n    {{");
    let wide = CALLER.replacen("    {", &body, 1).replace("(.param .u64 p)", "(.param .u64 p) .maxntid 128");
    let (plain, _) = gpu.link(&inputs(&[("wide.ptx", &wide), ("callee.ptx", CALLEE)]), &[]).unwrap();
    let (limited, _) = gpu.link(&inputs(&[("wide.ptx", &wide), ("callee.ptx", CALLEE)]), &[(0, 38)]).unwrap();
    assert!(registers(&plain, &[]) > 150);
    assert_eq!(registers(&plain, &[(0, 64)]), 64);
    assert_eq!(registers(&limited, &[]), 38);
}

#[test]
fn code_that_cannot_load_says_why() {
    let machine = machine("");
    let load = |code: &str| {
        machine.gpu.module_load(Code::new(code.as_bytes().to_vec()), ModuleKind::Module, &[]).unwrap_err()
    };
    let unknown = load(&PTX.replace("add.s32 %r5, %r5, 1;", "frobnicate.s32 %r5, %r5, 1;"));
    assert_eq!(unknown.code, CUDA_ERROR_INVALID_PTX);
    assert!(unknown.log.contains("frobnicate") && unknown.log.contains("line"), "{unknown}");
    let undefined = load(CALLER);
    assert_eq!(undefined.code, CUDA_ERROR_INVALID_PTX);
    assert!(undefined.log.contains("`twice`"), "{undefined}");
    assert_eq!(load("\x7fELF...").code, CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(load(&PTX.replace("sm_80", "sm_120")).code, CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(load(&PTX.replace(".version 8.0", ".version 10.0")).code, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    let nul = format!("{PTX}\0and what lies behind");
    machine.gpu.module_load(Code::new(nul.into_bytes()), ModuleKind::Module, &[]).unwrap();
}

#[test]
fn globals_are_initialised_and_lie_where_they_lay() {
    let run = || {
        let machine = machine("");
        let gpu = &machine.gpu;
        let (first, second) = (load(gpu, GLOBALS), load(gpu, GLOBALS));
        let names: Vec<String> = gpu.globals(second).unwrap().into_iter().map(|global| global.name).collect();
        assert_eq!(names.len(), 3);
        let (counter, bytes) = gpu.global(second, "counter").unwrap();
        assert_eq!(bytes, 4);
        assert_eq!(gpu.global(second, "nothing"), Err(CUDA_ERROR_NOT_FOUND));
        let bump = gpu.function(second, "bump").unwrap();
        gpu.launch(bump, &shape(1, 1), Stream::LEGACY, &[]).unwrap();
        assert_eq!(download(gpu, counter, 1), [13]);
        let table = gpu.globals(first).unwrap().into_iter().find(|global| global.constant).unwrap();
        upload(gpu, table.address, &[0, 100]);
        let (other, _) = gpu.global(first, "counter").unwrap();
        let bump = gpu.function(first, "bump").unwrap();
        gpu.launch(bump, &shape(1, 1), Stream::LEGACY, &[]).unwrap();
        assert_eq!(download(gpu, other, 1), [105], "the host set the constant");

        gpu.module_unload(first).unwrap();
        assert_eq!(gpu.function_names(first), Err(CUDA_ERROR_INVALID_HANDLE));
        assert_eq!(gpu.copy(other, counter, 4, Stream::LEGACY), Err(CUDA_ERROR_INVALID_VALUE), "it is gone");
        let third = load(gpu, GLOBALS);
        assert!(gpu.global(third, "counter").unwrap().0 > counter, "no address is used twice");

        let start = other & !4095;
        let placed = Code::new(GLOBALS.as_bytes().to_vec());
        let placed =
            gpu.module_load(placed, ModuleKind::Module, &[(OPTION_MODULE_ADDRESS, start)]).unwrap().module;
        assert_eq!(gpu.global(placed, "counter").unwrap().0, other, "a restore names the place");
        let taken = Code::new(GLOBALS.as_bytes().to_vec());
        assert!(gpu.module_load(taken, ModuleKind::Module, &[(OPTION_MODULE_ADDRESS, start)]).is_err());
        // The slot may differ where other tests hold the first.
        [counter, other].map(|address| address % (16 << 30))
    };
    assert_eq!(run(), run());
}

#[test]
fn a_cooperative_grid_synchronises() {
    let machine = machine("threads=2");
    let gpu = &machine.gpu;
    let ptx = "
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 status) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
.visible .entry pass(.param .u64 p)
{
    .reg .pred %p<2>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    mov.u32 %r3, 0;
    {
        .param .b32 scope;
        .param .b64 handle;
        st.param.b32 [scope], 1;
        call.uni (handle), cudaCGGetIntrinsicHandle, (scope);
        ld.param.b64 %rd2, [handle];
    }
$round:
    add.u32 %r4, %r1, %r3;
    rem.u32 %r4, %r4, %r2;
    mul.wide.u32 %rd3, %r4, 4;
    add.u64 %rd4, %rd1, %rd3;
    ld.volatile.global.u32 %r5, [%rd4];
    mul.lo.u32 %r5, %r5, 3;
    add.u32 %r5, %r5, %r1;
    st.volatile.global.u32 [%rd4], %r5;
    {
        .param .b64 handle;
        .param .b32 flags;
        .param .b32 status;
        st.param.b64 [handle], %rd2;
        st.param.b32 [flags], 0;
        call.uni (status), cudaCGSynchronize, (handle, flags);
        ld.param.b32 %r6, [status];
    }
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 20;
    @%p1 bra $round;
    ret;
}
";
    let module = load(gpu, ptx);
    let pass = gpu.function(module, "pass").unwrap();
    let device = buffer(gpu.as_ref(), 2 * MIB);
    let blocks = 12_u32;
    let launch = rekindle_device::Launch { cooperative: true, ..shape(blocks, 1) };
    gpu.launch(pass, &launch, Stream::LEGACY, &parameters(&[device.address])).unwrap();
    gpu.synchronize().unwrap();
    let mut expected = vec![0_u32; blocks as usize];
    for round in 0..20 {
        for block in 0..blocks {
            let word = &mut expected[((block + round) % blocks) as usize];
            *word = word.wrapping_mul(3).wrapping_add(block);
        }
    }
    assert_eq!(download(gpu, device.address, blocks as usize), expected);
}

/// What `cooperative_groups::this_grid().sync()` compiles to: the barrier is in the launch's workspace.
#[test]
fn a_cooperative_grid_has_a_workspace() {
    let machine = machine("threads=2");
    let gpu = &machine.gpu;
    let ptx = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry meet(.param .u64 p)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %envreg1;
    mov.u32 %r2, %envreg2;
    mov.b64 %rd2, {%r2, %r1};
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd3, %r3, 4;
    add.u64 %rd4, %rd1, %rd3;
    st.global.u32 [%rd4], %r3;
    setp.eq.u64 %p1, %rd2, 0;
    @%p1 bra $alone;
    setp.eq.u32 %p2, %r3, 0;
    sub.u32 %r5, -2147483647, %r4;
    selp.b32 %r6, %r5, 1, %p2;
    membar.gl;
    atom.add.u32 %r7, [%rd2+4], %r6;
$wait:
    ld.volatile.u32 %r8, [%rd2+4];
    xor.b32 %r9, %r8, %r7;
    setp.gt.s32 %p3, %r9, -1;
    @%p3 bra $wait;
    xor.b32 %r10, %r3, 1;
    mul.wide.u32 %rd5, %r10, 4;
    add.u64 %rd6, %rd1, %rd5;
    ld.volatile.global.u32 %r11, [%rd6];
    st.global.u32 [%rd4+256], %r11;
    ret;
$alone:
    st.global.u32 [%rd4+256], 99;
    ret;
}
";
    let meet = gpu.function(load(gpu, ptx), "meet").unwrap();
    let device = buffer(gpu.as_ref(), 2 * MIB);
    for _ in 0..5 {
        upload(gpu, device.address, &[55; 128]);
        let launch = rekindle_device::Launch { cooperative: true, ..shape(16, 1) };
        gpu.launch(meet, &launch, Stream::LEGACY, &parameters(&[device.address])).unwrap();
        let neighbours: Vec<u32> = (0..16).map(|i| i ^ 1).collect();
        assert_eq!(download(gpu, device.address + 256, 16), neighbours);
    }
    gpu.launch(meet, &shape(16, 1), Stream::LEGACY, &parameters(&[device.address])).unwrap();
    assert_eq!(download(gpu, device.address + 256, 16), [99; 16]);
}
