//! The loops over lanes, and the instantiation of one expression for many types.

/// A non-capturing closure over one lane's values, as an [`Alu`](super::Alu).
macro_rules! alu {
    (|$a:ident: $A:ty| $e:expr) => {
        alu!(|$a: $A, _b: u64, _c: u64, _d: u64| $e)
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty| $e:expr) => {
        alu!(|$a: $A, $b: $B, _c: u64, _d: u64| $e)
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty| $e:expr) => {
        alu!(|$a: $A, $b: $B, $c: $C, _d: u64| $e)
    };
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty, $d:ident: $D:ty| $e:expr) => {{
        fn run(out: &mut $crate::alu::Lanes, s: [&$crate::alu::Lanes; 4]) {
            use $crate::alu::Value;
            for i in 0..$crate::alu::LANES {
                let $a = <$A as Value>::of(s[0][i]);
                let $b = <$B as Value>::of(s[1][i]);
                let $c = <$C as Value>::of(s[2][i]);
                let $d = <$D as Value>::of(s[3][i]);
                out[i] = Value::bits($e);
            }
        }
        run as $crate::alu::Alu
    }};
}

/// The same with a pair of results, as an [`Alu2`](super::Alu2).
macro_rules! alu2 {
    (|$a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty, $d:ident: $D:ty| $e:expr) => {{
        fn run(out: &mut [$crate::alu::Lanes; 2], s: [&$crate::alu::Lanes; 4]) {
            use $crate::alu::Value;
            for i in 0..$crate::alu::LANES {
                let $a = <$A as Value>::of(s[0][i]);
                let $b = <$B as Value>::of(s[1][i]);
                let $c = <$C as Value>::of(s[2][i]);
                let $d = <$D as Value>::of(s[3][i]);
                let (first, second) = $e;
                out[0][i] = Value::bits(first);
                out[1][i] = Value::bits(second);
            }
        }
        run as $crate::alu::Alu2
    }};
}

/// `match` over the variants of `Type` that gives each its Rust type under one name; `None` for the others.
macro_rules! for_types {
    ($ty:expr; [$($variant:ident => $t:ty),* $(,)?]; $T:ident => $body:expr) => {
        match $ty {
            $($crate::types::Type::$variant => Some({
                #[allow(dead_code, reason = "a body need not name its type")]
                type $T = $t;
                $body
            }),)*
            _ => None,
        }
    };
}

/// For 16, 32 and 64-bit integers.
macro_rules! for_integers {
    ($ty:expr; $T:ident => $body:expr) => {
        for_types!($ty; [U16 => u16, U32 => u32, U64 => u64, S16 => i16, S32 => i32, S64 => i64]; $T => $body)
    };
}

/// For 32 and 64-bit integers.
macro_rules! for_wide_integers {
    ($ty:expr; $T:ident => $body:expr) => {
        for_types!($ty; [U32 => u32, U64 => u64, S32 => i32, S64 => i64]; $T => $body)
    };
}

/// For bit types by width, as unsigned integers.
macro_rules! for_bits {
    ($ty:expr; $T:ident => $body:expr) => {
        for_types!($ty; [B16 => u16, B32 => u32, B64 => u64]; $T => $body)
    };
}

/// The expression with a constant for the rounding mode.
macro_rules! by_mode {
    ($rounding:expr; $mode:ident => $e:expr) => {
        match $rounding {
            Rounding::Nearest => {
                const $mode: Rounding = Rounding::Nearest;
                $e
            }
            Rounding::Away => {
                const $mode: Rounding = Rounding::Away;
                $e
            }
            Rounding::Zero => {
                const $mode: Rounding = Rounding::Zero;
                $e
            }
            Rounding::Down => {
                const $mode: Rounding = Rounding::Down;
                $e
            }
            Rounding::Up => {
                const $mode: Rounding = Rounding::Up;
                $e
            }
        }
    };
}
