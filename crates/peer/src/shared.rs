//! What all tasks of a transport share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use consensus::id::{ClusterId, MemberId};
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
    /// The cluster. A member that begins does not know it at first.
    pub(crate) cluster: AtomicU64,
    pub(crate) is_blank: AtomicBool,
    pub(crate) dialer: Dialer,
    pub(crate) inbox: Inbox,
    pub(crate) refusals: Refusals,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Shared {
    /// Returns the cluster.
    pub(crate) fn cluster(&self) -> ClusterId {
        ClusterId(self.cluster.load(Ordering::Relaxed))
    }

    /// Returns who the own member is.
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            cluster: self.cluster(),
            member: self.config.member.clone(),
            is_blank: self.is_blank.load(Ordering::Relaxed),
        }
    }

    /// Returns the first frame of a stream to a member.
    pub(crate) fn hello(&self, class: Class, to: MemberId) -> Hello {
        let (cluster, from) = (self.cluster(), self.config.member.clone());
        Hello::Stream(StreamHello { class, cluster, to, from })
    }
}
