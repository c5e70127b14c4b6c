//! What all tasks of a transport share.

use consensus::id::{ClusterId, MemberId};
use parking_lot::RwLock;
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
    pub(crate) belonging: RwLock<Belonging>,
    pub(crate) dialer: Dialer,
    pub(crate) inbox: Inbox,
    pub(crate) refusals: Refusals,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// The cluster of the own member. A member that begins does not know it at first. Both fields are
/// read together: a member with state in a cluster that is not formed does not exist, and others
/// would try to join it.
#[derive(Clone, Copy)]
pub(crate) struct Belonging {
    pub(crate) cluster: ClusterId,
    /// [`Identity::is_blank`].
    pub(crate) is_blank: bool,
}

impl Shared {
    /// Returns the cluster.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.belonging.read().cluster
    }

    /// Returns who the own member is.
    pub(crate) fn identity(&self) -> Identity {
        let Belonging { cluster, is_blank } = *self.belonging.read();
        Identity { cluster, member: self.config.member.clone(), is_blank }
    }

    /// Returns the first frame of a stream to a member.
    pub(crate) fn hello(&self, class: Class, to: MemberId) -> Hello {
        let (cluster, from) = (self.cluster(), self.config.member.clone());
        Hello::Stream(StreamHello { class, cluster, to, from })
    }
}
