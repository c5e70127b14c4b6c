//! The state as changes, for snapshots.

use std::sync::Arc;

use crate::change::{Change, ChangeKind};
use crate::state::State;

/// The changes that lead from a new state to this one, in bounded steps. There are none for a
/// new state.
#[derive(Debug)]
pub struct Export {
    state: Arc<State>,
    stage: Stage,
}

/// What comes next.
#[derive(Debug)]
enum Stage {
    /// Roles after this name. They come first, so that the keys of each user are computed once.
    Roles(Option<Arc<str>>),
    /// Users after this name.
    Users(Option<Arc<str>>),
    /// Whether authentication is enabled.
    Enabled,
    Done,
}

impl Export {
    /// Starts an export of `state`. Later changes do not matter.
    pub fn new(state: Arc<State>) -> Self {
        let stage = if state.is_new() { Stage::Done } else { Stage::Roles(None) };
        Export { state, stage }
    }
}

impl Iterator for Export {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        loop {
            let (kind, stage) = match &self.stage {
                Stage::Roles(after) => match self.state.role_after(after.as_deref()) {
                    Some((name, role)) => (
                        ChangeKind::RolePut(role.to_message(name)),
                        Stage::Roles(Some(name.clone())),
                    ),
                    None => {
                        self.stage = Stage::Users(None);
                        continue;
                    }
                },
                Stage::Users(after) => match self.state.user_after(after.as_deref()) {
                    Some((name, user)) => (
                        ChangeKind::UserPut(user.to_message(name)),
                        Stage::Users(Some(name.clone())),
                    ),
                    None => {
                        self.stage = Stage::Enabled;
                        continue;
                    }
                },
                Stage::Enabled if self.state.is_enabled() => (ChangeKind::Enabled, Stage::Done),
                Stage::Enabled => (ChangeKind::Disabled, Stage::Done),
                Stage::Done => return None,
            };
            self.stage = stage;
            return Some(Change { revision: self.state.revision(), kind });
        }
    }
}
