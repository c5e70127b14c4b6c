//! Frames of streams: DATA, RST_STREAM, PRIORITY.

use bytes::Bytes;

use super::{Checked, Connection, Fault, connection_error};
use crate::config::CONNECTION_WINDOW;
use crate::event::Event;
use crate::frame::{ErrorCode, FrameHeader, flag, read_u32};
use crate::request::RequestBuilder;

impl<B: RequestBuilder> Connection<B> {
    pub(super) fn data(&mut self, header: FrameHeader, payload: &[u8]) -> Checked {
        if header.stream == 0 {
            return connection_error(ErrorCode::ProtocolError, "DATA on stream 0");
        }
        let data = unpadded(header, payload)?;
        let len = header.len as i64;
        self.take_from_window(len)?;
        let (id, end_stream) = (header.stream, header.has(flag::END_STREAM));
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.check_closed(id);
        };
        let incoming = &mut stream.incoming;
        if incoming.ended {
            return Err(Fault::Stream(id, ErrorCode::StreamClosed));
        }
        incoming.window -= len;
        if incoming.window < 0 {
            return Err(Fault::Stream(id, ErrorCode::FlowControlError));
        }
        incoming.ended = end_stream;
        if let Some(left) = &mut incoming.content_left {
            let rest = left.checked_sub(data.len() as u64);
            *left = rest.ok_or(Fault::Stream(id, ErrorCode::ProtocolError))?;
            if end_stream && *left > 0 {
                return Err(Fault::Stream(id, ErrorCode::ProtocolError));
            }
        }
        // The padding is not delivered, so its flow-control window is released here.
        self.release(id, len - data.len() as i64);
        if end_stream || !data.is_empty() {
            let bytes = Bytes::copy_from_slice(data);
            self.events.push_back(Event::Data { stream: id, bytes, end_stream });
        }
        Ok(())
    }

    /// Counts bytes against the connection's window, and refills it.
    fn take_from_window(&mut self, len: i64) -> Checked {
        self.window -= len;
        if self.window < 0 {
            let message = "DATA exceeds the connection's window";
            return connection_error(ErrorCode::FlowControlError, message);
        }
        self.received += len;
        if self.received >= CONNECTION_WINDOW / 2 {
            self.sender.window_update(0, self.received);
            self.window += std::mem::take(&mut self.received);
        }
        Ok(())
    }

    /// Checks whether a frame is allowed on a stream that is not open.
    fn check_closed(&mut self, id: u32) -> Checked {
        if id > self.last_stream || id.is_multiple_of(2) {
            let message = "frame on a stream that was never opened";
            return connection_error(ErrorCode::ProtocolError, message);
        }
        match self.abandoned.contains(&id) {
            true => Ok(()),
            false => Err(Fault::Stream(id, ErrorCode::StreamClosed)),
        }
    }

    pub(super) fn rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> Checked {
        let Some(code) = read_u32(payload).filter(|_| payload.len() == 4) else {
            return connection_error(ErrorCode::FrameSizeError, "RST_STREAM has a wrong size");
        };
        if header.stream == 0 || header.stream > self.last_stream {
            let message = "RST_STREAM on a stream that was never opened";
            return connection_error(ErrorCode::ProtocolError, message);
        }
        self.abandoned.remove(&header.stream);
        self.remove_reset(header.stream, code);
        Ok(())
    }

    /// Resets a stream because of an invalid frame.
    pub(super) fn reset_invalid(&mut self, id: u32, code: ErrorCode) {
        self.sender.rst_stream(id, code);
        let ended = self.streams.get(&id).is_some_and(|stream| stream.incoming.ended);
        self.remove_reset(id, code as u32);
        if !ended {
            self.abandon(id);
        }
    }

    fn remove_reset(&mut self, id: u32, code: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            self.sender.discard(&stream);
            self.events.push_back(Event::Reset { stream: id, code });
        }
    }
}

pub(super) fn priority(header: FrameHeader, payload: &[u8]) -> Checked {
    if header.stream == 0 {
        return connection_error(ErrorCode::ProtocolError, "PRIORITY on stream 0");
    }
    if payload.len() != 5 {
        return Err(Fault::Stream(header.stream, ErrorCode::FrameSizeError));
    }
    if dependency(payload) == header.stream {
        return Err(Fault::Stream(header.stream, ErrorCode::ProtocolError));
    }
    Ok(())
}

/// The stream that a priority depends on. Priorities are otherwise ignored.
pub(super) fn dependency(priority: &[u8]) -> u32 {
    read_u32(priority).unwrap_or_default() & 0x7fff_ffff
}

/// Returns the payload without its padding.
pub(super) fn unpadded(header: FrameHeader, payload: &[u8]) -> Checked<&[u8]> {
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
