//! Why a renewal was forwarded.

/// Why a renewal was forwarded to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The method and the URL are those of a renewal, but not the header or the rest of the URL.
    Form,
    /// The connection is not HTTP/2.
    Http1,
    /// The body is too long, or did not arrive in time.
    Body,
    /// The sender may not renew this Lease, or that is not known.
    Identity,
    /// The body is not a Lease that a renewal leaves alone.
    Object,
    /// The Lease was not seen yet.
    Unknown,
    /// The Lease has another version in the store.
    Version,
    /// More than `renewTime` changes, or nothing.
    Content,
    /// Another manager set `renewTime` before.
    Manager,
    /// Something that must see renewals may exist.
    NotPermitted,
    /// Renewals are only compared so far, or a comparison found a difference.
    Shadow,
    /// The store is not connected.
    StoreDown,
    /// Too many renewals are on their way to the store.
    Busy,
    /// The Lease had another version in the store when it was to be written.
    Conflict,
    /// The store refused the write.
    Refused,
    /// The store did not answer, so that the write may have happened.
    NoAnswer,
}

impl Reason {
    /// Whether a write failed because of the Lease, which may have another version now.
    pub fn concerns_lease(self) -> bool {
        matches!(self, Reason::Conflict | Reason::Refused | Reason::NoAnswer | Reason::Version)
    }

    /// The value of the metrics' label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Reason::Form => "form",
            Reason::Http1 => "http1",
            Reason::Body => "body",
            Reason::Identity => "identity",
            Reason::Object => "object",
            Reason::Unknown => "unknown_lease",
            Reason::Version => "version",
            Reason::Content => "content",
            Reason::Manager => "manager",
            Reason::NotPermitted => "not_permitted",
            Reason::Shadow => "shadow",
            Reason::StoreDown => "store_down",
            Reason::Busy => "busy",
            Reason::Conflict => "conflict",
            Reason::Refused => "store_refused",
            Reason::NoAnswer => "store_no_answer",
        }
    }
}
