//! A thread of the runner as a library has it: [`abi::Call`], and what lies behind it.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use rekindle_function::driver::Stream;
use rekindle_function::{Error, Value, abi, message, split};

use crate::api::API;
use crate::data::Declared;
use crate::library::Loaded;
use crate::trace::{self, SpanId, Trace};
use crate::tree::Arena;

/// What a hook has said.
#[derive(Debug, Default)]
pub enum HookResult {
    #[default]
    Nothing,
    /// The message of the result.
    Reply(Vec<u8>),
    Failed(Error),
}

/// Its first field is what a library's pointer leads to.
#[repr(C)]
pub struct Context {
    call: abi::Call,
    pub function: String,
    pub stream: Stream,
    pub data: &'static [Declared],
    pub said: HookResult,
    /// Of the call that is under way.
    message: Vec<u8>,
    /// The same for a library that reads the first version alone, once that is wanted.
    older: Option<Vec<u8>>,
    /// Its request's trace, if that is followed, and the span of the call in it.
    pub spans: Option<(Arc<Trace>, SpanId)>,
    pub arena: Arena,
    /// Arguments, and keywords as key, value, key, value, once they were asked for.
    pub arguments: Option<(Vec<abi::Value>, Vec<abi::Value>)>,
}

impl Context {
    pub fn new(function: &str, stream: Stream, data: &'static [Declared]) -> Box<Context> {
        Box::new(Context {
            call: abi::Call { api: &API },
            function: function.to_string(),
            stream,
            data,
            said: HookResult::Nothing,
            message: Vec::new(),
            older: None,
            spans: None,
            arena: Arena::default(),
            arguments: None,
        })
    }

    /// The context that a library's pointer leads to.
    ///
    /// # Safety
    ///
    /// The pointer is of [`Self::pointer`], and no other reference to the context is used meanwhile.
    pub unsafe fn of<'c>(call: *mut abi::Call) -> &'c mut Context {
        // SAFETY: the call is the context's first field.
        unsafe { &mut *call.cast::<Context>() }
    }

    fn pointer(&mut self) -> *mut abi::Call {
        std::ptr::from_mut(self).cast()
    }

    /// What all instances have in common.
    pub fn setup(&mut self, loaded: &Loaded) -> Result<*mut c_void, Error> {
        let mut shared = std::ptr::null_mut();
        if let Some(setup) = loaded.table.setup {
            // SAFETY: the library's own function, as its table declares it.
            self.outcome(|call| unsafe { setup(call, &mut shared) })?;
        }
        Ok(shared)
    }

    /// What is this instance's own.
    pub fn enter(&mut self, loaded: &Loaded) -> Result<*mut c_void, Error> {
        let mut own = std::ptr::null_mut();
        if let Some(enter) = loaded.table.enter {
            // SAFETY: as above.
            self.outcome(|call| unsafe { enter(call, loaded.shared, &mut own) })?;
        }
        Ok(own)
    }

    pub fn leave(&mut self, loaded: &Loaded, own: *mut c_void) {
        if let Some(leave) = loaded.table.leave {
            // SAFETY: as above; what `enter` made is not given again.
            unsafe { leave(self.pointer(), loaded.shared, own) };
        }
    }

    pub fn teardown(&mut self, loaded: &Loaded) {
        if let Some(teardown) = loaded.table.teardown {
            // SAFETY: as above.
            unsafe { teardown(self.pointer(), loaded.shared) };
        }
    }

    /// The result's message or why there is none, and whether the instance is of no further use.
    pub fn carry(
        &mut self,
        loaded: &Loaded,
        own: *mut c_void,
        message: Vec<u8>,
        trace: Option<Arc<Trace>>,
    ) -> (Result<Vec<u8>, Error>, bool) {
        self.message = message;
        let began = trace::now();
        self.spans = trace.map(|trace| {
            let method = trace.begin("method", 0);
            (trace, method)
        });
        let call = self.pointer();
        // SAFETY: as above. The context is not touched here while the library has it.
        let code = unsafe { (loaded.call)(call, loaded.shared, own) };
        let said = std::mem::take(&mut self.said);
        self.arguments = None;
        self.arena = Arena::default();
        self.message = Vec::new();
        self.older = None;
        if let Some((trace, method)) = self.spans.take() {
            trace.note_waits(began, method);
            trace.end(method);
        }
        let result = match (code, said) {
            (abi::DONE, HookResult::Reply(message)) => Ok(message),
            (abi::DONE, _) => message::encode(&Value::None),
            (_, HookResult::Failed(error)) => Err(error),
            (code, _) => Err(Error::from(format!("it returned {code}, and did not say why"))),
        };
        (result, code == abi::BROKEN)
    }

    fn outcome(&mut self, hook: impl FnOnce(*mut abi::Call) -> i32) -> Result<(), Error> {
        let code = hook(self.pointer());
        match (code, std::mem::take(&mut self.said)) {
            (abi::DONE, _) => Ok(()),
            (_, HookResult::Failed(error)) => Err(error),
            (code, _) => Err(Error::from(format!("it returned {code}, and did not say why"))),
        }
    }

    /// Notes why, for the hook's end.
    pub fn fail(&mut self, error: Error) -> i32 {
        self.said = HookResult::Failed(error);
        abi::FAILED
    }

    /// The message of the call that is under way, of this version at the latest. What no version has is left to the library.
    pub fn message_in(&mut self, version: u32) -> &[u8] {
        if version < message::VERSION && self.older.is_none() {
            let older = match message::decode_versioned(&self.message) {
                Ok((value, has)) if has > version => message::encode(&value).ok(),
                _ => None,
            };
            self.older = older;
        }
        self.older.as_deref().filter(|_| version < message::VERSION).unwrap_or(&self.message)
    }

    /// The arguments for C, made once in a call.
    pub fn parsed(&mut self) -> Result<&(Vec<abi::Value>, Vec<abi::Value>), Error> {
        if self.arguments.is_none() {
            let found = split(message::decode(&self.message)?)?;
            let arguments = self.arena.values(&found.0)?;
            let keywords = self.arena.pairs(&found.1)?;
            self.arguments = Some((arguments, keywords));
        }
        self.arguments.as_ref().ok_or_else(|| Error::from("there is no call"))
    }

    /// What has begun then and is over now was a part of the call.
    pub fn note(&self, name: &str, begin: u64) {
        if let Some((trace, method)) = &self.spans {
            trace.note(name, begin, *method);
        }
    }

    /// A line of the log, in one write.
    pub fn log(&self, line: &str) {
        eprintln!("{}: {line}", self.function);
    }

    pub fn named(name: &str) -> CString {
        CString::new(name.replace('\0', "\\0")).unwrap_or_default()
    }
}
