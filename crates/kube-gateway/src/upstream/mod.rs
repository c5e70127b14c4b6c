//! The API servers: which there are, whether they are ready, how loaded they are, and how to connect
//! to them.

mod connect;
mod load;
mod pool;
mod probe;
mod refusals;
mod server;

pub use connect::{Connector, ConnectorFiles, Protocol, Speaker};
pub use pool::{Pool, loads};
pub use probe::{GROUP, Prober, USER, probe_forever};
pub use refusals::{Change, Standing};
pub use server::{Member, Place, Server};
