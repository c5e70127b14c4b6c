//! The side of the clients: accepting, TLS, and serving HTTP.

mod accept;
mod serve;
mod tls;
mod workers;

pub use accept::{Front, Pace, listen};
pub use tls::{FrontFiles, FrontTls};
pub use workers::Workers;
