//! Bodies of answers. They are forwarded frame by frame as they arrive. Flow control on both sides
//! bounds what a slow reader holds.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::early_end::EarlyEnd;
use crate::exchange::Exchange;
use crate::forward::followed::Followed;
use crate::protect::HeldBody;

/// The body of an answer.
pub struct AnswerBody {
    source: Source,
    /// Ends with the body.
    exchange: Option<Exchange>,
}

enum Source {
    /// A text of the gateway.
    Own(Option<Bytes>),
    /// An API server's body.
    Upstream(Upstream),
}

/// The body of an API server's answer, and what follows it.
pub struct Upstream {
    /// The body.
    pub body: Incoming,
    /// Counts what the gateway holds of it.
    pub held: HeldBody,
    /// What is followed in it.
    pub followed: Followed,
    /// Ends a watch early.
    pub early_end: Option<EarlyEnd>,
}

impl AnswerBody {
    /// A body of the gateway itself.
    pub fn own(text: String) -> AnswerBody {
        AnswerBody { source: Source::Own(Some(text.into())), exchange: None }
    }

    /// A body of an API server.
    pub fn upstream(upstream: Upstream, exchange: Exchange) -> AnswerBody {
        AnswerBody { source: Source::Upstream(upstream), exchange: Some(exchange) }
    }

    /// Adds what ends with the body.
    pub fn with_exchange(mut self, exchange: Exchange) -> AnswerBody {
        self.exchange = Some(exchange);
        self
    }
}

impl Upstream {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref() {
                    self.follow(bytes);
                }
            }
            Poll::Ready(None) => self.followed.complete(),
            Poll::Ready(Some(Err(_))) => {}
            Poll::Pending => {
                self.held.is_empty();
                if let (Some(end), Some(watch)) = (&mut self.early_end, self.followed.watch())
                    && end.poll(watch, cx)
                {
                    return Poll::Ready(None);
                }
            }
        }
        polled
    }

    fn follow(&mut self, bytes: &[u8]) {
        self.held.passed(bytes.len());
        self.followed.follow(bytes);
        // hyper does not poll a body again that says that it has ended.
        if self.body.is_end_stream() {
            self.followed.complete();
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let (frame, is_watch) = match &mut this.source {
            Source::Own(text) => {
                (Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))), false)
            }
            Source::Upstream(upstream) => (upstream.poll_frame(cx), upstream.early_end.is_some()),
        };
        let (Some(exchange), Poll::Ready(outcome)) = (&mut this.exchange, &frame) else {
            return frame;
        };
        match outcome {
            Some(Ok(data)) => exchange.count(data.data_ref().map_or(0, Bytes::len)),
            Some(Err(_)) => {
                exchange.failed();
                // client-go watches on from its last event after an end in any place. A reset stream
                // is an internal error to it, after which it lists again.
                if is_watch {
                    return Poll::Ready(None);
                }
            }
            None => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Own(text) => text.is_none(),
            Source::Upstream(upstream) => upstream.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Source::Upstream(upstream) if upstream.early_end.is_none() => upstream.body.size_hint(),
            Source::Upstream(_) => SizeHint::default(),
        }
    }
}
