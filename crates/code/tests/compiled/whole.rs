//! What is not taken apart, and the reason.

use rekindle_code::{Preparation, Whole, prepare};

use crate::compiler::{CAPABILITY, HOPPER, compile};

fn reason(source: &str, options: &[&str]) -> Whole {
    match prepare(&compile(source, options), CAPABILITY) {
        Ok(Preparation::Whole(whole)) => whole,
        other => panic!("{other:?}"),
    }
}

#[test]
fn constants_that_hold_addresses() {
    let source = "__device__ float sum; __constant__ float *where = &sum;
        __global__ void k(float **x) { x[0] = where; }";
    assert_eq!(reason(source, &[HOPPER, "-cubin"]).word(), "relocation");
}

#[test]
fn managed_memory() {
    let source = "__managed__ int both; __global__ void k(int *x) { x[0] = both; }";
    assert_eq!(reason(source, &[HOPPER, "-cubin"]), Whole::Managed("both".to_owned()));
}

#[test]
fn code_that_is_to_be_linked() {
    let source = "__device__ int far(int); __global__ void k(int *x) { x[0] = far(1); }";
    assert_eq!(reason(source, &[HOPPER, "-rdc=true", "-cubin"]), Whole::Relocatable);
}

#[test]
fn ptx() {
    assert_eq!(reason("__global__ void k(int *x) { x[0] = 1; }", &["-arch=compute_90", "-ptx"]), Whole::Ptx);
}

#[test]
fn newer_architectures() {
    assert_eq!(
        reason("__global__ void k(int *x) { x[0] = 1; }", &["-arch=sm_100", "-cubin"]),
        Whole::Architecture(100)
    );
}
