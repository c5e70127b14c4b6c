//! What answers have besides the body, by sender: for the first renewal of a Lease of which no answer was seen.

use std::sync::Arc;

use parking_lot::Mutex;

use super::answer::AnswerFields;
use super::tracked::Sender;
use crate::identity::IdentityFields;

/// Senders other than nodes that are remembered. Beyond it, the oldest one is forgotten.
const MAX_OTHERS: usize = 64;

/// The fields of the last answer to each sender. All nodes are one sender: they have one group, and flow schemas
/// assign groups to priority levels.
#[derive(Default)]
pub struct Senders {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    nodes: Option<Arc<AnswerFields>>,
    others: Vec<(Arc<IdentityFields>, Arc<AnswerFields>)>,
}

impl Senders {
    /// The fields of the last answer to this sender.
    pub fn get(&self, sender: &Sender) -> Option<Arc<AnswerFields>> {
        let kept = self.kept.lock();
        match sender {
            Sender::Node => kept.nodes.clone(),
            Sender::Reviewed(identity) => {
                let same = kept.others.iter().find(|(other, _)| other == identity);
                same.map(|(_, fields)| fields.clone())
            }
        }
    }

    /// Remembers the fields of an answer.
    pub fn learn(&self, sender: &Sender, fields: &Arc<AnswerFields>) {
        let mut kept = self.kept.lock();
        match sender {
            Sender::Node => kept.nodes = Some(fields.clone()),
            Sender::Reviewed(identity) => {
                kept.others.retain(|(other, _)| other != identity);
                if kept.others.len() == MAX_OTHERS {
                    kept.others.remove(0);
                }
                kept.others.push((identity.clone(), fields.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http2::Fields;

    use super::*;
    use crate::identity::{FieldNames, User};

    fn user(name: &str) -> Sender {
        let (name, credential_id) = (name.to_owned(), String::new());
        let user = User { name, uid: None, groups: Vec::new(), credential_id };
        Sender::Reviewed(Arc::new(FieldNames::default().encode(&user).unwrap()))
    }

    fn fields(schema: &[u8]) -> Arc<AnswerFields> {
        let field = (&b"x-kubernetes-pf-flowschema-uid"[..], schema);
        Arc::new(AnswerFields::new(&Fields::from_iter([field])))
    }

    #[test]
    fn each_sender_has_the_fields_of_its_last_answer() {
        let senders = Senders::default();
        assert_eq!(senders.get(&Sender::Node), None);
        senders.learn(&Sender::Node, &fields(b"nodes"));
        senders.learn(&user("a"), &fields(b"before"));
        senders.learn(&user("a"), &fields(b"a"));
        assert_eq!(senders.get(&Sender::Node), Some(fields(b"nodes")));
        assert_eq!(senders.get(&user("a")), Some(fields(b"a")));
        assert_eq!(senders.get(&user("b")), None);
    }

    #[test]
    fn the_number_of_senders_is_bounded() {
        let senders = Senders::default();
        for number in 0..=MAX_OTHERS {
            senders.learn(&user(&number.to_string()), &fields(b"x"));
        }
        assert_eq!(senders.get(&user("0")), None);
        assert!(senders.get(&user("1")).is_some());
        assert_eq!(senders.kept.lock().others.len(), MAX_OTHERS);
    }
}
