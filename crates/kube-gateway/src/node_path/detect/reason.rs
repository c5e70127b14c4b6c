//! Why requests may not be served without an API server.

use std::fmt;

/// A rule of the detection. Its name is a value of the metric's label `rule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A webhook could see a renewal.
    Webhook,
    /// An admission policy could see a renewal.
    AdmissionPolicy,
    /// The namespace of the Leases is absent or is being deleted.
    Namespace,
    /// Admission is configured by a file.
    AdmissionConfig,
    /// An admission plugin is enabled that could see a renewal.
    AdmissionPlugin,
    /// The Node authorizer is not the first to decide.
    Authorization,
    /// Renewals are audited.
    Audit,
    /// Watches and lists are audited.
    ReadAudit,
    /// Objects are encrypted in the store.
    Encryption,
    /// Objects are stored in another format, under other keys or in another store.
    Storage,
    /// The API server has a version that was not examined.
    Version,
    /// An API server in use did not tell how it is configured.
    Server,
    /// What is known of webhooks, policies and the namespace is too old.
    Stale,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 13] = [
        Rule::Webhook,
        Rule::AdmissionPolicy,
        Rule::Namespace,
        Rule::AdmissionConfig,
        Rule::AdmissionPlugin,
        Rule::Authorization,
        Rule::Audit,
        Rule::ReadAudit,
        Rule::Encryption,
        Rule::Storage,
        Rule::Version,
        Rule::Server,
        Rule::Stale,
    ];

    /// Whether it forbids to serve renewals.
    pub fn forbids_renewals(self) -> bool {
        self != Rule::ReadAudit
    }

    /// Whether it forbids to serve watches and lists of Leases, which come from the store. Admission does not
    /// see them.
    pub fn forbids_lease_reads(self) -> bool {
        self.forbids_reads() || matches!(self, Rule::Encryption | Rule::Storage)
    }

    /// Whether it forbids to serve watches and lists of other objects. Admission does not see them, and how they
    /// are stored does not matter, because they come from an API server.
    pub fn forbids_reads(self) -> bool {
        matches!(self, Rule::Authorization | Rule::ReadAudit | Rule::Version | Rule::Server)
    }

    /// Returns the name of the rule.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Webhook => "webhook",
            Rule::AdmissionPolicy => "admission-policy",
            Rule::Namespace => "namespace",
            Rule::AdmissionConfig => "admission-config",
            Rule::AdmissionPlugin => "admission-plugin",
            Rule::Authorization => "authorization",
            Rule::Audit => "audit",
            Rule::ReadAudit => "read-audit",
            Rule::Encryption => "encryption",
            Rule::Storage => "storage",
            Rule::Version => "version",
            Rule::Server => "server",
            Rule::Stale => "stale",
        }
    }
}

/// A rule that is true, with the object that makes it true.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    /// The rule.
    pub rule: Rule,
    /// The object, for example a webhook or an API server, and what is wrong with it.
    pub object: String,
}

impl Reason {
    /// Creates a reason.
    pub fn new(rule: Rule, object: impl Into<String>) -> Reason {
        Reason { rule, object: object.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule.name(), self.object)
    }
}
