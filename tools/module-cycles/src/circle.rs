//! Circles in a graph of imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::imports::Imports;
use crate::module::ModulePath;

/// Returns a shortest circle through each group of modules that import each
/// other, as names such as `crate::a`.
pub(crate) fn find(imports: &Imports) -> Vec<Vec<String>> {
    let mut reported = BTreeSet::new();
    let mut circles = Vec::new();
    for module in imports.keys() {
        if reported.contains(module) {
            continue;
        }
        if let Some(circle) = shortest_through(imports, module) {
            reported.extend(circle.iter().cloned());
            circles.push(circle.iter().map(name).collect());
        }
    }
    circles
}

/// Searches breadth first from `module` back to itself.
fn shortest_through(imports: &Imports, module: &ModulePath) -> Option<Vec<ModulePath>> {
    let mut reached_from: BTreeMap<&ModulePath, &ModulePath> = BTreeMap::new();
    let mut queue = VecDeque::from([module]);
    while let Some(at) = queue.pop_front() {
        for next in imports.get(at).into_iter().flatten() {
            if next == module {
                let mut circle = vec![module.clone()];
                let mut step = at;
                while step != module {
                    circle.push(step.clone());
                    step = reached_from[step];
                }
                circle.push(module.clone());
                circle.reverse();
                return Some(circle);
            }
            if !reached_from.contains_key(next) {
                reached_from.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

fn name(module: &ModulePath) -> String {
    ["crate"].into_iter().chain(module.iter().map(String::as_str)).collect::<Vec<_>>().join("::")
}
