//! Events about objects.

use prost::Message;

use super::meta::{ObjectMeta, Time};

/// An event about an object.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// The metadata.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// The object.
    #[prost(message, optional, tag = "2")]
    pub involved_object: Option<ObjectReference>,
    /// The reason.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// The message.
    #[prost(string, tag = "4")]
    pub message: String,
    /// Who says so.
    #[prost(message, optional, tag = "5")]
    pub source: Option<EventSource>,
    /// When it happened first.
    #[prost(message, optional, tag = "6")]
    pub first_timestamp: Option<Time>,
    /// When it happened last.
    #[prost(message, optional, tag = "7")]
    pub last_timestamp: Option<Time>,
    /// How often it happened.
    #[prost(int32, tag = "8")]
    pub count: i32,
    /// `Normal` or `Warning`.
    #[prost(string, tag = "9")]
    pub r#type: String,
    /// The component that says so.
    #[prost(string, tag = "14")]
    pub reporting_component: String,
    /// Its instance.
    #[prost(string, tag = "15")]
    pub reporting_instance: String,
}

/// A reference to an object.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ObjectReference {
    /// The kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The UID.
    #[prost(string, tag = "4")]
    pub uid: String,
    /// The API version.
    #[prost(string, tag = "5")]
    pub api_version: String,
    /// The part of the object.
    #[prost(string, tag = "7")]
    pub field_path: String,
}

/// The source of an event.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct EventSource {
    /// The component.
    #[prost(string, tag = "1")]
    pub component: String,
    /// The host.
    #[prost(string, tag = "2")]
    pub host: String,
}
