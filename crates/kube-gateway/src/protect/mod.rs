//! Protects the API servers from LISTs, from too many renewals and from clients that send too much, and the
//! gateway from clients that read too slowly.
//!
//! - `lists`: LISTs in progress at one API server are bounded by the predicted bytes of their answers
//!   (`predictor`), which are learned by pattern (`shape`). Others wait in a fair queue (`quota`).
//! - `renewals`: renewals of Leases in progress at one API server are limited; others wait.
//! - `throttle`: a token bucket (`bucket`) for the clients with one User-Agent.
//! - `buffers`: a bound over the bytes of all answers that wait for slow clients.

mod answer_size;
mod bucket;
mod buffers;
mod lists;
mod metered;
mod predictor;
mod quota;
mod renewals;
mod shape;
mod throttle;
mod user_agent;

pub use answer_size::AnswerSize;
pub use buffers::{Buffers, Held, HeldBody};
pub use lists::{Admission, List, ListQueue, Lists, Principal, Refused, Reservation, Waiting};
pub use metered::Metered;
pub use renewals::{RenewalQueue, RenewalTurn};
#[cfg(test)]
pub use throttle::Source;
pub use throttle::{RuleStatus, Throttle};

use std::sync::Arc;
use std::time::Instant;

use crate::config::Configuration;

/// All limits.
pub struct Protection {
    /// The limit for LISTs.
    pub lists: Arc<Lists>,
    /// The LISTs that the gateway answers itself.
    pub own_lists: Arc<ListQueue>,
    /// The limit for clients by their User-Agent.
    pub throttle: Throttle,
    /// The bound over all answers that wait for clients.
    pub buffers: Arc<Buffers>,
}

impl Protection {
    /// The limits of a configuration.
    pub fn new(configuration: &Configuration) -> Protection {
        let throttle = Throttle::default();
        throttle.configure(&configuration.throttle, Instant::now());
        Protection {
            lists: Arc::new(Lists::new(configuration.lists.clone())),
            own_lists: Arc::default(),
            throttle,
            buffers: Arc::new(Buffers::new(configuration.buffers.max_bytes.0)),
        }
    }

    /// Replaces the limits by those of a changed configuration.
    pub fn configure(&self, configuration: &Configuration) {
        self.lists.configure(configuration.lists.clone());
        self.own_lists.dispatch(&self.lists);
        self.throttle.configure(&configuration.throttle, Instant::now());
        self.buffers.configure(configuration.buffers.max_bytes.0);
    }
}
