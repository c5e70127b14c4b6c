//! Why a request was forwarded.

use super::cache::Refused;

/// Why a watch or a list of a served resource was forwarded to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Kubelet and kube-proxy do not send such a header or URL.
    Form,
    /// The request demands the state of now, which only the store knows.
    Consistent,
    /// The sender may not do this.
    Identity,
    /// RBAC decides about the sender, and no review has said yet whether it may do this.
    Unreviewed,
    /// Something that must see reads may exist.
    NotPermitted,
    /// The cache has lost its source, or was not filled yet.
    NotServing,
    /// The cache does not have the version yet.
    Behind,
}

impl Reason {
    /// The value of the metric's label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Reason::Form => "form",
            Reason::Consistent => "consistent",
            Reason::Identity | Reason::Unreviewed => "identity",
            Reason::NotPermitted => "not_permitted",
            Reason::NotServing => "not_serving",
            Reason::Behind => "behind",
        }
    }
}

impl From<Refused> for Reason {
    fn from(refused: Refused) -> Reason {
        match refused {
            Refused::NotServing => Reason::NotServing,
            Refused::Behind => Reason::Behind,
        }
    }
}
