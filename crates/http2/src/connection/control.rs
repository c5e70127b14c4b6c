//! Frames of the connection: SETTINGS, PING, WINDOW_UPDATE.

use std::time::Instant;

use super::{Checked, Connection, Fault, connection_error};
use crate::config::MAX_WINDOW;
use crate::frame::{ErrorCode, FrameHeader, MAX_PAYLOAD_BYTES, flag, read_u32, setting};
use crate::liveness::PingVerdict;
use crate::request::RequestBuilder;

/// How often a client may change the window of its streams, which costs time for each
/// open stream. Clients that measure their bandwidth do it a few dozen times.
const MAX_WINDOW_CHANGES: usize = 1000;

impl<B: RequestBuilder> Connection<B> {
    pub(super) fn settings(&mut self, header: FrameHeader, payload: &[u8]) -> Checked {
        if header.stream != 0 {
            return connection_error(ErrorCode::ProtocolError, "SETTINGS on a stream");
        }
        let ack = header.has(flag::ACK);
        let valid = if ack { payload.is_empty() } else { payload.len().is_multiple_of(6) };
        if !valid {
            return connection_error(ErrorCode::FrameSizeError, "SETTINGS has a wrong size");
        }
        if ack {
            return Ok(());
        }
        let mut window = None;
        for entry in payload.chunks_exact(6) {
            let name = u16::from_be_bytes([entry[0], entry[1]]);
            let value = read_u32(&entry[2..]).unwrap_or_default();
            self.setting(name, value)?;
            if name == setting::INITIAL_WINDOW_SIZE {
                window = Some(value);
            }
        }
        self.sender.settings_ack();
        window.map_or(Ok(()), |window| self.initial_window(window.into()))
    }

    fn setting(&mut self, name: u16, value: u32) -> Checked {
        let frame_sizes = MAX_PAYLOAD_BYTES..1 << 24;
        match name {
            setting::HEADER_TABLE_SIZE => self.sender.set_table_bytes(value),
            setting::ENABLE_PUSH if value > 1 => {
                let message = "ENABLE_PUSH is neither 0 nor 1";
                return connection_error(ErrorCode::ProtocolError, message);
            }
            setting::INITIAL_WINDOW_SIZE if i64::from(value) > MAX_WINDOW => {
                let message = "INITIAL_WINDOW_SIZE is too large";
                return connection_error(ErrorCode::FlowControlError, message);
            }
            setting::MAX_FRAME_SIZE if !frame_sizes.contains(&(value as usize)) => {
                let message = "MAX_FRAME_SIZE is out of range";
                return connection_error(ErrorCode::ProtocolError, message);
            }
            _ => {}
        }
        Ok(())
    }

    fn initial_window(&mut self, window: i64) -> Checked {
        if window != self.sender.initial_window() {
            self.window_changes += 1;
        }
        if self.window_changes > MAX_WINDOW_CHANGES {
            let message = "INITIAL_WINDOW_SIZE changed too often";
            return connection_error(ErrorCode::EnhanceYourCalm, message);
        }
        match self.sender.set_initial_window(window, &mut self.streams) {
            true => Ok(()),
            false => connection_error(ErrorCode::FlowControlError, "window exceeds its limit"),
        }
    }

    pub(super) fn ping(&mut self, header: FrameHeader, payload: &[u8], now: Instant) -> Checked {
        if header.stream != 0 {
            return connection_error(ErrorCode::ProtocolError, "PING on a stream");
        }
        let Ok(opaque) = <[u8; 8]>::try_from(payload) else {
            return connection_error(ErrorCode::FrameSizeError, "PING has a wrong size");
        };
        if header.has(flag::ACK) {
            return Ok(());
        }
        let (wrote, busy) = (self.sender.take_wrote(), !self.streams.is_empty());
        match self.liveness.client_pinged(wrote, busy, now) {
            PingVerdict::Acknowledge => {
                self.sender.ping_ack(opaque);
                Ok(())
            }
            // gRPC clients look for this text.
            PingVerdict::TooMany => connection_error(ErrorCode::EnhanceYourCalm, "too_many_pings"),
        }
    }

    pub(super) fn window_update(&mut self, header: FrameHeader, payload: &[u8]) -> Checked {
        let Some(increment) = read_u32(payload).filter(|_| payload.len() == 4) else {
            return connection_error(ErrorCode::FrameSizeError, "WINDOW_UPDATE has a wrong size");
        };
        let increment = i64::from(increment & 0x7fff_ffff);
        match header.stream {
            0 => self.widen_connection(increment),
            stream => self.widen_stream(stream, increment),
        }
    }

    fn widen_connection(&mut self, increment: i64) -> Checked {
        if increment == 0 {
            return connection_error(ErrorCode::ProtocolError, "WINDOW_UPDATE by 0");
        }
        match self.sender.widen(increment) {
            true => Ok(()),
            false => connection_error(ErrorCode::FlowControlError, "window exceeds its limit"),
        }
    }

    fn widen_stream(&mut self, id: u32, increment: i64) -> Checked {
        let Some(stream) = self.streams.get_mut(&id) else {
            // The client may have sent it before it learned that the stream has ended.
            if id <= self.last_stream {
                return Ok(());
            }
            let message = "frame on a stream that was never opened";
            return connection_error(ErrorCode::ProtocolError, message);
        };
        if increment == 0 {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        stream.outgoing.window += increment;
        if stream.outgoing.window > MAX_WINDOW {
            return Err(Fault::Stream(id, ErrorCode::FlowControlError));
        }
        self.sender.schedule(id, &mut stream.outgoing);
        Ok(())
    }
}
