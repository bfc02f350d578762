//! What a kernel's name says of its parameters: of a C++ function it is mangled, and tells their types (Itanium C++ ABI, chapter 5).

use std::fmt;

use cpp_demangle::{BorrowedSymbol, DemangleNodeType, DemangleOptions, DemangleWrite};

/// Longer names are not looked at, nor those that stand for longer texts: a short one may stand for a very long one.
const LONGEST_NAME: usize = 16 << 10;
const LONGEST_TEXT: usize = 256 << 10;
/// What may stand behind a type that it qualifies.
const QUALIFIERS: [&str; 5] = ["const", "volatile", "restrict", "__restrict", "__restrict__"];

/// For each parameter whether it is a pointer to constants, which a kernel only reads by it unless it casts that away. None for a
/// name that is not a C++ function's.
pub(super) fn constant_pointers(name: &str) -> Option<Vec<bool>> {
    let symbol = Some(name).filter(|name| name.starts_with("_Z") && name.len() <= LONGEST_NAME);
    let symbol = BorrowedSymbol::new(symbol?.as_bytes()).ok()?;
    let mut outline = Outline::default();
    symbol.structured_demangle(&mut outline, &DemangleOptions::new()).ok()?;
    Some(parameters(&outline.text)?.into_iter().map(is_constant_pointer).collect())
}

/// The text of a declaration without the arguments of its templates, in which brackets may mean anything.
#[derive(Default)]
struct Outline {
    text: String,
    /// Whether each node that is open is such arguments, or within them.
    nodes: Vec<bool>,
    written: usize,
}

impl DemangleWrite for Outline {
    fn push_demangle_node(&mut self, node: DemangleNodeType) {
        let is_within = self.nodes.last().is_some_and(|within| *within);
        self.nodes.push(is_within || node == DemangleNodeType::TemplateArgs);
    }

    fn write_string(&mut self, text: &str) -> fmt::Result {
        self.written += text.len();
        if self.written > LONGEST_TEXT {
            return Err(fmt::Error);
        }
        if self.nodes.last().is_none_or(|within| !within) {
            self.text.push_str(text);
        }
        Ok(())
    }

    fn pop_demangle_node(&mut self) {
        self.nodes.pop();
    }
}

/// The types of the last pair of brackets, with which the text ends.
fn parameters(text: &str) -> Option<Vec<&str>> {
    let inner = text.strip_suffix(')')?;
    let (mut depth, mut end, mut found) = (0, inner.len(), Vec::new());
    for (at, symbol) in inner.char_indices().rev() {
        match symbol {
            ')' | ']' | '}' => depth += 1,
            '(' if depth == 0 => {
                found.push(inner[at + 1..end].trim());
                found.reverse();
                return Some(if found == [""] { Vec::new() } else { found });
            }
            '(' | '[' | '{' => depth -= 1,
            ',' if depth == 0 => {
                found.push(inner[at + 1..end].trim());
                end = at;
            }
            _ => {}
        }
    }
    None
}

fn is_constant_pointer(of: &str) -> bool {
    let (pointer, _) = unqualified(of);
    pointer.strip_suffix('*').is_some_and(|pointee| unqualified(pointee).1)
}

