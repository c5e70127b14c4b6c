//! What all tasks of a transport share.

use std::sync::atomic::{AtomicBool, Ordering};

use consensus::id::MemberId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::class::Class;
use crate::config::Config;
use crate::connection::Dialer;
use crate::hello::{Hello, Identity, StreamHello};
use crate::inbox::Inbox;
use crate::status::Refusals;

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) is_blank: AtomicBool,
    pub(crate) dialer: Dialer,
    pub(crate) inbox: Inbox,
    pub(crate) refusals: Refusals,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Shared {
    /// Returns who the own member is.
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            cluster: self.config.cluster,
            member: self.config.member.clone(),
            is_blank: self.is_blank.load(Ordering::Relaxed),
        }
    }

    /// Returns the first frame of a stream to a member.
    pub(crate) fn hello(&self, class: Class, to: MemberId) -> Hello {
        let Config { cluster, member, .. } = &self.config;
        Hello::Stream(StreamHello { class, cluster: *cluster, to, from: member.clone() })
    }
}
