//! A cache line of its own for what one side writes and the other reads.

#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line<T>(pub T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
