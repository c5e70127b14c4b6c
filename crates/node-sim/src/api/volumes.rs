//! The parts of a pod that refer to ConfigMaps, Secrets and tokens.

use prost::Message;

/// The name of an object in the namespace of a pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LocalReference {
    /// The name; empty for none.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A variable in the environment of a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct EnvVar {
    /// Where its value comes from.
    #[prost(message, optional, tag = "3")]
    pub value_from: Option<EnvVarSource>,
}

/// Where the value of a variable comes from.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct EnvVarSource {
    /// A key of a ConfigMap.
    #[prost(message, optional, tag = "3")]
    pub config_map_key_ref: Option<Referrer>,
    /// A key of a Secret.
    #[prost(message, optional, tag = "4")]
    pub secret_key_ref: Option<Referrer>,
}

/// An object whose keys are variables in the environment of a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct EnvFromSource {
    /// A ConfigMap.
    #[prost(message, optional, tag = "2")]
    pub config_map_ref: Option<Referrer>,
    /// A Secret.
    #[prost(message, optional, tag = "3")]
    pub secret_ref: Option<Referrer>,
}

/// A message whose first field refers to an object, such as a `ConfigMapKeySelector` or a
/// `SecretProjection`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Referrer {
    /// The object.
    #[prost(message, optional, tag = "1")]
    pub reference: Option<LocalReference>,
}

/// A volume of a pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Volume {
    /// What the volume contains.
    #[prost(message, optional, tag = "2")]
    pub source: Option<VolumeSource>,
}

/// What a volume contains.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VolumeSource {
    /// A Secret.
    #[prost(message, optional, tag = "6")]
    pub secret: Option<NamedSecret>,
    /// A volume of iSCSI.
    #[prost(message, optional, tag = "8")]
    pub iscsi: Option<Iscsi>,
    /// A volume of RBD.
    #[prost(message, optional, tag = "11")]
    pub rbd: Option<Rbd>,
    /// A volume of FlexVolume.
    #[prost(message, optional, tag = "12")]
    pub flex_volume: Option<ThirdSecret>,
    /// A volume of Cinder.
    #[prost(message, optional, tag = "13")]
    pub cinder: Option<Cinder>,
    /// A volume of CephFS.
    #[prost(message, optional, tag = "14")]
    pub cephfs: Option<FifthSecret>,
    /// A file of Azure.
    #[prost(message, optional, tag = "18")]
    pub azure_file: Option<NamedSecret>,
    /// A ConfigMap.
    #[prost(message, optional, tag = "19")]
    pub config_map: Option<Referrer>,
    /// A volume of ScaleIO.
    #[prost(message, optional, tag = "25")]
    pub scale_io: Option<ThirdSecret>,
    /// Several objects.
    #[prost(message, optional, tag = "26")]
    pub projected: Option<Projected>,
    /// A volume of StorageOS.
    #[prost(message, optional, tag = "27")]
    pub storageos: Option<FifthSecret>,
    /// A volume of CSI.
    #[prost(message, optional, tag = "28")]
    pub csi: Option<FifthSecret>,
}

/// A source whose first field is the name of a Secret.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NamedSecret {
    /// The name.
    #[prost(string, tag = "1")]
    pub secret_name: String,
}

/// A source with a reference to a Secret as third field: FlexVolume and ScaleIO.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ThirdSecret {
    /// The Secret.
    #[prost(message, optional, tag = "3")]
    pub secret_ref: Option<LocalReference>,
}

/// A source with a reference to a Secret as fifth field: CephFS, StorageOS and CSI.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FifthSecret {
    /// The Secret.
    #[prost(message, optional, tag = "5")]
    pub secret_ref: Option<LocalReference>,
}

/// A volume of Cinder.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Cinder {
    /// The Secret.
    #[prost(message, optional, tag = "4")]
    pub secret_ref: Option<LocalReference>,
}

/// A volume of RBD.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Rbd {
    /// The Secret.
    #[prost(message, optional, tag = "7")]
    pub secret_ref: Option<LocalReference>,
}

/// A volume of iSCSI.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Iscsi {
    /// The Secret.
    #[prost(message, optional, tag = "10")]
    pub secret_ref: Option<LocalReference>,
}

/// A volume with several objects.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Projected {
    /// The objects.
    #[prost(message, repeated, tag = "1")]
    pub sources: Vec<Projection>,
}

/// An object in a projected volume.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Projection {
    /// A Secret.
    #[prost(message, optional, tag = "1")]
    pub secret: Option<Referrer>,
    /// A ConfigMap.
    #[prost(message, optional, tag = "3")]
    pub config_map: Option<Referrer>,
    /// A token of the service account.
    #[prost(message, optional, tag = "4")]
    pub service_account_token: Option<TokenProjection>,
}

/// A token of the service account.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TokenProjection {
    /// For whom the token is; empty for the API server.
    #[prost(string, tag = "1")]
    pub audience: String,
    /// The validity of the token.
    #[prost(int64, optional, tag = "2")]
    pub expiration_seconds: Option<i64>,
}

/// A ConfigMap, of which only the mark that it does not change is read.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfigMap {
    /// Whether it cannot be changed.
    #[prost(bool, optional, tag = "4")]
    pub immutable: Option<bool>,
}

/// A Secret, of which only the mark that it does not change is read.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Secret {
    /// Whether it cannot be changed.
    #[prost(bool, optional, tag = "5")]
    pub immutable: Option<bool>,
}
