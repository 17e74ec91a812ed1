//! The fields that the Windows Implementation Libraries add to the events of an activity (`wil::ActivityBase`,
//! wil/Tracelogging.h).
//!
//! HNS and HCS log through WIL. Used by tests that play them. Does not: name activities.

use super::record::Record;
use crate::event::{OPCODE_START, OPCODE_STOP};

/// How a WIL activity failed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Failure<'a> {
    /// HRESULT.
    pub hresult: u32,
    /// Source file.
    pub file: &'a str,
    /// Line in it.
    pub line: u32,
    /// Module, `hostnetsvc.dll` for example.
    pub module: &'a str,
    /// The error's text.
    pub message: &'a str,
    /// Names of the activities around it, `\RequestHandler\EndpointActivity`.
    pub call_context: &'a str,
}

impl Record {
    /// Start of a WIL activity.
    #[must_use]
    pub fn wil_start(self) -> Self {
        let thread = self.header.tid;
        self.opcode(OPCODE_START)
            .structure("wilActivity", 1)
            .u32("threadId", thread)
    }

    /// Stop of a WIL activity that went well, or with a result that is no failure.
    #[must_use]
    pub fn wil_stop(self, hresult: u32) -> Self {
        let thread = self.header.tid;
        self.opcode(OPCODE_STOP)
            .structure("wilActivity", 2)
            .hresult("hresult", hresult)
            .u32("threadId", thread)
    }

    /// Stop of a WIL activity that failed; for `ActivityError` set opcode 0 after it.
    #[must_use]
    pub fn wil_failed(self, failure: Failure<'_>) -> Self {
        let thread = self.header.tid;
        self.opcode(OPCODE_STOP)
            .structure("wilActivity", 14)
            .hresult("hresult", failure.hresult)
            .ansi("fileName", failure.file)
            .u32("lineNumber", failure.line)
            .ansi("module", failure.module)
            .u32("failureType", 1)
            .text("message", failure.message)
            .u32("threadId", thread)
            .ansi("callContext", failure.call_context)
            .u32("originatingContextId", 1)
            .ansi("originatingContextName", "")
            .text("originatingContextMessage", "")
            .u32("currentContextId", 1)
            .ansi("currentContextName", "")
            .text("currentContextMessage", "")
    }
}
