//! Finds cycles in the graph of imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::imports::Imports;
use crate::module::ModulePath;

/// Returns import cycles as lists of module names such as `crate::a`. For each module that is in
/// an import cycle but not in a returned one, returns a shortest cycle through this module.
pub(crate) fn find_cycles(imports: &Imports) -> Vec<Vec<String>> {
    let mut reported = BTreeSet::new();
    let mut cycles = Vec::new();
    for module in imports.keys() {
        if reported.contains(module) {
            continue;
        }
        if let Some(cycle) = shortest_cycle(imports, module) {
            reported.extend(cycle.iter().cloned());
            cycles.push(cycle.iter().map(name).collect());
        }
    }
    cycles
}

/// Returns a shortest import cycle through `module`, found by breadth-first search.
fn shortest_cycle(imports: &Imports, module: &ModulePath) -> Option<Vec<ModulePath>> {
    let mut predecessors: BTreeMap<&ModulePath, &ModulePath> = BTreeMap::new();
    let mut queue = VecDeque::from([module]);
    while let Some(current) = queue.pop_front() {
        for next in imports.get(current).into_iter().flatten() {
            if next == module {
                let mut cycle = vec![module.clone()];
                let mut step = current;
                while step != module {
                    cycle.push(step.clone());
                    step = predecessors[step];
                }
                cycle.push(module.clone());
                cycle.reverse();
                return Some(cycle);
            }
            if !predecessors.contains_key(next) {
                predecessors.insert(next, current);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Formats a module path such as `crate::a`.
fn name(module: &ModulePath) -> String {
    ["crate"].into_iter().chain(module.iter().map(String::as_str)).collect::<Vec<_>>().join("::")
}
