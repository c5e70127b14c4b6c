//! Blocks of header fields: HEADERS and CONTINUATION.

use super::field_block::FieldBlock;
use super::streams::{dependency, unpadded};
use super::{Checked, Connection, Fault, connection_error};
use crate::config::{MAX_FIELDS_BYTES, STREAM_WINDOW};
use crate::event::{ConnectionError, Event};
use crate::fields::Fields;
use crate::frame::{ErrorCode, FrameHeader, HEADER_BYTES, flag};
use crate::hpack::Malformed;
use crate::request::{Incomplete, RequestBuilder, is_trailer};
use crate::stream::Stream;

impl<B: RequestBuilder> Connection<B> {
    pub(super) fn headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        context: &B::Context,
    ) -> Checked {
        let stream = header.stream;
        if stream.is_multiple_of(2) {
            let message = "HEADERS on a stream that a client cannot open";
            return connection_error(ErrorCode::ProtocolError, message);
        }
        let mut fields = unpadded(header, payload)?;
        let mut depends_on_itself = false;
        if header.has(flag::PRIORITY) {
            let Some((priority, rest)) = fields.split_at_checked(5) else {
                let message = "HEADERS too short for its priority";
                return connection_error(ErrorCode::FrameSizeError, message);
            };
            fields = rest;
            depends_on_itself = dependency(priority) == stream;
        }
        let end_stream = header.has(flag::END_STREAM);
        let mut block = FieldBlock { stream, end_stream, depends_on_itself, bytes: Vec::new() };
        if header.has(flag::END_HEADERS) {
            return self.block(&block, fields, context);
        }
        block.bytes = fields.to_vec();
        self.block = Some(block);
        Ok(())
    }

    pub(super) fn continuation(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        context: &B::Context,
    ) -> Checked {
        let Some(mut block) = self.block.take() else {
            let message = "CONTINUATION without HEADERS";
            return connection_error(ErrorCode::ProtocolError, message);
        };
        // A frame counts even if it is empty.
        if block.bytes.len() + payload.len() + HEADER_BYTES > MAX_FIELDS_BYTES {
            let message = "block of header fields too large";
            return connection_error(ErrorCode::EnhanceYourCalm, message);
        }
        block.bytes.extend_from_slice(payload);
        if header.has(flag::END_HEADERS) {
            let bytes = std::mem::take(&mut block.bytes);
            return self.block(&block, &bytes, context);
        }
        if payload.is_empty() {
            return connection_error(ErrorCode::EnhanceYourCalm, "empty CONTINUATION");
        }
        self.block = Some(block);
        Ok(())
    }

    /// Handles a complete block: a request, or trailers. It is decoded even if the stream
    /// is refused, because later blocks depend on the decoder's state.
    fn block(&mut self, block: &FieldBlock, bytes: &[u8], context: &B::Context) -> Checked {
        let id = block.stream;
        if id <= self.last_stream {
            return self.trailers(id, block.end_stream, bytes);
        }
        let mut request = Incomplete::<B>::new();
        let field = |name: &[u8], value: &[u8]| request.field(context, name, value);
        self.decoder.decode(bytes, field).map_err(undecodable)?;
        self.last_stream = id;
        if block.depends_on_itself {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        if self.draining || self.streams.len() >= self.max_streams {
            return Err(Fault::Stream(id, ErrorCode::RefusedStream));
        }
        self.open(id, request, block.end_stream, context)
    }

    fn open(
        &mut self,
        id: u32,
        request: Incomplete<B>,
        end_stream: bool,
        context: &B::Context,
    ) -> Checked {
        let complete = request.finish(self.connect);
        let complete = complete.ok_or(Fault::Stream(id, ErrorCode::ProtocolError))?;
        let length = complete.content_length;
        let mut stream = Stream::new(STREAM_WINDOW, self.sender.initial_window(), length);
        stream.incoming.ended = end_stream;
        if end_stream && length.is_some_and(|length| length > 0) {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        self.streams.insert(id, stream);
        self.events.push_back(Event::Request {
            stream: id,
            request: complete.builder.build(context),
            fields_too_large: complete.fields_too_large,
            end_stream,
        });
        Ok(())
    }

    fn trailers(&mut self, id: u32, end_stream: bool, bytes: &[u8]) -> Checked {
        let (mut valid, mut size, mut fields) = (end_stream, 0, Fields::default());
        let field = |name: &[u8], value: &[u8]| {
            size += name.len() + value.len();
            valid = valid && size <= MAX_FIELDS_BYTES && is_trailer(name);
            if valid {
                fields.push(name, value);
            }
        };
        self.decoder.decode(bytes, field).map_err(undecodable)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            if self.abandoned.contains(&id) || self.abandoned_overflow {
                return Ok(());
            }
            return connection_error(ErrorCode::StreamClosed, "HEADERS on a closed stream");
        };
        let incoming = &mut stream.incoming;
        if incoming.ended {
            return Err(Fault::Stream(id, ErrorCode::StreamClosed));
        }
        incoming.ended = valid;
        if !valid || incoming.content_left.is_some_and(|left| left > 0) {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        self.events.push_back(Event::Trailers { stream: id, fields });
        Ok(())
    }
}

fn undecodable(_: Malformed) -> Fault {
    let message = "block of header fields cannot be decoded";
    Fault::Connection(ConnectionError { code: ErrorCode::CompressionError, message })
}
