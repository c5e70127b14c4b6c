//! Where clients come in: URLs to listen on, sockets, TLS, and which HTTP it is that
//! a client speaks. What is said then is the business of who serves.

mod accept;
mod listen;
mod opening;
mod tls;

pub use accept::{Listener, bind, connection_permits, unpaced};
pub use listen::Listen;
pub use opening::{Opened, Replayed, open};
pub use tls::{Acceptor, TlsFiles, TlsVersion, acceptor, certificates, roots};
