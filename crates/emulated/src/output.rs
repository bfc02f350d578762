//! What kernels print: kept until a kernel ends or there is much of it, then written whole.

use std::io::Write;

use parking_lot::Mutex;

const MOST: usize = 64 << 10;

pub(crate) struct Output {
    // One lock over both keeps texts in order.
    inner: Mutex<Inner>,
}

struct Inner {
    text: Vec<u8>,
    sink: Box<dyn Write + Send>,
}

impl Output {
    pub fn new(sink: Box<dyn Write + Send>) -> Output {
        Output { inner: Mutex::new(Inner { text: Vec::new(), sink }) }
    }

    pub fn print(&self, text: &[u8]) {
        let mut inner = self.inner.lock();
        inner.text.extend_from_slice(text);
        if inner.text.len() >= MOST {
            inner.flush();
        }
    }

    pub fn flush(&self) {
        self.inner.lock().flush();
    }
}

impl Inner {
    fn flush(&mut self) {
        if self.text.is_empty() {
            return;
        }
        if let Err(error) = self.sink.write_all(&self.text).and_then(|()| self.sink.flush()) {
            log::warn!("{} bytes that kernels printed are lost: {error}", self.text.len());
        }
        self.text.clear();
    }
}