/// A type without the qualifiers behind it, and whether `const` was among them.
fn unqualified(mut of: &str) -> (&str, bool) {
    let mut is_constant = false;
    loop {
        of = of.trim_end();
        let word = of.rfind(|symbol: char| !symbol.is_alphanumeric() && symbol != '_').map_or(0, |at| at + 1);
        if !QUALIFIERS.contains(&&of[word..]) {
            return (of, is_constant);
        }
        is_constant |= &of[word..] == "const";
        of = &of[..word];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `c` for each pointer to constants, and `-` for the others.
    fn told(name: &str) -> Option<String> {
        let constant = |is: bool| if is { 'c' } else { '-' };
        Some(constant_pointers(name)?.into_iter().map(constant).collect())
    }

    #[test]
    fn pointers_to_constants_are_told_from_others() {
        assert_eq!(told("_Z3sumPKfPfi").unwrap(), "c--");
        assert_eq!(told("_Z4voidPKvPvPVKjPVj").unwrap(), "c-c-");
        // A pointer that is constant itself is no pointer to constants; one to constant pointers is.
        assert_eq!(told("_Z5tablePKPfPPKf").unwrap(), "c-");
        assert_eq!(told("_Z7nothingv").unwrap(), "");
        // References, structures, functions and arrays.
        assert_eq!(told("_Z6othersRKf5BatchPFvPKfEPA4_KfPK5Batch").unwrap(), "----c");
        // The second is as the first, by a substitution.
        assert_eq!(told("_Z4samePKfS0_PfS1_").unwrap(), "cc--");
        assert_eq!(told("_ZN2ns12_GLOBAL__N_14copyEPKNS0_4RowsEPS1_").unwrap(), "c-");
    }

    #[test]
    fn what_a_template_returns_and_is_made_with_is_no_parameter() {
        // void axpy<float const*>(int, float const*, float*)
        assert_eq!(told("_Z4axpyIPKfEviT_Pf").unwrap(), "-c-");
        assert_eq!(told("_Z4axpyIPfEviT_PKf").unwrap(), "--c");
        // With an operator among the arguments.
        assert_eq!(told("_Z4pickIXgtLi3ELi2EEEvPKfPf").unwrap(), "c-");
        // void row<float>(float const*, float*, unsigned)
        assert_eq!(told("_Z3rowIfEvPKT_PS0_j").unwrap(), "c--");
        // En<int>::type ret<int>(int const*, int*, int*, int const volatile*, void (*)(int const*))
        assert_eq!(told("_ZN5ncclx3retIiEENS_2EnIT_E4typeEPKS2_PS2_S7_PVKS2_PFvS6_E").unwrap(), "c--c-");
        // Packs of parameters: (float const*, float*, int, void const*), and none.
        assert_eq!(told("_ZN5ncclx6packedIJPKfPfiPKvEEEvDpT_").unwrap(), "c--c");
        assert_eq!(told("_ZN5ncclx6packedIJEEEvDpT_").unwrap(), "");
    }

    #[test]
    fn kernels_of_libraries_are_told() {
        // void at::native::vectorized_elementwise_kernel<4, ..>(int, at::native::FillFunctor<float>, std::array<char*, 1>)
        let elementwise = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_";
        assert_eq!(told(elementwise).unwrap(), "---");
        // void at::native::elementwise<4, call()::{lambda(float)#1}, Op<float>>(int, {lambda}, Op<float>)
        let lambda = "_ZN2at6native11elementwiseILi4EZNS0_4callEvEUlfE_NS0_12_GLOBAL__N_12OpIfEEEEviT0_T1_";
        assert_eq!(told(lambda).unwrap(), "---");
        // void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float, true>(int, float,
        // c10::Half const*, c10::Half const*, c10::Half const*, float*, float*, c10::Half*)
        let norm = "_ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIN3c104HalfEfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_";
        assert_eq!(told(norm).unwrap(), "--ccc---");
        // .. embedding_backward_kernel<c10::BFloat16, long long>(long long const*, c10::BFloat16 const*, c10::BFloat16*,
        // long long, int const* const*)
        let embedding =
            "_ZN2at6native12_GLOBAL__N_125embedding_backward_kernelIN3c108BFloat16ExEEvPKT0_PKT_PS8_xPKPKi";
        assert_eq!(told(embedding).unwrap(), "cc--c");
        // void flash::flash_fwd_kernel<flash::Params, true>(flash::Params)
        assert_eq!(told("_ZN5flash16flash_fwd_kernelINS_6ParamsELb1EEEvT_").unwrap(), "-");
        // cutlass::Kernel2, whose operands lie in a structure
        let cutlass =
            "_ZN7cutlass7Kernel2I57cutlass_80_tensorop_s16816gemm_bf16_128x64_64x3_tn_align8EEvNT_6ParamsE";
        assert_eq!(told(cutlass).unwrap(), "-");
        // cublas' gemv: cublasGemvParamsEx by value
        let gemv = "_ZN8internal5gemvx6kernelIiiffffLb0ELb1ELb0ELb0ELi7ELb0E18cublasGemvParamsExIi30cublasGemvTensorStridedBatchedIKfES5_S3_IfEfEEENSt9enable_ifIXntT5_EvE4typeET11_";
        assert!(told(gemv).is_none_or(|told| !told.contains('c')));
    }

    #[test]
    fn other_names_tell_nothing() {
        for name in
            ["fill", "", "_Z", "_Z3sum", "_Zfoo(PKf)", "_ZN2at6nativeE", "_R3sumPKf", "_ZL4dataPKf.part"]
        {
            assert!(told(name).is_none_or(|told| !told.contains('c')), "{name}");
        }
        assert_eq!(told(&format!("_Z{}{}PKf", 20_000, "a".repeat(20_000))), None);
        // Each type is twice the one before it.
        let twice: String = (0..60).map(|number| format!("4pairIS{0}_S{0}_E", number)).collect();
        assert_eq!(told(&format!("_Z1fPKf{twice}")), None);
    }
}
