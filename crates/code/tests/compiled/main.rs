//! Cubins as NVIDIA's compiler makes them, taken apart: the compiler is the one that the Python packages bring.

mod compiler;
mod damage;
mod fatbins;
mod pieces;
mod whole;
