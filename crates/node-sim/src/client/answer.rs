//! Answers, and other outcomes of requests.

use std::time::Duration;

use http2::RequestBuilder;

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The server answered.
    Answered(Answer<'a>),
    /// There is no answer.
    Failed(Failure),
}

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// The seconds after which the client should try again, if the server said so.
    pub retry_after: Option<u32>,
    /// The body.
    pub body: &'a [u8],
    /// The time since the request was made.
    pub elapsed: Duration,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection could not be opened, or ended.
    Connection,
    /// The server did not answer in time.
    Timeout,
    /// The server reset the stream.
    Reset,
    /// The answer is too large.
    TooLarge,
}

/// A part of the answer to a watch.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// A part of the body of an answer with status 200.
    Bytes(&'a [u8]),
    /// The watch ended. Nothing follows.
    Ended(WatchEnd),
}

/// How a watch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchEnd {
    /// The status code, if the server answered.
    pub status: Option<u16>,
    /// The seconds after which the client should try again, if the server said so.
    pub retry_after: Option<u32>,
}

/// Gets the outcomes of requests. It may put further requests into the link.
pub trait Receiver<T> {
    /// A request has this outcome.
    fn answered(&self, tag: T, outcome: Outcome<'_>);

    /// A part of the answer to a watch has arrived.
    fn watched(&self, tag: T, part: Part<'_>);
}

/// The head of an answer: what the client needs of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerHead {
    /// The status code.
    pub status: u16,
    /// The value of `retry-after` in seconds.
    pub retry_after: Option<u32>,
}

impl Failure {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Connection => "connection",
            Failure::Timeout => "timeout",
            Failure::Reset => "reset",
            Failure::TooLarge => "too-large",
        }
    }
}

impl RequestBuilder for AnswerHead {
    type Context = ();
    type Request = AnswerHead;

    fn field(&mut self, (): &(), name: &[u8], value: &[u8]) {
        let number = || std::str::from_utf8(value).ok()?.parse::<u32>().ok();
        match name {
            // It has three digits.
            b":status" => self.status = number().unwrap_or_default() as u16,
            b"retry-after" => self.retry_after = number(),
            _ => {}
        }
    }

    fn build(self, (): &()) -> AnswerHead {
        self
    }
}
