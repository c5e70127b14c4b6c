//! What goes wrong in a simulated cluster: crashes, partitions, suspended processes, a bad network,
//! and changes of the members at the wrong time.

use super::node::Node;
use super::world::{Event, MILLISECOND, Run, World};
use crate::id::MemberId;
use crate::identity::LogMode;
use crate::membership::Change;

/// Maximum number of nodes in a run.
const MAX_NODES: usize = 9;
/// A voter is removed only if this number is left.
const MIN_VOTERS: usize = 3;

impl World {
    pub(super) fn on_fault(&mut self) -> Run {
        if self.settling {
            return Ok(());
        }
        let pause = self.random.between(20, 150) * MILLISECOND;
        self.after(pause, Event::Fault);
        match self.random.below(100) {
            0..25 => self.crash_some_node(),
            25..45 => self.partition(),
            45..58 => self.network.blocked.clear(),
            58..70 => self.suspend_some_node(),
            70..80 => return self.transfer(),
            80..92 => return self.change_members(),
            _ => self.degrade_network(),
        }
        Ok(())
    }

    fn some_node(&mut self) -> usize {
        self.random.below(self.nodes.len() as u64) as usize
    }

    fn crash_some_node(&mut self) {
        let (node, reboot) = (self.some_node(), self.random.percent(50));
        let loses_log = match self.mode {
            LogMode::Fsync => false,
            LogMode::Buffered => reboot,
            LogMode::Memory => true,
        };
        if loses_log && !self.overload && !self.has_quorum(Some(node)) {
            return;
        }
        self.crash(node, reboot);
        let pause = self.random.between(10, 600) * MILLISECOND;
        self.after(pause, Event::Restart { node });
    }

    /// Separates some nodes from the others, in one direction or in both.
    fn partition(&mut self) {
        let sides: Vec<bool> = (0..self.nodes.len()).map(|_| self.random.percent(50)).collect();
        let one_way = self.random.percent(30);
        let pairs = (0..sides.len()).flat_map(|a| (0..sides.len()).map(move |b| (a, b)));
        let is_blocked = |(a, b): &(usize, usize)| match one_way {
            true => sides[*a] && !sides[*b],
            false => sides[*a] != sides[*b],
        };
        self.network.blocked = pairs.filter(is_blocked).collect();
    }

    fn suspend_some_node(&mut self) {
        let node = self.some_node();
        let pause = self.random.between(50, 400) * MILLISECOND;
        self.nodes[node].suspended_until = self.now + pause;
    }

    fn degrade_network(&mut self) {
        self.network.loss = self.random.pick(&[0, 0, 2, 10, 25]).unwrap_or_default();
        self.network.late = self.random.pick(&[0, 0, 5, 30]).unwrap_or_default();
        self.network.duplicates = self.random.pick(&[0, 0, 5, 20]).unwrap_or_default();
    }

    /// Returns a node whose process leads, or believes so.
    fn some_leader(&mut self) -> Option<usize> {
        let leads = |node: &Node| {
            let process = node.process.as_ref();
            process.is_some_and(|process| process.replica.begin_evaluation().is_ok())
        };
        let leaders: Vec<_> = (0..self.nodes.len()).filter(|i| leads(&self.nodes[*i])).collect();
        self.random.pick(&leaders)
    }

    fn transfer(&mut self) -> Run {
        let Some(leader) = self.some_leader() else { return Ok(()) };
        let voters: Vec<_> = self.history.membership().voters().iter().copied().collect();
        let Some(to) = self.random.pick(&voters) else { return Ok(()) };
        self.counts.transfers += 1;
        let run = self.nodes[leader].run;
        self.with(leader, run, |process| {
            // It may be outdated, and refuses then.
            let _ = process.replica.transfer_leadership(to);
        })
    }

    fn change_members(&mut self) -> Run {
        let Some(leader) = self.some_leader() else { return Ok(()) };
        let membership = self.history.membership();
        let all = membership.members().map(|member| member.id);
        let (voters, learners): (Vec<MemberId>, Vec<MemberId>) =
            all.partition(|id| membership.is_voter(*id));
        let change = match self.random.below(10) {
            0..3 if self.nodes.len() < MAX_NODES => {
                let (node, id) = self.add_member();
                let info = self.nodes[node].unnamed(id);
                Some(match self.random.percent(50) {
                    true => Change::AddLearner(info),
                    false => Change::AddVoter(info),
                })
            }
            3..6 => self.random.pick(&learners).map(Change::Promote),
            6..8 if voters.len() > MIN_VOTERS => self.random.pick(&voters).map(Change::Remove),
            8 => self.random.pick(&learners).map(Change::Remove),
            _ => self.random.pick(&voters).map(|id| {
                let peer_urls = vec![format!("https://other:{}", self.random.below(1000))];
                Change::SetPeerUrls { id, peer_urls }
            }),
        };
        let Some(change) = change else { return Ok(()) };
        let promoted = match &change {
            Change::Promote(id) => Some(*id),
            _ => None,
        };
        let Some(process) = &mut self.nodes[leader].process else { return Ok(()) };
        // It may be refused, for example because another change is in progress.
        if let Ok(position) = process.replica.change_members(change) {
            self.history.on_change_proposed(position);
            promoted.map_or(Ok(()), |id| self.check_promoted(leader, id))?;
        }
        self.do_output(leader)
    }

    /// Ends all faults: everything runs and is connected.
    pub(super) fn end_faults(&mut self) {
        self.settling = true;
        self.network = Default::default();
        for node in 0..self.nodes.len() {
            self.nodes[node].suspended_until = 0;
            self.after(MILLISECOND, Event::Restart { node });
        }
    }
}
