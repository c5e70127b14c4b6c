//! Which module imports which.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, Macro, UseTree, Visibility};

use crate::module::{ModulePath, Modules};

/// The modules that each module imports.
pub(crate) type Imports = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// The names that each module re-exports, with the path of what they stand for.
type ReExports = BTreeMap<ModulePath, BTreeMap<String, Vec<String>>>;

/// Re-exports of re-exports that are followed before giving up.
const RE_EXPORT_DEPTH: usize = 8;

/// Returns the imports between `modules`.
pub(crate) fn between(modules: &Modules) -> Imports {
    let re_exports = re_exports(modules);
    let mut imports = Imports::new();
    for (path, items) in modules {
        let mut collector = Collector::default();
        items.iter().for_each(|item| collector.visit_item(item));
        let targets = collector.paths.iter().filter_map(|p| resolve(modules, &re_exports, path, p));
        imports.insert(path.clone(), targets.filter(|target| target != path).collect());
    }
    imports
}

fn re_exports(modules: &Modules) -> ReExports {
    let mut all = ReExports::new();
    for (path, items) in modules {
        for item in items {
            let Item::Use(item) = item else { continue };
            let mut paths = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut paths);
            for (names, alias) in paths {
                all.entry(path.clone()).or_default().insert(alias, names);
            }
        }
    }
    all
}

/// Appends the paths of a `use` to `paths`, each with the name that it gets.
fn flatten(tree: &UseTree, before: &mut Vec<String>, paths: &mut Vec<(Vec<String>, String)>) {
    let depth = before.len();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, paths);
        }
        UseTree::Group(group) => group.items.iter().for_each(|t| flatten(t, before, paths)),
        UseTree::Name(name) if name.ident == "self" => {
            paths.push((before.clone(), before.last().cloned().unwrap_or_default()));
        }
        UseTree::Name(name) => {
            before.push(name.ident.to_string());
            paths.push((before.clone(), name.ident.to_string()));
        }
        UseTree::Rename(name) => {
            before.push(name.ident.to_string());
            paths.push((before.clone(), name.rename.to_string()));
        }
        UseTree::Glob(_) => paths.push((before.clone(), "*".to_owned())),
    }
    before.truncate(depth);
}

/// Returns the module that defines what `names`, written in the module `from`,
/// stands for, if it is one of `modules`.
fn resolve(
    modules: &Modules,
    re_exports: &ReExports,
    from: &ModulePath,
    names: &[String],
) -> Option<ModulePath> {
    let (mut module, mut rest) = start(modules, from, names)?;
    for _ in 0..RE_EXPORT_DEPTH {
        while let Some((name, after)) = rest.split_first() {
            let child: ModulePath = module.iter().cloned().chain([name.clone()]).collect();
            if !modules.contains_key(&child) {
                break;
            }
            (module, rest) = (child, after.to_vec());
        }
        let Some(name) = rest.first() else { return Some(module) };
        let Some(target) = re_exports.get(&module).and_then(|names| names.get(name)) else {
            return Some(module);
        };
        let target: Vec<String> = target.iter().chain(&rest[1..]).cloned().collect();
        // A name of another crate: the module that names it here imports this module.
        let Some(next) = start(modules, &module, &target) else { return Some(module) };
        (module, rest) = next;
    }
    Some(module)
}

/// Splits `names` into the module at which it starts and the rest. Returns
/// nothing for paths into other crates and for names of the module itself.
fn start(
    modules: &Modules,
    from: &ModulePath,
    names: &[String],
) -> Option<(ModulePath, Vec<String>)> {
    let mut module = match names.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => from.clone(),
        "super" => from[..from.len().checked_sub(1)?].to_vec(),
        child => {
            let path: ModulePath = from.iter().cloned().chain([child.to_owned()]).collect();
            return modules.contains_key(&path).then(|| (path, names[1..].to_vec()));
        }
    };
    let mut rest = &names[1..];
    while rest.first().is_some_and(|name| name == "super") {
        module.pop()?;
        rest = &rest[1..];
    }
    Some((module, rest.to_vec()))
}

/// Collects the paths that a module names.
#[derive(Default)]
struct Collector {
    paths: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // A re-export is counted where it is used.
        if matches!(item.vis, Visibility::Inherited) {
            let mut paths = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut paths);
            self.paths.extend(paths.into_iter().map(|(names, _)| names));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, mac: &'ast Macro) {
        self.visit_path(&mac.path);
        self.collect_tokens(mac.tokens.clone());
    }
}

impl Collector {
    /// Collects what looks like a path in the arguments of a macro.
    fn collect_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    self.collect_tokens(group.stream());
                }
                _ => self.end_path(&mut path),
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.paths.push(path.clone());
        }
        path.clear();
    }
}
