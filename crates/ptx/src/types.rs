//! PTX's scalar types and state spaces.

/// A type as it appears in a modifier or declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F32x2,
    F64,
    Tf32,
    U16x2,
    S16x2,
    E4m3,
    E5m2,
    E4m3x2,
    E5m2x2,
}

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Type> {
        use Type::*;
        Some(match name {
            "pred" => Pred,
            "b8" => B8,
            "b16" => B16,
            "b32" => B32,
            "b64" => B64,
            "b128" => B128,
            "u8" => U8,
            "u16" => U16,
            "u32" => U32,
            "u64" => U64,
            "s8" => S8,
            "s16" => S16,
            "s32" => S32,
            "s64" => S64,
            "f16" => F16,
            "f16x2" => F16x2,
            "bf16" => Bf16,
            "bf16x2" => Bf16x2,
            "f32" => F32,
            "f32x2" => F32x2,
            "f64" => F64,
            "tf32" => Tf32,
            "u16x2" => U16x2,
            "s16x2" => S16x2,
            "e4m3" => E4m3,
            "e5m2" => E5m2,
            "e4m3x2" => E4m3x2,
            "e5m2x2" => E5m2x2,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> u32 {
        use Type::*;
        match self {
            Pred | B8 | U8 | S8 | E4m3 | E5m2 => 1,
            B16 | U16 | S16 | F16 | Bf16 | E4m3x2 | E5m2x2 => 2,
            B32 | U32 | S32 | F32 | F16x2 | Bf16x2 | Tf32 | U16x2 | S16x2 => 4,
            B64 | U64 | S64 | F64 | F32x2 => 8,
            B128 => 16,
        }
    }

    pub(crate) fn bits(self) -> u32 {
        self.bytes() * 8
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::F32 | Type::F64)
    }

    /// The unsigned type of the same width, for scalar integer and bit types.
    pub(crate) fn unsigned(self) -> Option<Type> {
        Some(match self {
            Type::B8 | Type::U8 | Type::S8 => Type::U8,
            Type::B16 | Type::U16 | Type::S16 => Type::U16,
            Type::B32 | Type::U32 | Type::S32 => Type::U32,
            Type::B64 | Type::U64 | Type::S64 => Type::U64,
            _ => return None,
        })
    }
}

/// Where a variable lives or an access goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// No space named: any address.
    Generic,
    Global,
    Const,
    Shared,
    Local,
    /// A kernel's parameters.
    Param,
}
