//! Blocks of header fields: HEADERS and CONTINUATION.

use super::field_block::FieldBlock;
use super::streams::{stream_dependency, unpadded};
use super::waste::REQUEST_CREDIT;
use super::{Connection, Fault, FrameResult, connection_error};
use crate::config::Role;
use crate::event::Event;
use crate::fields::Fields;
use crate::frame::{ErrorCode, FrameHeader, HEADER_BYTES, flag};
use crate::hpack::Malformed;
use crate::request::{FIELD_OVERHEAD_BYTES, HeadDecoder, RequestBuilder, is_regular_field};
use crate::stream::Stream;

impl<B: RequestBuilder> Connection<B> {
    pub(super) fn handle_headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        context: &B::Context,
    ) -> FrameResult {
        let stream = header.stream;
        if stream.is_multiple_of(2) {
            let message = "HEADERS on a stream that a client cannot open";
            return connection_error(ErrorCode::ProtocolError, message);
        }
        let mut fields = unpadded(header, payload)?;
        let mut depends_on_itself = false;
        if header.has(flag::PRIORITY) {
            let Some((priority, rest)) = fields.split_at_checked(5) else {
                let message = "HEADERS too short for its priority fields";
                return connection_error(ErrorCode::FrameSizeError, message);
            };
            fields = rest;
            depends_on_itself = stream_dependency(priority) == stream;
        }
        let end_stream = header.has(flag::END_STREAM);
        let received_bytes = HEADER_BYTES + payload.len();
        let mut block =
            FieldBlock { stream, end_stream, depends_on_itself, bytes: Vec::new(), received_bytes };
        if header.has(flag::END_HEADERS) {
            return self.handle_block(&block, fields, context);
        }
        block.bytes = fields.to_vec();
        self.incomplete_block = Some(block);
        Ok(())
    }

    pub(super) fn handle_continuation(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        context: &B::Context,
    ) -> FrameResult {
        let Some(mut block) = self.incomplete_block.take() else {
            let message = "CONTINUATION without HEADERS";
            return connection_error(ErrorCode::ProtocolError, message);
        };
        // The frame headers count too, so that many small frames reach the limit as well.
        block.received_bytes += HEADER_BYTES + payload.len();
        if block.received_bytes > self.limits.fields_bytes {
            let message = "block of header fields too large";
            return connection_error(ErrorCode::EnhanceYourCalm, message);
        }
        block.bytes.extend_from_slice(payload);
        if header.has(flag::END_HEADERS) {
            let bytes = std::mem::take(&mut block.bytes);
            return self.handle_block(&block, &bytes, context);
        }
        if payload.is_empty() {
            return connection_error(ErrorCode::EnhanceYourCalm, "empty CONTINUATION");
        }
        self.incomplete_block = Some(block);
        Ok(())
    }

    /// Handles a complete block: a request or trailers. The block is decoded even if its
    /// stream is refused, because it changes the dynamic table that later blocks refer
    /// to.
    fn handle_block(
        &mut self,
        block: &FieldBlock,
        bytes: &[u8],
        context: &B::Context,
    ) -> FrameResult {
        let id = block.stream;
        if self.role == Role::Client {
            return self.handle_response_block(id, block.end_stream, bytes, context);
        }
        if id <= self.last_stream {
            return self.handle_trailers(id, block.end_stream, bytes);
        }
        let mut request = HeadDecoder::<B>::new(self.role, self.limits);
        let field = |name: &[u8], value: &[u8]| request.field(context, name, value);
        check_decoded(self.decoder.decode_while(bytes, field))?;
        self.waste.add_block(bytes.len(), request.bytes)?;
        self.last_stream = id;
        if block.depends_on_itself {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        if self.draining || self.streams.len() >= self.max_streams {
            return Err(Fault::Stream(id, ErrorCode::RefusedStream));
        }
        self.open_stream(id, request, block.end_stream, context)
    }

    fn open_stream(
        &mut self,
        id: u32,
        request: HeadDecoder<B>,
        end_stream: bool,
        context: &B::Context,
    ) -> FrameResult {
        let complete = request.finish(self.connect_method);
        let complete = complete.ok_or(Fault::Stream(id, ErrorCode::ProtocolError))?;
        self.waste.reduce(REQUEST_CREDIT);
        let length = complete.content_length;
        let window = self.limits.stream_window.into();
        let mut stream = Stream::new(window, self.sender.initial_window(), length);
        stream.incoming.ended = end_stream;
        if end_stream && length.is_some_and(|length| length > 0) {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        self.streams.insert(id, stream);
        self.waiting_requests += 1;
        self.events.push_back(Event::Request {
            stream: id,
            request: complete.builder.build(context),
            fields_too_large: complete.fields_too_large,
            end_stream,
        });
        Ok(())
    }

    /// Handles a block of a server: the head of a response, an informational response before it,
    /// or trailers. It is decoded even if its stream is no longer open.
    fn handle_response_block(
        &mut self,
        id: u32,
        end_stream: bool,
        bytes: &[u8],
        context: &B::Context,
    ) -> FrameResult {
        if id > self.last_stream {
            let message = "HEADERS on a stream that was never opened";
            return connection_error(ErrorCode::ProtocolError, message);
        }
        if self.streams.get(&id).is_none_or(|stream| stream.incoming.head_received) {
            return self.handle_trailers(id, end_stream, bytes);
        }
        let mut head = HeadDecoder::<B>::new(self.role, self.limits);
        let field = |name: &[u8], value: &[u8]| head.field(context, name, value);
        check_decoded(self.decoder.decode_while(bytes, field))?;
        self.waste.add_block(bytes.len(), head.bytes)?;
        let complete = head.finish(self.connect_method);
        let complete = complete.filter(|head| !head.fields_too_large);
        let complete = complete.ok_or(Fault::Stream(id, ErrorCode::ProtocolError))?;
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        if complete.status < 200 {
            return match end_stream {
                true => Err(Fault::Stream(id, ErrorCode::ProtocolError)),
                false => Ok(self.waste.add(1)?),
            };
        }
        let incoming = &mut stream.incoming;
        let has_content = !incoming.answers_head && !matches!(complete.status, 204 | 304);
        (incoming.head_received, incoming.ended) = (true, end_stream);
        incoming.content_bytes_left = complete.content_length.filter(|_| has_content);
        if end_stream && incoming.content_bytes_left.is_some_and(|left| left > 0) {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        self.waste.reduce(REQUEST_CREDIT);
        let response = complete.builder.build(context);
        self.events.push_back(Event::Response { stream: id, response, end_stream });
        if end_stream {
            self.body_received(id);
        }
        Ok(())
    }

    /// Validates trailers. A server discards them. They are decoded even if their stream is no
    /// longer open.
    fn handle_trailers(&mut self, id: u32, end_stream: bool, bytes: &[u8]) -> FrameResult {
        let (mut valid, mut size) = (end_stream, 0);
        let (limits, is_client) = (self.limits, self.role == Role::Client);
        let mut fields = Fields::default();
        let field = |name: &[u8], value: &[u8]| {
            size += name.len() + value.len() + FIELD_OVERHEAD_BYTES;
            valid = valid && size <= limits.fields_bytes && is_regular_field(name, value);
            if valid && is_client {
                fields.push(name, value);
            }
            size <= limits.decoded_bytes()
        };
        check_decoded(self.decoder.decode_while(bytes, field))?;
        self.waste.add_block(bytes.len(), size)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            if is_client || self.abandoned.contains(&id) || self.abandoned_overflow {
                return Ok(self.waste.add(1)?);
            }
            return connection_error(ErrorCode::StreamClosed, "HEADERS on a closed stream");
        };
        let incoming = &mut stream.incoming;
        if incoming.ended {
            return Err(Fault::Stream(id, ErrorCode::StreamClosed));
        }
        incoming.ended = valid;
        if !valid || incoming.content_bytes_left.is_some_and(|left| left > 0) {
            return Err(Fault::Stream(id, ErrorCode::ProtocolError));
        }
        self.events.push_back(Event::Trailers { stream: id, fields });
        self.body_received(id);
        Ok(())
    }
}

/// Turns the result of decoding a block into a fault, unless all of it was decoded.
fn check_decoded(decoded: Result<bool, Malformed>) -> FrameResult {
    match decoded {
        Ok(true) => Ok(()),
        Ok(false) => {
            connection_error(ErrorCode::EnhanceYourCalm, "header fields far above the limit")
        }
        Err(Malformed) => {
            let message = "block of header fields cannot be decoded";
            connection_error(ErrorCode::CompressionError, message)
        }
    }
}
