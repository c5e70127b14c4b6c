//! Feature gates of etcd 3.7 (`--feature-gates`). Those that mem_etcd has can be set; others only to what
//! mem_etcd does in any case.

use std::str::FromStr;

/// A feature that can be turned on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Members compare their contents before they serve clients.
    InitialCorruptCheck,
    /// The leader compares the contents of the members after compactions.
    CompactHashCheck,
    /// A feature that cannot be changed.
    Fixed,
}

/// The features of etcd that mem_etcd has always, or never.
const FIXED: [(&str, bool); 7] = [
    ("FastLeaseKeepAlive", true),
    ("LeaseCheckpoint", false),
    ("LeaseCheckpointPersist", false),
    ("PriorityRequest", false),
    ("SetMemberLocalAddr", false),
    ("StopGRPCServiceOnDefrag", false),
    ("TxnModeWriteWithSharedBuffer", true),
];

/// A feature and whether it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGate {
    feature: Feature,
    is_on: bool,
}

impl FeatureGate {
    /// Whether the last of the gates for a feature turns it on.
    pub fn is_on(gates: &[FeatureGate], feature: Feature) -> bool {
        gates.iter().rev().find(|gate| gate.feature == feature).is_some_and(|gate| gate.is_on)
    }
}

impl FromStr for FeatureGate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("is not FEATURE=true or FEATURE=false")?;
        let is_on = match value {
            "true" | "True" | "TRUE" | "t" | "T" | "1" => true,
            "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
            _ => return Err(format!("{name} must be true or false")),
        };
        let feature = match name {
            "InitialCorruptCheck" => Feature::InitialCorruptCheck,
            "CompactHashCheck" => Feature::CompactHashCheck,
            _ => match FIXED.iter().find(|(fixed, _)| *fixed == name) {
                Some((_, fixed)) if *fixed == is_on => Feature::Fixed,
                Some((_, fixed)) => return Err(format!("{name} is always {fixed} in mem_etcd")),
                None => return Err(format!("etcd 3.7 has no feature {name}")),
            },
        };
        Ok(FeatureGate { feature, is_on })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_set_or_refused() {
        let gates = |texts: &[&str]| -> Vec<FeatureGate> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let feature = Feature::CompactHashCheck;
        let on = gates(&["LeaseCheckpoint=false", "CompactHashCheck=true"]);
        assert!(FeatureGate::is_on(&on, feature));
        assert!(!FeatureGate::is_on(&on, Feature::InitialCorruptCheck));
        let off = gates(&["CompactHashCheck=true", "CompactHashCheck=false"]);
        assert!(!FeatureGate::is_on(&off, feature));
        for (text, reason) in [
            ("CompactHashCheck", "is not FEATURE=true"),
            ("CompactHashCheck=yes", "must be true or false"),
            ("LeaseCheckpoint=true", "always false"),
            ("TxnModeWriteWithSharedBuffer=false", "always true"),
            ("Nonsense=true", "no feature Nonsense"),
        ] {
            let error = text.parse::<FeatureGate>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
