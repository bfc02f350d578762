//! Cuts one kernel out of a cubin or fatbin: `piece CODE KERNEL GLOBALS-ADDRESS OUT`; without a kernel, says what there is.

use rekindle_code::{Preparation, prepare};

const CAPABILITY: u32 = 90;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [code, rest @ ..] = words.as_slice() else { return Err("piece CODE [KERNEL ADDRESS OUT]".into()) };
    match (prepare(&std::fs::read(code)?, CAPABILITY)?, rest) {
        (Preparation::Whole(whole), _) => println!("whole: {whole}"),
        (Preparation::Prepared(prepared), [kernel, address, out]) => {
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
            std::fs::write(out, prepared.piece(kernel, address)?)?;
        }
        (Preparation::Prepared(prepared), _) => {
            println!("{:#?}", prepared.globals);
            for kernel in prepared.kernels.values() {
                println!("{kernel:?}");
            }
        }
    }
    Ok(())
}
