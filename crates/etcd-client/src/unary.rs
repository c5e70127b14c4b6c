//! Many small unary calls of one thread over one connection.
//!
//! [`Caller::begin`] only puts a request into the state of the connection. The [`Driver`] writes the requests that began
//! within [`Options::collect`] with one system call, and wakes all tasks whose answers came with one read. The server
//! also gets many requests with one read, logs them with one write and answers them together. So the cost of all this is
//! shared.
//!
//! # Invariants
//! - A call ends once: with its answer, with an error, or when it is dropped. The server learns of the last.
//! - When the connection has ended, every call ends with an error.
//! - A call that takes longer than [`Options::timeout`] ends the connection, and so all calls.

mod answer;
mod driver;
mod error;
mod state;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anyhow::Result;
use bytes::Bytes;
use http2::Fields;
use prost::Message;

use self::state::Shared;
use crate::dial::{Target, dial};
use crate::{Driver, TlsFiles, with_prefix};

pub use self::error::CallError;
pub use self::state::Options;

/// A method of the API on a connection.
#[derive(Clone, Debug)]
pub struct Method(Arc<Fields>);

/// Makes calls over a connection. Clones share it.
#[derive(Clone)]
pub struct Caller {
    target: Arc<Target>,
    shared: Arc<Shared>,
}

/// Connects to an endpoint, a URL or a host with a port. The driver must run on the thread that makes the calls.
///
/// # Errors
/// If the endpoint is not valid or does not answer, or a file cannot be read.
pub async fn connect(
    endpoint: &str,
    files: &TlsFiles,
    options: Options,
) -> Result<(Caller, Driver)> {
    let (io, target) = dial(endpoint, files).await?;
    let shared = Arc::new(Shared::new(options));
    let driver = driver::run(io, shared.clone());
    Ok((Caller { target: Arc::new(target), shared }, driver))
}

impl Caller {
    /// A method with a path such as `/etcdserverpb.KV/Txn`. It is made once for many calls.
    pub fn method(&self, path: &str) -> Method {
        let Target { scheme, authority } = &*self.target;
        let fields: [(&[u8], &[u8]); 6] = [
            (b":method", b"POST"),
            (b":scheme", scheme.as_bytes()),
            (b":path", path.as_bytes()),
            (b":authority", authority.as_bytes()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ];
        Method(Arc::new(Fields::from_iter(fields)))
    }

    /// Begins a call.
    ///
    /// # Errors
    /// If it is not sent.
    pub fn begin(&self, method: &Method, message: &impl Message) -> Result<Call, CallError> {
        let message = with_prefix(message);
        let mut state = self.shared.lock();
        let stream = state.begin(&method.0, message)?;
        // The driver waits from the first one of a batch on.
        let is_told = state.unsent == 1 || state.unsent >= state.options.max_batch;
        let driver = if is_told { state.wake_driver() } else { None };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
        Ok(Call { shared: self.shared.clone(), stream })
    }

    /// Makes a call, and returns the message of its answer.
    ///
    /// # Errors
    /// If there is none.
    pub async fn call<R: Message + Default>(
        &self,
        method: &Method,
        message: &impl Message,
    ) -> Result<R, CallError> {
        let answer = self.begin(method, message)?.await?;
        R::decode(answer).map_err(|error| CallError::Broken(format!("decode the answer: {error}")))
    }
}

/// A call in progress. Its result is the encoded message of the answer.
pub struct Call {
    shared: Arc<Shared>,
    stream: u32,
}

impl Future for Call {
    type Output = Result<Bytes, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.lock().poll(self.stream, cx)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let driver = if state.cancel(self.stream) { state.wake_driver() } else { None };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }
}
