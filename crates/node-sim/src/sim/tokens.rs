//! Tokens of service accounts in the volumes of pods, as kubelet's token manager
//! (`pkg/kubelet/token/token_manager.go`) requests them: when the volume is mounted, and again after 80 %
//! of their life, at the next turn in which kubelet looks at the pod.
//!
//! The containers of a pod start when the pod has its tokens. A running pod gets them again after a restart
//! of the simulator, because kubelet does not store them.

use std::time::Duration;

use bytes::Bytes;

use crate::api::{self, BoundObjectReference, TokenRequest, TokenRequestSpec};
use crate::client::{Body, Method, Outcome, Request};
use crate::time::ticks;

use super::node::NEVER;
use super::pod::{Pod, Stage};
use super::references::TokenSource;
use super::simulation::Simulation;
use super::start::body;
use super::ticket::{Call, PodId};
use super::wheel::Timer;

/// A token is not older than this, whatever its validity.
const MAX_AGE_SECONDS: i64 = 24 * 60 * 60;
/// Tokens are requested earlier by a random time of at most this.
const MAX_JITTER: Duration = Duration::from_secs(10);
/// The time between two turns in which kubelet looks at a pod: 60 to 90 s.
const SYNC_PERIOD: Duration = Duration::from_secs(75);
/// The delays after which kubelet mounts a volume again: from the first to the last one, doubling.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LAST_DELAY: Duration = Duration::from_secs(122);

/// The number of failures in a row that is logged. The authorizer of nodes refuses the first requests of a pod
/// that was bound just now.
const REPORTED_FAILURES: u8 = 4;

impl Simulation {
    /// Requests the tokens of a pod that runs at some time within a turn of kubelet.
    pub(super) fn request_tokens_later(&mut self, index: u32) {
        let due = self.now.tick + self.random_part(SYNC_PERIOD).max(1);
        let Some(pod) = self.pods.at(index) else { return };
        pod.tokens.iter_mut().for_each(|token| token.due = due);
        if !pod.tokens.is_empty() {
            self.wheel.add(due, Timer::Token(index));
        }
    }

    /// Requests the tokens of a pod that are due. It is also called by the timer of a token, which may be stale.
    pub(super) fn request_tokens(&mut self, index: u32) {
        let now = self.now.tick;
        let Some(pod) = self.pods.at(index) else { return };
        let node = pod.node;
        let has_ended = matches!(pod.stage, Stage::Ended | Stage::Stopped { .. } | Stage::Gone);
        if has_ended || !self.is_running(node) {
            return;
        }
        let Some(pod) = self.pods.at(index) else { return };
        let mut requests = Vec::new();
        for number in 0..pod.tokens.len() {
            if pod.tokens[number].due <= now {
                pod.tokens[number].due = NEVER;
                let call = Call::CreateToken(pod.id, number as u16);
                requests.push((call, token_request(pod, &pod.tokens[number].source)));
            }
        }
        requests.into_iter().for_each(|(call, request)| self.send(node, call, request));
    }

    pub(super) fn on_token_created(&mut self, id: PodId, number: u16, outcome: Outcome<'_>) {
        let now = self.now;
        let answer = body(&outcome, &[201]).and_then(api::decode::<TokenRequest>);
        let refresh = answer.and_then(|answer| life(&answer, now.seconds));
        let (jitter, turn) = (self.random_part(MAX_JITTER), self.random_part(SYNC_PERIOD));
        let Some(pod) = self.pods.get(id) else { return };
        let Some(token) = pod.tokens.get_mut(usize::from(number)) else { return };
        let delay = match refresh {
            Some(refresh) => {
                (token.is_held, token.failures) = (true, 0);
                ticks(refresh).saturating_sub(jitter) + turn
            }
            // kubelet has a token that may be valid still.
            None if token.is_held => ticks(SYNC_PERIOD),
            None => {
                let doublings = token.failures.min(16);
                token.failures = token.failures.saturating_add(1);
                if token.failures == REPORTED_FAILURES
                    && let Outcome::Answered(answer) = &outcome
                {
                    let (status, reason) = (answer.status, api::status_message(answer.body));
                    tracing::warn!(pod = %pod.name, status, %reason, "a token was refused, retrying");
                }
                ticks(FIRST_DELAY.saturating_mul(1 << doublings).min(LAST_DELAY))
            }
        };
        token.due = now.tick + delay.max(1);
        self.wheel.add(token.due, Timer::Token(id.index));
        self.start_with_tokens(id.index);
    }

    /// Whether the containers of a pod must wait for its tokens. Then [`Self::start_with_tokens`] goes on.
    pub(super) fn waits_for_tokens(&mut self, index: u32) -> bool {
        let Some(pod) = self.pods.at(index) else { return false };
        pod.waits_for_tokens = pod.tokens.iter().any(|token| !token.is_held);
        pod.waits_for_tokens
    }

    /// Starts a pod that has waited for its tokens, if it has all of them.
    pub(super) fn start_with_tokens(&mut self, index: u32) {
        let Some(pod) = self.pods.at(index) else { return };
        if pod.waits_for_tokens && pod.tokens.iter().all(|token| token.is_held) {
            pod.waits_for_tokens = false;
            self.schedule_pod(index, 1);
        }
    }
}

/// From `now` until 80 % of the life of a token are over; `None` if the answer says nothing about its life.
fn life(answer: &TokenRequest, now: u64) -> Option<Duration> {
    let seconds = answer.spec.as_ref()?.expiration_seconds?;
    let end = answer.status.as_ref()?.expiration_timestamp?.seconds;
    let from_begin = (seconds - seconds * 20 / 100).min(MAX_AGE_SECONDS);
    let refresh = end - seconds + from_begin - now as i64;
    Some(Duration::from_secs(refresh.max(0) as u64))
}

fn token_request(pod: &Pod, source: &TokenSource) -> Request {
    let account = &pod.plan.service_account;
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", pod.namespace);
    let bound = BoundObjectReference {
        kind: "Pod".to_owned(),
        api_version: "v1".to_owned(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
    };
    let audience = Some(source.audience.to_string()).filter(|audience| !audience.is_empty());
    let spec = TokenRequestSpec {
        audiences: audience.into_iter().collect(),
        bound_object_ref: Some(bound),
        expiration_seconds: source.seconds,
    };
    let request = TokenRequest { metadata: None, spec: Some(spec), status: None };
    let body = api::encode("authentication.k8s.io/v1", "TokenRequest", &request);
    Request { method: Method::Post, path, body: Body::Protobuf(Bytes::from(body)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Time, TokenRequestStatus};

    #[test]
    fn a_token_is_requested_again_after_80_percent_of_its_life() {
        let answer = |seconds, end| TokenRequest {
            metadata: None,
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(seconds),
                ..TokenRequestSpec::default()
            }),
            status: Some(TokenRequestStatus {
                expiration_timestamp: Some(Time { seconds: end, nanos: 0 }),
            }),
        };
        let after = |seconds, end| life(&answer(seconds, end), 1000).unwrap().as_secs();
        assert_eq!(after(3607, 4607), 2886);
        assert_eq!(after(3600, 4000), 2280, "a part of its life is over");
        assert_eq!(after(3600, 900), 0);
        assert_eq!(after(1_000_000, 1_001_000), 86_400, "not older than a day");
        assert!(life(&TokenRequest::default(), 1000).is_none());
    }
}
