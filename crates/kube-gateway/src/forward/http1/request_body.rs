//! Bodies of requests. They are forwarded frame by frame as they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;

/// Bytes of a body that are kept until the answer begins, to send the request again. A longer body
/// is sent once.
const MAX_KEPT: usize = 64 << 10;

/// The body of a request, in one attempt to send it. Its trailers are dropped: kube-apiserver has no
/// use for them, and they could carry fields that are removed from the header.
pub struct RequestBody {
    /// `None` if the body has no bytes.
    source: Option<Arc<Mutex<Source>>>,
    attempt: u32,
    /// The next of the kept frames.
    position: usize,
}

/// What all attempts to send a body share.
struct Source<B = Incoming> {
    body: B,
    /// The current attempt. Earlier ones get no further bytes.
    attempt: u32,
    /// All bytes that have arrived, or `None` if there were too many.
    kept: Option<Vec<Bytes>>,
    kept_bytes: usize,
    /// Whether the current attempt is the last one, which needs only what it has not sent yet.
    is_last: bool,
}

impl RequestBody {
    /// Wraps the body of a client's request.
    pub fn new(body: Incoming) -> RequestBody {
        let source = (!body.is_end_stream()).then(|| Arc::new(Mutex::new(Source::new(body))));
        RequestBody { source, attempt: 0, position: 0 }
    }

    /// The same body from its start, for another attempt. `None` if not all of it was kept.
    pub fn again(&self) -> Option<RequestBody> {
        let Some(source) = &self.source else {
            return Some(RequestBody { source: None, attempt: 0, position: 0 });
        };
        let mut locked = source.lock();
        if locked.is_last || locked.kept.is_none() {
            return None;
        }
        locked.attempt += 1;
        let attempt = locked.attempt;
        drop(locked);
        Some(RequestBody { source: Some(source.clone()), attempt, position: 0 })
    }

    /// A handle on the body that sends nothing, from which [`RequestBody::again`] makes attempts.
    pub fn handle(&self) -> RequestBody {
        RequestBody { source: self.source.clone(), attempt: u32::MAX, position: 0 }
    }

    /// Stops keeping what the current attempt sends: it is the last one.
    pub fn forget(&self) {
        if let Some(source) = &self.source {
            source.lock().is_last = true;
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Source<B> {
    fn new(body: B) -> Source<B> {
        Source { body, attempt: 0, kept: Some(Vec::new()), kept_bytes: 0, is_last: false }
    }

    /// Returns the next frame of an attempt that has had `position` frames.
    fn poll_frame(
        &mut self,
        position: &mut usize,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(bytes) = self.kept.as_ref().and_then(|kept| kept.get(*position)) {
            *position += 1;
            return Poll::Ready(Some(Ok(Frame::data(bytes.clone()))));
        }
        if self.is_last {
            self.kept = None;
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) if frame.is_trailers() => return Poll::Ready(None),
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        if let (Some(kept), Some(bytes)) = (&mut self.kept, frame.data_ref()) {
            self.kept_bytes += bytes.len();
            if self.kept_bytes > MAX_KEPT {
                self.kept = None;
            } else {
                kept.push(bytes.clone());
                *position += 1;
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn left(&self, position: usize) -> &[Bytes] {
        self.kept.as_ref().and_then(|kept| kept.get(position..)).unwrap_or_default()
    }

    fn is_end_stream(&self, position: usize) -> bool {
        self.left(position).is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self, position: usize) -> SizeHint {
        let kept: u64 = self.left(position).iter().map(|bytes| bytes.len() as u64).sum();
        let mut hint = self.body.size_hint();
        // The upper bound first: it must not be below the lower one.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + kept);
        }
        hint.set_lower(hint.lower() + kept);
        hint
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let Some(source) = &this.source else { return Poll::Ready(None) };
        let mut source = source.lock();
        if source.attempt != this.attempt {
            // The stream of this attempt has failed, which ends the task that polls.
            return Poll::Pending;
        }
        source.poll_frame(&mut this.position, cx)
    }

    fn is_end_stream(&self) -> bool {
        self.source.as_ref().is_none_or(|source| source.lock().is_end_stream(self.position))
    }

    fn size_hint(&self) -> SizeHint {
        self.source
            .as_ref()
            .map_or(SizeHint::with_exact(0), |source| source.lock().size_hint(self.position))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn source(length: usize) -> Source<Full<Bytes>> {
        Source::new(Full::new(vec![b'a'; length].into()))
    }

    /// Reads all frames. Returns their bytes.
    fn read(source: &mut Source<Full<Bytes>>) -> usize {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let (mut position, mut bytes) = (0, 0);
        while let Poll::Ready(Some(Ok(frame))) = source.poll_frame(&mut position, &mut cx) {
            bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        bytes
    }

    #[test]
    fn a_short_body_can_be_read_again() {
        let mut source = source(MAX_KEPT);
        assert_eq!(source.size_hint(0).exact(), Some(MAX_KEPT as u64));
        assert_eq!(read(&mut source), MAX_KEPT);
        assert_eq!(source.size_hint(0).exact(), Some(MAX_KEPT as u64));
        assert!(!source.is_end_stream(0) && source.is_end_stream(1));
        assert_eq!(read(&mut source), MAX_KEPT);
    }

    #[test]
    fn the_last_attempt_sends_all_that_was_kept() {
        let mut source = source(5);
        assert_eq!(read(&mut source), 5);
        source.is_last = true;
        assert_eq!(read(&mut source), 5);
        assert!(source.kept.is_none());
        assert_eq!(read(&mut source), 0);
    }

    #[test]
    fn a_long_body_is_not_kept() {
        let mut source = source(MAX_KEPT + 1);
        assert_eq!(read(&mut source), MAX_KEPT + 1);
        assert!(source.kept.is_none());
        assert_eq!(read(&mut source), 0);
    }
}
