//! Frames of streams: DATA, RST_STREAM, PRIORITY.

use bytes::Bytes;

use super::{Connection, Fault, FrameResult, connection_error};
use crate::config::{Refill, Role};
use crate::event::Event;
use crate::frame::{ErrorCode, FrameHeader, flag, read_u32};
use crate::request::RequestBuilder;
use crate::stream::Stream;

impl<B: RequestBuilder> Connection<B> {
    pub(super) fn handle_data(&mut self, header: FrameHeader, payload: &[u8]) -> FrameResult {
        if header.stream == 0 {
            return connection_error(ErrorCode::ProtocolError, "DATA on stream 0");
        }
        let data = unpadded(header, payload)?;
        let len = header.len as i64;
        self.consume_connection_window(len)?;
        let (id, end_stream) = (header.stream, header.has(flag::END_STREAM));
        let Some(stream) = self.streams.get_mut(&id) else {
            self.release_undelivered(len);
            return self.check_closed_stream(id);
        };
        let incoming = &mut stream.incoming;
        // Counted before anything fails, so that the end of the stream releases it.
        incoming.held += len;
        if incoming.ended {
            return Err(Fault::Stream(id, ErrorCode::StreamClosed));
        }
        incoming.window -= len;
        if incoming.window < 0 {
            return Err(Fault::Stream(id, ErrorCode::FlowControlError));
        }
        incoming.ended = end_stream;
        if let Some(left) = &mut incoming.content_bytes_left {
            let rest = left.checked_sub(data.len() as u64);
            *left = rest.ok_or(Fault::Stream(id, ErrorCode::ProtocolError))?;
            if end_stream && *left > 0 {
                return Err(Fault::Stream(id, ErrorCode::ProtocolError));
            }
        }
        // The padding is not delivered, so its flow-control window is released here.
        self.release(id, len - data.len() as i64);
        if data.is_empty() && !end_stream {
            return Ok(self.waste.add(1)?);
        }
        self.waste.reduce(1);
        let bytes = Bytes::copy_from_slice(data);
        self.events.push_back(Event::Data { stream: id, bytes, end_stream });
        if end_stream {
            self.body_received(id);
        }
        Ok(())
    }

    /// Ends a stream of a client after the whole response. If the request has not been sent
    /// completely, its rest is of no use.
    pub(super) fn body_received(&mut self, id: u32) {
        if self.role == Role::Server {
            return;
        }
        if self.streams.get(&id).is_some_and(|stream| !stream.outgoing.complete) {
            self.sender.rst_stream(id, ErrorCode::NoError);
        }
        self.forget(id);
    }

    /// Releases data that is not delivered to the caller.
    fn release_undelivered(&mut self, bytes: i64) {
        if self.limits.refill == Refill::OnRelease {
            self.refill_connection_window(bytes);
        }
    }

    /// Removes a stream. What the caller has not released by now counts as released.
    pub(super) fn remove(&mut self, id: u32) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.release_undelivered(stream.incoming.held);
        Some(stream)
    }

    /// Removes a stream without telling anybody.
    pub(super) fn forget(&mut self, id: u32) -> bool {
        let Some(stream) = self.remove(id) else { return false };
        if !stream.outgoing.complete {
            self.sender.discard_unsent(&stream);
        }
        true
    }

    /// Subtracts `len` bytes from the connection's window.
    fn consume_connection_window(&mut self, len: i64) -> FrameResult {
        self.receive_window -= len;
        if self.receive_window < 0 {
            let message = "DATA exceeds the connection's window";
            return connection_error(ErrorCode::FlowControlError, message);
        }
        if self.limits.refill == Refill::OnArrival {
            self.refill_connection_window(len);
        }
        Ok(())
    }

    pub(super) fn refill_connection_window(&mut self, bytes: i64) {
        self.received_bytes += bytes;
        if self.received_bytes >= i64::from(self.limits.connection_window) / 2 {
            self.sender.window_update(0, self.received_bytes);
            self.receive_window += std::mem::take(&mut self.received_bytes);
        }
    }

    /// Returns how to handle a DATA frame on a stream that is not open.
    fn check_closed_stream(&mut self, id: u32) -> FrameResult {
        if id > self.last_stream || id.is_multiple_of(2) {
            let message = "frame on a stream that was never opened";
            return connection_error(ErrorCode::ProtocolError, message);
        }
        match self.abandoned.contains(&id) {
            true => Ok(self.waste.add(1)?),
            false => Err(Fault::Stream(id, ErrorCode::StreamClosed)),
        }
    }

    pub(super) fn handle_rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> FrameResult {
        let Some(code) = read_u32(payload).filter(|_| payload.len() == 4) else {
            return connection_error(ErrorCode::FrameSizeError, "RST_STREAM has a wrong size");
        };
        if header.stream == 0 || header.stream > self.last_stream {
            let message = "RST_STREAM on a stream that was never opened";
            return connection_error(ErrorCode::ProtocolError, message);
        }
        let abandoned = self.abandoned.remove(&header.stream);
        match self.remove_stream_and_report_reset(header.stream, code) || abandoned {
            true => Ok(()),
            false => Ok(self.waste.add(1)?),
        }
    }

    pub(super) fn handle_priority(&mut self, header: FrameHeader, payload: &[u8]) -> FrameResult {
        check_priority(header, payload)?;
        Ok(self.waste.add(1)?)
    }

    /// Resets a stream.
    pub(super) fn reset_stream(&mut self, id: u32, code: ErrorCode) {
        self.sender.rst_stream(id, code);
        let ended = self.streams.get(&id).is_some_and(|stream| stream.incoming.ended);
        self.remove_stream_and_report_reset(id, code as u32);
        if !ended {
            self.abandon(id);
        }
    }

    /// Returns whether the stream was open.
    fn remove_stream_and_report_reset(&mut self, id: u32, code: u32) -> bool {
        let open = self.forget(id);
        if open {
            self.events.push_back(Event::Reset { stream: id, code });
        }
        open
    }
}

/// Validates a PRIORITY frame. Priorities are otherwise ignored.
fn check_priority(header: FrameHeader, payload: &[u8]) -> FrameResult {
    if header.stream == 0 {
        return connection_error(ErrorCode::ProtocolError, "PRIORITY on stream 0");
    }
    if payload.len() != 5 {
        return Err(Fault::Stream(header.stream, ErrorCode::FrameSizeError));
    }
    if stream_dependency(payload) == header.stream {
        return Err(Fault::Stream(header.stream, ErrorCode::ProtocolError));
    }
    Ok(())
}

/// Returns the stream dependency, which the five bytes of a priority begin with.
pub(super) fn stream_dependency(priority: &[u8]) -> u32 {
    read_u32(priority).unwrap_or_default() & 0x7fff_ffff
}

/// Returns the payload without its padding.
pub(super) fn unpadded(header: FrameHeader, payload: &[u8]) -> FrameResult<&[u8]> {
    if !header.has(flag::PADDED) {
        return Ok(payload);
    }
    let unpadded = payload.split_first().and_then(|(padding, rest)| {
        let len = rest.len().checked_sub(usize::from(*padding))?;
        rest.get(..len)
    });
    match unpadded {
        Some(unpadded) => Ok(unpadded),
        None => connection_error(ErrorCode::ProtocolError, "padding exceeds the payload"),
    }
}
