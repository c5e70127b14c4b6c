//! Who sends a request, and how an API server learns it.
//!
//! A client certificate ends at the gateway. Its user goes to the API server in header fields
//! (`X-Remote-User` and others), over a connection with the front-proxy certificate. All other
//! credentials (tokens, impersonation) are header fields and pass unchanged.

mod certificate;
mod fields;
mod peer;
mod strict;
mod verify;

#[cfg(test)]
pub use certificate::User;
pub use fields::{FieldNames, IdentityFields};
pub use peer::{Credential, Peer};
pub use verify::ClientCa;
