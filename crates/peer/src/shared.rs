//! What all tasks of a transport share.

use consensus::id::{ClusterId, MemberId};
use consensus::membership::MemberInfo;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::class::Class;
use crate::config::Config;
use crate::connection::Dialer;
use crate::hello::{Hello, Identity, StreamHello};
use crate::inbox::Inbox;
use crate::peer::Peer;
use crate::status::Refusals;

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) belonging: RwLock<Belonging>,
    /// The identity by which a member of the cluster has called this one; `None` before that.
    pub(crate) called: watch::Sender<Option<MemberId>>,
    pub(crate) dialer: Dialer,
    pub(crate) inbox: Inbox,
    pub(crate) refusals: Refusals,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// The cluster of the own member, and its identity. A member that begins does not know them at first. All
/// fields are read together: a member with state in a cluster that is not formed does not exist, and
/// others would try to join it.
#[derive(Clone, Copy)]
pub(crate) struct Belonging {
    pub(crate) cluster: ClusterId,
    pub(crate) id: MemberId,
    /// [`Identity::is_blank`].
    pub(crate) is_blank: bool,
    /// [`Identity::is_waiting`].
    pub(crate) is_waiting: bool,
}

impl Shared {
    /// Returns the cluster.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.belonging.read().cluster
    }

    /// Returns the identity of the own member.
    pub(crate) fn id(&self) -> MemberId {
        self.belonging.read().id
    }

    /// Notes that a member of the cluster expects another identity here. It matters only to one that has
    /// begun and has no state.
    pub(crate) fn expect_other(&self, expected: MemberId) {
        let Belonging { is_blank, is_waiting, .. } = *self.belonging.read();
        if is_blank && !is_waiting {
            self.inbox.expected(expected);
        }
    }

    /// Returns who the own member is.
    pub(crate) fn identity(&self) -> Identity {
        let Belonging { cluster, id, is_blank, is_waiting } = *self.belonging.read();
        let member = MemberInfo { id, ..self.config.member.clone() };
        Identity { cluster, member, is_blank, is_waiting }
    }

    /// Returns the first frame of a stream to a peer.
    pub(crate) fn hello(&self, class: Class, to: &Peer) -> Hello {
        let Identity { cluster, member: from, .. } = self.identity();
        Hello::Stream(StreamHello { class, cluster, to: to.id, process: to.process(), from })
    }
}
