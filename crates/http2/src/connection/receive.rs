//! Splits the input into frames and dispatches them.

use std::time::Instant;

use super::waste::INVALID_FRAME_WASTE;
use super::{Connection, Fault, FrameResult, Stage, connection_error};
use crate::config::Role;
use crate::event::ConnectionError;
use crate::frame::{ErrorCode, FrameHeader, HEADER_BYTES, MAX_PAYLOAD_BYTES, PREFACE, flag, kind};
use crate::request::RequestBuilder;

impl<B: RequestBuilder> Connection<B> {
    /// Handles all complete frames, and keeps the bytes after them for the next call.
    pub(super) fn receive_bytes(
        &mut self,
        input: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        if input.is_empty() {
            return Ok(());
        }
        let input = self.continue_long_data(input, context, now)?;
        if self.incomplete_frame.is_empty() {
            let used = self.handle_frames(input, context, now)?;
            self.incomplete_frame.extend_from_slice(input.get(used..).unwrap_or_default());
            return Ok(());
        }
        self.incomplete_frame.extend_from_slice(input);
        let mut rest = std::mem::take(&mut self.incomplete_frame);
        let used = self.handle_frames(&rest, context, now)?;
        rest.drain(..used.min(rest.len()));
        if !rest.is_empty() {
            self.incomplete_frame = rest;
        }
        Ok(())
    }

    /// Handles all complete frames of `input` and returns their size in bytes. It is larger than
    /// the input if the last frame was not complete and was handled nevertheless.
    fn handle_frames(
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
                return Err(ConnectionError {
                    code,
                    message: "frame exceeds SETTINGS_MAX_FRAME_SIZE",
                });
            }
            let start = used + HEADER_BYTES;
            let Some(payload) = input.get(start..start + header.len) else {
                if self.delivers_parts(header) {
                    return self.begin_long_data(header, &input[start..], context, now);
                }
                break;
            };
            used = start + header.len;
            self.handle_one(header, payload, context, now)?;
        }
        Ok(used)
    }

    fn handle_one(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        match self.handle_frame(header, payload, context, now) {
            Ok(()) => Ok(()),
            Err(fault) => self.handle_fault(fault),
        }
    }

    /// Whether the received part of this frame is delivered before its rest has arrived. A
    /// client receives mostly data, and need not keep a copy of a part.
    fn delivers_parts(&self, header: FrameHeader) -> bool {
        self.role == Role::Client
            && header.kind == kind::DATA
            && !header.has(flag::PADDED)
            && self.stage == Stage::Open
            && self.incomplete_block.is_none()
    }

    /// Handles the received part of a DATA frame as a frame of its own.
    fn begin_long_data(
        &mut self,
        header: FrameHeader,
        part: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> Result<usize, ConnectionError> {
        let rest = FrameHeader { len: header.len - part.len(), ..header };
        self.data_rest = Some(rest);
        if !part.is_empty() {
            let first = FrameHeader { len: part.len(), flags: 0, ..header };
            self.handle_one(first, part, context, now)?;
        }
        Ok(usize::MAX)
    }

    /// Handles the rest of a DATA frame whose first part was delivered. Returns what follows.
    fn continue_long_data<'a>(
        &mut self,
        input: &'a [u8],
        context: &B::Context,
        now: Instant,
    ) -> Result<&'a [u8], ConnectionError> {
        let Some(rest) = self.data_rest.take() else { return Ok(input) };
        let (part, behind) = input.split_at(input.len().min(rest.len));
        let left = rest.len - part.len();
        let flags = if left == 0 { rest.flags } else { 0 };
        if left > 0 {
            self.data_rest = Some(FrameHeader { len: left, ..rest });
        }
        self.handle_one(FrameHeader { len: part.len(), flags, ..rest }, part, context, now)?;
        Ok(behind)
    }

    fn handle_fault(&mut self, fault: Fault) -> Result<(), ConnectionError> {
        let waste = match fault {
            Fault::Connection(error) => return Err(error),
            Fault::Stream(stream, code) => {
                self.reset_stream(stream, code);
                match code {
                    // The client may not have learned yet that the stream is closed, or how
                    // many streams it may open.
                    ErrorCode::StreamClosed | ErrorCode::RefusedStream => 1,
                    _ => INVALID_FRAME_WASTE,
                }
            }
        };
        self.waste.add(waste)
    }

    fn handle_frame(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        context: &B::Context,
        now: Instant,
    ) -> FrameResult {
        const PROTOCOL: ErrorCode = ErrorCode::ProtocolError;
        if self.stage == Stage::FirstSettings {
            if header.kind != kind::SETTINGS || header.has(flag::ACK) {
                return connection_error(PROTOCOL, "first frame is not SETTINGS");
            }
            self.stage = Stage::Open;
        }
        if let Some(block) = &self.incomplete_block
            && (header.kind != kind::CONTINUATION || header.stream != block.stream)
        {
            return connection_error(
                PROTOCOL,
                "block of header fields interrupted by another frame",
            );
        }
        match header.kind {
            kind::DATA => self.handle_data(header, payload),
            kind::HEADERS => self.handle_headers(header, payload, context),
            kind::CONTINUATION => self.handle_continuation(header, payload, context),
            kind::PRIORITY => self.handle_priority(header, payload),
            kind::RST_STREAM => self.handle_rst_stream(header, payload),
            kind::SETTINGS => self.handle_settings(header, payload),
            kind::PING => self.handle_ping(header, payload, now),
            kind::WINDOW_UPDATE => self.handle_window_update(header, payload),
            kind::GOAWAY => self.handle_go_away(header, payload),
            kind::PUSH_PROMISE => connection_error(PROTOCOL, "PUSH_PROMISE is not allowed"),
            _ => Ok(self.waste.add(1)?),
        }
    }
}
