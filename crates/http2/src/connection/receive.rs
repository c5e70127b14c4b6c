//! Splits the input into frames and dispatches them.

use std::time::Instant;

use super::waste::INVALID_FRAME_WASTE;
use super::{Connection, Fault, FrameResult, Stage, connection_error};
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
        if self.incomplete_frame.is_empty() {
            let used = self.handle_frames(input, context, now)?;
            self.incomplete_frame.extend_from_slice(&input[used..]);
            return Ok(());
        }
        self.incomplete_frame.extend_from_slice(input);
        let mut rest = std::mem::take(&mut self.incomplete_frame);
        let used = self.handle_frames(&rest, context, now)?;
        rest.drain(..used);
        if !rest.is_empty() {
            self.incomplete_frame = rest;
        }
        Ok(())
    }

    /// Handles all complete frames of `input` and returns their size in bytes.
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
            let Some(payload) = input.get(start..start + header.len) else { break };
            used = start + header.len;
            if let Err(fault) = self.handle_frame(header, payload, context, now) {
                self.handle_fault(fault)?;
            }
        }
        Ok(used)
    }

    fn handle_fault(&mut self, fault: Fault) -> Result<(), ConnectionError> {
        let waste = match fault {
            Fault::Connection(error) => return Err(error),
            Fault::Stream(stream, code) => {
                self.reset_after_invalid_frame(stream, code);
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
            kind::GOAWAY if header.stream != 0 => connection_error(PROTOCOL, "GOAWAY on a stream"),
            kind::GOAWAY => {
                self.draining = true;
                Ok(())
            }
            kind::PUSH_PROMISE => connection_error(PROTOCOL, "PUSH_PROMISE from a client"),
            _ => Ok(self.waste.add(1)?),
        }
    }
}
