//! A renewal on its way through a session.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http2::Fields;

use super::Reason;
use super::answer::AnswerFields;
use super::recognize::{Candidate, MAX_BODY};
use crate::identity::IdentityFields;

/// Somebody who may renew a Lease.
pub enum Sender {
    /// Its node.
    Node,
    /// Anybody, by a review.
    Reviewed(Arc<IdentityFields>),
}

/// A request that is a renewal, whose body has not arrived.
pub struct Renewal {
    /// The request.
    pub candidate: Candidate,
    /// Who sent it.
    pub sender: Sender,
}

/// A renewal that an API server executes or will execute.
pub struct Forwarded {
    /// The request.
    pub renewal: Renewal,
    /// Its body.
    pub body: Bytes,
    /// Why it is not served, until that is counted.
    pub reason: Option<Reason>,
    /// The generation of the permission in which the answer was predicted.
    pub predicted: Option<u64>,
    /// The answer as far as it has arrived.
    pub answer: Option<Answer>,
}

/// The answer of an API server.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// What the next answers will have besides the body.
    pub fields: AnswerFields,
    /// The body, if it is as a Lease is encoded and not too long.
    pub body: Option<BytesMut>,
}

impl Forwarded {
    /// Notes the head of the answer.
    pub fn begin_answer(&mut self, status: StatusCode, fields: &Fields) {
        let is_plain = fields.get(b"content-encoding").is_none();
        let body = is_plain.then(BytesMut::new);
        self.answer = Some(Answer { status, fields: AnswerFields::new(fields), body });
    }

    /// Notes further bytes of the answer.
    pub fn continue_answer(&mut self, bytes: &[u8]) {
        let Some(answer) = &mut self.answer else { return };
        match &mut answer.body {
            Some(body) if body.len() + bytes.len() <= 2 * MAX_BODY => body.extend_from_slice(bytes),
            body => *body = None,
        }
    }
}
