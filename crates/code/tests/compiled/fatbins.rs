//! Which cubin of a fatbin is taken.

use rekindle_code::{Error, Preparation, Whole, prepare};

use crate::compiler::{compile, prepared};

#[test]
fn the_newest_cubin_that_a_gpu_runs_is_unpacked() {
    let source = r#"extern "C" __global__ void k(int *x) { x[0] = 1; }"#;
    let code = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]"];
    for mode in ["none", "speed", "size"] {
        let mode = format!("-compress-mode={mode}");
        let fatbin = compile(source, &[code[0], code[1], "-Xfatbin", &mode, "-fatbin"]);
        assert_eq!(prepared(&fatbin).kernels["k"].capability, 90);
        match prepare(&fatbin, 86) {
            Ok(Preparation::Prepared(prepared)) => assert_eq!(prepared.kernels["k"].capability, 80),
            other => panic!("{other:?}"),
        }
        assert!(matches!(prepare(&fatbin, 100), Ok(Preparation::Whole(Whole::Ptx))));
        assert_eq!(prepare(&fatbin, 75).unwrap_err(), Error::FatbinCapability { major: 7, minor: 5 });
        for cut in [8, 16, 70, fatbin.len() / 2, fatbin.len() - 1] {
            assert!(matches!(prepare(&fatbin[..cut], 90), Err(Error::FatbinEnd { .. })), "{cut}");
        }
    }
}
