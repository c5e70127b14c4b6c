//! Finds frames in the input and dispatches them.

use std::time::Instant;

use super::{Checked, Connection, Fault, Stage, connection_error};
use crate::event::ConnectionError;
use crate::frame::{ErrorCode, FrameHeader, HEADER_BYTES, MAX_PAYLOAD_BYTES, PREFACE, flag, kind};
use crate::request::RequestBuilder;

impl<B: RequestBuilder> Connection<B> {
    /// Handles all complete frames, and keeps the rest for the next call.
    pub(super) fn receive_bytes(
        &mut self,
        input: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        if self.rest.is_empty() {
            let used = self.frames(input, context, now)?;
            self.rest.extend_from_slice(&input[used..]);
            return Ok(());
        }
        self.rest.extend_from_slice(input);
        let mut rest = std::mem::take(&mut self.rest);
        let used = self.frames(&rest, context, now)?;
        rest.drain(..used);
        if !rest.is_empty() {
            self.rest = rest;
        }
        Ok(())
    }

    /// Handles all complete frames of `input` and returns their size in bytes.
    fn frames(
        &mut self,
        input: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> Result<usize, ConnectionError> {
        let mut used = 0;
        if self.stage == Stage::Preface {
            let len = input.len().min(PREFACE.len());
            if input[..len] != PREFACE[..len] {
                let code = ErrorCode::ProtocolError;
                return Err(ConnectionError { code, message: "invalid connection preface" });
            }
            if len < PREFACE.len() {
                return Ok(0);
            }
            (self.stage, used) = (Stage::FirstSettings, len);
        }
        while let Some(header) = FrameHeader::peek(&input[used..]) {
            if header.len > MAX_PAYLOAD_BYTES {
                let code = ErrorCode::FrameSizeError;
                return Err(ConnectionError { code, message: "frame too large" });
            }
            let start = used + HEADER_BYTES;
            let Some(payload) = input.get(start..start + header.len) else { break };
            used = start + header.len;
            match self.frame(header, payload, context, now) {
                Ok(()) => {}
                Err(Fault::Stream(stream, code)) => self.reset_invalid(stream, code),
                Err(Fault::Connection(error)) => return Err(error),
            }
        }
        Ok(used)
    }

    fn frame(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> Checked {
        const PROTOCOL: ErrorCode = ErrorCode::ProtocolError;
        if self.stage == Stage::FirstSettings {
            if header.kind != kind::SETTINGS || header.has(flag::ACK) {
                return connection_error(PROTOCOL, "first frame is not SETTINGS");
            }
            self.stage = Stage::Open;
        }
        if let Some(block) = &self.block
            && (header.kind != kind::CONTINUATION || header.stream != block.stream)
        {
            return connection_error(PROTOCOL, "block of header fields interrupted");
        }
        match header.kind {
            kind::DATA => self.data(header, payload),
            kind::HEADERS => self.headers(header, payload, context),
            kind::CONTINUATION => self.continuation(header, payload, context),
            kind::PRIORITY => super::streams::priority(header, payload),
            kind::RST_STREAM => self.rst_stream(header, payload),
            kind::SETTINGS => self.settings(header, payload),
            kind::PING => self.ping(header, payload, now),
            kind::WINDOW_UPDATE => self.window_update(header, payload),
            kind::GOAWAY if header.stream != 0 => connection_error(PROTOCOL, "GOAWAY on a stream"),
            kind::GOAWAY => {
                self.draining = true;
                Ok(())
            }
            kind::PUSH_PROMISE => connection_error(PROTOCOL, "PUSH_PROMISE from a client"),
            _ => Ok(()),
        }
    }
}
