//! Frames of the connection: SETTINGS, PING, WINDOW_UPDATE.

use std::time::Instant;

use super::{Connection, Fault, FrameResult, connection_error};
use crate::config::{MAX_WINDOW, Role};
use crate::event::Event;
use crate::frame::{ErrorCode, FrameHeader, MAX_PAYLOAD_BYTES, flag, read_u32, setting};
use crate::liveness::PingVerdict;
use crate::request::RequestBuilder;
use crate::sender::DRAIN_PING;

impl<B: RequestBuilder> Connection<B> {
    pub(super) fn handle_settings(&mut self, header: FrameHeader, payload: &[u8]) -> FrameResult {
        if header.stream != 0 {
            return connection_error(ErrorCode::ProtocolError, "SETTINGS on a stream");
        }
        let ack = header.has(flag::ACK);
        let valid = if ack { payload.is_empty() } else { payload.len().is_multiple_of(6) };
        if !valid {
            return connection_error(ErrorCode::FrameSizeError, "SETTINGS has a wrong size");
        }
        self.waste.add(1)?;
        if ack {
            return Ok(());
        }
        let mut window = None;
        for entry in payload.chunks_exact(6) {
            let name = u16::from_be_bytes([entry[0], entry[1]]);
            let value = read_u32(&entry[2..]).unwrap_or_default();
            self.apply_setting(name, value)?;
            if name == setting::INITIAL_WINDOW_SIZE {
                window = Some(value);
            }
        }
        self.sender.settings_ack();
        window.map_or(Ok(()), |window| self.apply_initial_window(window.into()))
    }

    fn apply_setting(&mut self, name: u16, value: u32) -> FrameResult {
        let frame_sizes = MAX_PAYLOAD_BYTES..1 << 24;
        match name {
            setting::HEADER_TABLE_SIZE => self.sender.set_table_bytes(value),
            setting::MAX_CONCURRENT_STREAMS => self.peer_max_streams = value,
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

    fn apply_initial_window(&mut self, window: i64) -> FrameResult {
        if window == self.sender.initial_window() {
            return Ok(());
        }
        // A change costs time for each open stream. A client that measures its bandwidth makes
        // about ten changes.
        self.waste.add_window_changes(self.streams.len())?;
        match self.sender.set_initial_window(window, &mut self.streams) {
            true => Ok(()),
            false => {
                let message = "INITIAL_WINDOW_SIZE makes the window of a stream exceed its limit";
                connection_error(ErrorCode::FlowControlError, message)
            }
        }
    }

    pub(super) fn handle_ping(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: Instant,
    ) -> FrameResult {
        if header.stream != 0 {
            return connection_error(ErrorCode::ProtocolError, "PING on a stream");
        }
        let Ok(opaque) = <[u8; 8]>::try_from(payload) else {
            return connection_error(ErrorCode::FrameSizeError, "PING has a wrong size");
        };
        if header.has(flag::ACK) {
            return self.handle_ping_ack(&opaque);
        }
        let (responded, busy) = (self.sender.take_responded(), !self.streams.is_empty());
        match self.liveness.client_pinged(responded, busy, now) {
            PingVerdict::Acknowledge => {
                self.sender.ping_ack(opaque);
                Ok(())
            }
            PingVerdict::Useless => {
                self.sender.ping_ack(opaque);
                Ok(self.waste.add(1)?)
            }
            // gRPC clients compare the text: they then ping less often.
            PingVerdict::TooMany => connection_error(ErrorCode::EnhanceYourCalm, "too_many_pings"),
        }
    }

    /// Handles a GOAWAY frame of the peer. A server names the last stream that it processes or
    /// will process.
    pub(super) fn handle_go_away(&mut self, header: FrameHeader, payload: &[u8]) -> FrameResult {
        if header.stream != 0 {
            return connection_error(ErrorCode::ProtocolError, "GOAWAY on a stream");
        }
        let Some(last) = read_u32(payload).filter(|_| payload.len() >= 8) else {
            return connection_error(ErrorCode::FrameSizeError, "GOAWAY has a wrong size");
        };
        self.waste.add(1)?;
        self.draining = true;
        if self.role == Role::Client {
            let last = last & 0x7fff_ffff;
            let mut left_out: Vec<u32> =
                self.streams.keys().copied().filter(|id| *id > last).collect();
            left_out.sort_unstable();
            for stream in left_out {
                self.forget(stream);
                self.events.push_back(Event::Unprocessed { stream });
            }
        }
        Ok(())
    }

    fn handle_ping_ack(&mut self, opaque: &[u8; 8]) -> FrameResult {
        if !self.sender.ping_acknowledged(opaque) {
            return Ok(self.waste.add(1)?);
        }
        if opaque == DRAIN_PING {
            self.finish_drain();
        }
        Ok(())
    }

    pub(super) fn handle_window_update(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> FrameResult {
        let Some(increment) = read_u32(payload).filter(|_| payload.len() == 4) else {
            return connection_error(ErrorCode::FrameSizeError, "WINDOW_UPDATE has a wrong size");
        };
        let increment = i64::from(increment & 0x7fff_ffff);
        match header.stream {
            0 => self.enlarge_connection_window(increment),
            stream => self.enlarge_stream_window(stream, increment),
        }
    }

    fn enlarge_connection_window(&mut self, increment: i64) -> FrameResult {
        if increment == 0 {
            return connection_error(ErrorCode::ProtocolError, "WINDOW_UPDATE with increment 0");
        }
        match self.sender.enlarge_window(increment) {
            true => Ok(()),
            false => {
                let message = "WINDOW_UPDATE makes the connection's window exceed its limit";
                connection_error(ErrorCode::FlowControlError, message)
            }
        }
    }

    fn enlarge_stream_window(&mut self, id: u32, increment: i64) -> FrameResult {
        let Some(stream) = self.streams.get_mut(&id) else {
            // The client may have sent the frame before it learned that the stream has
            // ended. Some clients send hundreds of them for the end of a large response, so
            // they do not count as useless.
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
