//! The PTX that the checks run.

pub const MAIN: &str = r#"
.version 7.0
.target sm_80
.address_size 64

.visible .global .align 4 .u32 counter = 5;
.visible .const .align 4 .b8 table[16];

// c[i] = a[i] + b[i]
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .b64 %d<4>;
    .reg .f32 %f<3>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r3, %r4;
    @%p bra done;
    mul.wide.u32 %d3, %r3, 4;
    ld.param.u64 %d0, [a];
    ld.param.u64 %d1, [b];
    ld.param.u64 %d2, [c];
    add.u64 %d0, %d0, %d3;
    add.u64 %d1, %d1, %d3;
    add.u64 %d2, %d2, %d3;
    ld.global.f32 %f0, [%d0];
    ld.global.f32 %f1, [%d1];
    add.f32 %f2, %f0, %f1;
    st.global.f32 [%d2], %f2;
done:
    ret;
}

.visible .entry store(.param .u64 to, .param .u32 value)
{
    .reg .b32 %r;
    .reg .b64 %d;
    ld.param.u64 %d, [to];
    ld.param.u32 %r, [value];
    st.global.u32 [%d], %r;
    ret;
}

// *to = counter++ + table[0]
.visible .entry bump(.param .u64 to)
{
    .reg .b32 %r<3>;
    .reg .b64 %d;
    ld.param.u64 %d, [to];
    atom.global.add.u32 %r0, [counter], 1;
    ld.const.u32 %r1, [table];
    add.u32 %r2, %r0, %r1;
    st.global.u32 [%d], %r2;
    ret;
}

.visible .entry empty()
{
    ret;
}
"#;

/// Calls `twice`, which [`LINK_CALLEE`] has.
pub const LINK_CALLER: &str = r#"
.version 7.0
.target sm_80
.address_size 64
.extern .func (.param .b32 result) twice(.param .b32 value);
.visible .entry caller(.param .u64 to, .param .u32 value)
{
    .reg .b32 %r<2>;
    .reg .b64 %d;
    ld.param.u64 %d, [to];
    ld.param.u32 %r0, [value];
    {
        .param .b32 argument;
        .param .b32 answer;
        st.param.b32 [argument], %r0;
        call.uni (answer), twice, (argument);
        ld.param.b32 %r1, [answer];
    }
    st.global.u32 [%d], %r1;
    ret;
}
"#;

pub const LINK_CALLEE: &str = r#"
.version 7.0
.target sm_80
.address_size 64
.visible .func (.param .b32 result) twice(.param .b32 value)
{
    .reg .b32 %r<2>;
    ld.param.b32 %r0, [value];
    add.u32 %r1, %r0, %r0;
    st.param.b32 [result], %r1;
    ret;
}
"#;

/// Writes the number of blocks of its cluster.
pub const CLUSTER: &str = r#"
.version 7.8
.target sm_90
.address_size 64
.visible .entry cluster(.param .u64 to)
{
    .reg .b32 %r;
    .reg .b64 %d;
    ld.param.u64 %d, [to];
    mov.u32 %r, %cluster_nctaid.x;
    st.global.u32 [%d], %r;
    ret;
}
"#;

pub const BROKEN: &str =
    ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { nonsense.u32 %r; ret; }\n";
