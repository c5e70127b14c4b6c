//! Protects the API servers from LISTs and from clients that send too much, and the gateway from
//! clients that read too slowly.
//!
//! - `lists`: LISTs in progress at one API server are bounded by the predicted bytes of their answers
//!   (`predictor`), which are learned by pattern (`shape`). Others wait in a fair queue (`quota`).
//! - `throttle`: a token bucket (`bucket`) for the clients with one User-Agent.
//! - `buffers`: a bound over the bytes of all answers that wait for slow clients.

mod answer_size;
mod bucket;
mod buffers;
mod lists;
mod metered;
mod predictor;
mod quota;
mod shape;
mod throttle;
mod user_agent;

pub use answer_size::AnswerSize;
pub use buffers::{Buffers, Held, HeldBody};
pub use lists::{List, ListQueue, Lists, Principal, Refused, Reservation};
pub use metered::Metered;
#[cfg(test)]
pub use throttle::Source;
pub use throttle::{RuleStatus, Throttle};
